"""Modes of opening, what survives, and what is said about what did not."""

import io
import logging
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from helpers import SPEC, Pair, check_columns, make_episodes, refused_with, snapshot

CAPACITY = 12
ARGUMENTS = (SPEC, CAPACITY, 10)


def add(pair, lengths, seed=0):
    pair.add(make_episodes(lengths, SPEC, np.random.default_rng(seed)))


@pytest.fixture
def pair(tmp_path):
    """A wrapped buffer, closed."""
    pair = Pair(tmp_path / "b", *ARGUMENTS)
    for lengths in ([7], [4, 6]):
        add(pair, lengths)
    pair.buffer.close()
    return pair


# Reading only


def test_a_read_only_buffer_reads_and_changes_nothing(pair, tmp_path):
    directory = tmp_path / "b"
    before = snapshot(directory), [p.stat().st_mtime_ns for p in sorted(directory.iterdir())]
    for arguments in ((), ARGUMENTS):
        reader = OnlineBuffer(directory, *arguments, output="numpy", mode="r")
        check_columns(reader, pair.model)
        with pytest.raises(io.UnsupportedOperation, match='expected a buffer opened with mode="a"'):
            reader.add_data(make_episodes([2], SPEC, np.random.default_rng(0)))
        reader.flush()
        reader.close()
    assert (
        snapshot(directory),
        [p.stat().st_mtime_ns for p in sorted(directory.iterdir())],
    ) == before


def test_a_read_only_buffer_follows_the_writer(pair, tmp_path):
    reader = OnlineBuffer(tmp_path / "b", output="numpy", mode="r")
    add(pair, [3, 2])
    check_columns(reader, pair.model)


def test_reading_only_makes_no_buffer(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no buffer"):
        OnlineBuffer(tmp_path / "x", *ARGUMENTS, mode="r")
    assert not (tmp_path / "x").exists()
    for name, size in (("_next_index", 8), ("_occupancy_mask", 4)):
        (tmp_path / name).write_bytes(bytes(size))
    before = snapshot(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no buffer"):
        OnlineBuffer(tmp_path, {}, 4, mode="r")
    assert snapshot(tmp_path) == before


def test_modes_and_durabilities_are_checked(tmp_path):
    refused_with('mode: expected "a" or "r"', OnlineBuffer, tmp_path / "x", *ARGUMENTS, mode="w")
    refused_with(
        'durability: expected "process" or "fsync"',
        OnlineBuffer,
        *(tmp_path / "x", *ARGUMENTS),
        durability=True,
    )
    assert not (tmp_path / "x").exists()


# Durability (that an order of writes and syncs is safe is tested in the core: commit.rs)


def test_a_durable_buffer_is_like_another(tmp_path):
    pair = Pair(tmp_path / "new" / "b", *ARGUMENTS)
    pair.buffer = OnlineBuffer(tmp_path / "new" / "b", output="numpy", durability="fsync")
    for lengths in ([7], [4, 6], [30]):
        add(pair, lengths)
        pair.check()
        check_columns(OnlineBuffer(tmp_path / "new" / "b", output="numpy"), pair.model)
    pair.buffer.flush()
    pair.buffer.close()
    pair.buffer = OnlineBuffer(tmp_path / "new" / "b", output="numpy")
    add(pair, [2])
    pair.check()


def test_closing_a_durable_buffer_leaves_what_others_read_in_step(tmp_path):
    with OnlineBuffer(tmp_path, *ARGUMENTS, durability="fsync") as buffer:
        buffer.add_data(make_episodes([3], SPEC, np.random.default_rng(0)))
    (tmp_path / "_occupancy_mask").write_bytes(bytes(CAPACITY))
    assert "_occupancy_mask" in str(buffer.verify())


TRACED = """
import sys
import numpy as np
from fastbuffer import OnlineBuffer
from helpers import SPEC, make_episodes

buffer = OnlineBuffer(sys.argv[1], SPEC, 12, 10, durability=sys.argv[2])
if sys.argv[3] != "open":
    buffer.add_data(make_episodes([3], SPEC, np.random.default_rng(0)))
if sys.argv[3] == "flush":
    buffer.flush()
"""
NEEDS_STRACE = pytest.mark.skipif(
    shutil.which("strace") is None, reason="needs strace to see what is waited for"
)


def traced(tmp_path, *arguments):
    """What a process waits for, as strace shows it with the paths of files."""
    log = tmp_path / "log"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    calls = "trace=msync,fsync,fdatasync"
    command = ["strace", "-f", "-y", "-o", log, "-e", calls, sys.executable, "-c", TRACED]
    subprocess.run([*command, *arguments], check=True, env=environment)
    return log.read_text()


@NEEDS_STRACE
@pytest.mark.parametrize(
    ("durability", "flush", "syncs"),
    [("fsync", "", True), ("process", "", False), ("process", "flush", True)],
)
def test_the_disk_is_waited_for_only_if_that_is_asked_for(tmp_path, durability, flush, syncs):
    log = traced(tmp_path, tmp_path / "b", durability, flush)
    assert (("msync" in log), ("fsync" in log)) == (syncs, syncs)


@NEEDS_STRACE
def test_a_durable_buffer_begins_with_all_that_is_there_on_the_disk(tmp_path):
    directory = tmp_path / "deeper" / "b"
    OnlineBuffer(directory, *ARGUMENTS).add_data(make_episodes([3], SPEC, np.random.default_rng(0)))
    log = traced(tmp_path, directory, "fsync", "open")
    synced = {Path(path) for path in re.findall(r"fsync\(\d+<([^>]*)>", log)}
    names = ["_manifest.json", "_occupancy_mask", "_next_index"]
    assert {directory, directory.parent, *(directory / name for name in names)} <= synced
    assert log.count("msync(") >= len(SPEC) + 4 + 1  # the columns and the state


# Recovery


def interrupt(directory, frames):
    """Leave the directory as a writer does that is killed while it writes some frames."""
    path = directory / "_state"
    words = np.frombuffer(path.read_bytes(), "<u8").copy()
    places = [words[at : at + 16] for at in (16, 32)]
    record = max(places, key=lambda place: place[0]).copy()
    end = record[1]
    record[0] += 1
    record[2] = max(record[2], end + frames - CAPACITY)  # evicted
    record[6:8] = end, end + frames
    record[15] = zlib.crc32(record[:15].tobytes())
    places[int(record[0] % 2)][:] = record
    path.write_bytes(words.tobytes())


def test_what_a_killed_insert_cost_is_said_once(pair, tmp_path, caplog):
    directory = tmp_path / "b"
    interrupt(directory, 3)
    reader = OnlineBuffer(directory, output="numpy", mode="r")
    assert len(reader) == 9
    assert caplog.records == []
    with caplog.at_level(logging.WARNING, "fastbuffer"):
        buffer = OnlineBuffer(directory, output="numpy")
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        message = caplog.records[0].getMessage()
        assert f"{directory}: an insert was cut off" in message
        assert "from slot 5 on and 3 in number" in message
        assert "9 frames are live" in message
        buffer.add_data(make_episodes([1], SPEC, np.random.default_rng(0)))
        OnlineBuffer(directory).close()
    assert len(caplog.records) == 1
    assert sorted(buffer.get_data_by_key("index")) == list(range(8, 18))
    mask = np.fromfile(directory / "_occupancy_mask", bool)
    assert mask.tolist() == [i not in (6, 7) for i in range(12)]


def test_an_interrupted_insert_is_found_by_the_object_that_writes_next(pair, tmp_path, caplog):
    interrupt(tmp_path / "b", 3)
    with caplog.at_level(logging.WARNING, "fastbuffer"):
        pair.buffer.add_data(make_episodes([1], SPEC, np.random.default_rng(0)))
    assert len(caplog.records) == 1
