"""Damage is found, named and, where the columns say enough, repaired."""

import contextlib
import json
import os
import resource
import shutil
import struct
import threading
import zlib

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from fastbuffer.verification import repair, verify
from helpers import SPEC, Pair, assert_equal, check_columns, make_episodes, snapshot

CAPACITY = 12
#: After these inserts the frames 5 to 16 are live, frame 12 is in slot 0.
INSERTS = ([7], [4, 6])


@pytest.fixture
def pair(tmp_path, rng):
    """A wrapped buffer that has been closed, and its model."""
    pair = Pair(tmp_path / "b", SPEC, CAPACITY, 10)
    for lengths in INSERTS:
        pair.add(make_episodes(lengths, SPEC, rng))
    pair.buffer.close()
    return pair


@pytest.fixture
def directory(pair, tmp_path):
    return tmp_path / "b"


def put(name, position, content):
    """Overwrite bytes of a file."""

    def damage(directory):
        with (directory / name).open("r+b") as file:
            file.seek(position)
            file.write(content)

    return damage


def resize(name, change):
    """Make a file longer or shorter."""
    return lambda directory: os.truncate(
        directory / name, (directory / name).stat().st_size + change
    )


def edit_manifest(directory):
    path = directory / "_manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fps": 11.0}))


def both(*damages):
    def damage(directory):
        for one in damages:
            one(directory)

    return damage


NAN = struct.pack("<d", np.nan)
ZEROS = put("_state", 0, bytes(4096))

#: What is damaged, the file that is named, and which frames are live after the repair.
REPAIRABLE = {
    "state zeroed": (ZEROS, "_state", range(5, 17)),
    "state short": (resize("_state", -8), "_state", range(5, 17)),
    "state missing": (lambda d: (d / "_state").unlink(), "_state", range(5, 17)),
    "state's header": (put("_state", 16, b"\xff"), "_state", range(5, 17)),
    "a record": (put("_state", 16 * 8 + 16, b"\xff" * 8), "_state", range(5, 17)),
    "column long": (resize("image", 5), "image", range(5, 17)),
    # Slots 9 to 11, the frames 9 to 11, are cut off; of 5 to 8 and 12 to 16 the latter are more.
    "column short": (resize("action", -8 * 3 + 1), "action", range(12, 17)),
    "time": (put("timestamp", 8 * 7, NAN), "timestamp", range(8, 17)),
    "newest time": (put("timestamp", 8 * 4, NAN), "timestamp", range(5, 16)),
    # Frame 8 goes on with episode 1; as 9 it makes those that follow too small.
    "episode": (put("episode_index", 8 * 8, struct.pack("<q", 9)), "episode_index", range(9, 17)),
    "newest index": (put("index", 8 * 4, struct.pack("<q", 99)), "index", range(5, 17)),
    "mask": (put("_occupancy_mask", 3, b"\0"), "_occupancy_mask", range(5, 17)),
    "mask missing": (lambda d: (d / "_occupancy_mask").unlink(), "_occupancy_mask", range(5, 17)),
    "next index": (put("_next_index", 0, b"\3"), "_next_index", range(5, 17)),
    "state and mask": (
        both(ZEROS, put("_occupancy_mask", 0, bytes(CAPACITY))),
        "_state",
        range(5, 17),
    ),
}

#: What the columns do not say.
LOST = {
    "manifest": (put("_manifest.json", 0, b"x"), "_manifest.json"),
    "manifest changed": (edit_manifest, "_manifest.json"),
    "manifest missing": (lambda d: (d / "_manifest.json").unlink(), "_manifest.json"),
    "column missing": (lambda d: (d / "image").unlink(), "image"),
    "column a link": (
        lambda d: ((d / "image").unlink(), (d / "image").symlink_to("index")),
        "image",
    ),
    "column a FIFO": (lambda d: ((d / "image").unlink(), os.mkfifo(d / "image")), "image"),
}


def run(*arguments):
    """Run the command, or skip the test where its library is missing."""
    testing = pytest.importorskip("click.testing")
    from fastbuffer.cli import cli

    return testing.CliRunner().invoke(cli, ["verify", *map(str, arguments)])


def test_a_sound_buffer_is_said_to_be(pair, directory, tmp_path, rng):
    before = snapshot(directory)
    assert verify(directory) == pair.buffer.verify() == []
    assert repair(directory) == []
    assert snapshot(directory) == before | {"_lock": snapshot(directory)["_lock"]}
    result = run(directory)
    assert (result.exit_code, result.output) == (0, f"{directory}: no damage found\n")
    for lengths in ([3], [30], [1, 2]):
        pair.add(make_episodes(lengths, SPEC, rng))
        assert pair.buffer.verify() == []
    OnlineBuffer(tmp_path / "empty", SPEC, 3)
    assert verify(tmp_path / "empty") == []


@pytest.mark.parametrize(("damage", "name", "kept"), REPAIRABLE.values(), ids=REPAIRABLE)
def test_damage_is_found_and_repaired(pair, directory, rng, damage, name, kept):
    damage(directory)
    before = snapshot(directory)
    result = run(directory)
    assert result.exit_code == 1
    assert str(directory / name) in result.output
    assert snapshot(directory) == before

    result = run(directory, "--repair")
    assert result.exit_code == 0, result.output
    assert "repaired: " in result.output
    lost = 12 - len(kept)
    assert (f"dropped {lost} frames; {len(kept)} are live" in result.output) == (lost > 0)
    buffer = OnlineBuffer(directory, output="numpy")
    frames = {int(frame["index"]): frame for frame in pair.model.live}
    frames[99] = frames[16] | {"index": np.int64(99)}
    got = [int(index) for index in buffer.get_data_by_key("index")]
    assert sorted(got) == [99 if i == 16 and 99 in got else i for i in kept]
    for position, index in enumerate(got):
        for key in ("image", "action", "reward"):
            assert_equal(buffer[position][key], np.asarray(frames[index][key]))

    buffer.add_data(make_episodes([2], SPEC, rng))
    assert buffer.verify() == []
    assert sorted(buffer.get_data_by_key("index"))[-2:] == [max(got) + 1, max(got) + 2]


@pytest.mark.parametrize(("damage", "name"), LOST.values(), ids=LOST)
def test_what_cannot_be_rebuilt_is_left_as_it_is(directory, damage, name):
    damage(directory)
    before = {key: content for key, content in snapshot(directory).items() if key != "_lock"}
    for arguments in ([], ["--repair"]):
        result = run(directory, *arguments)
        assert result.exit_code == 1, result.output
        assert name in result.output
    after = {key: content for key, content in snapshot(directory).items() if key != "_lock"}
    assert after == before


def test_a_directory_without_a_buffer_is_none(tmp_path):
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    places = ("", "missing", "file", "file/below", "fifo")
    for path in (tmp_path / place for place in places):
        for arguments in ([], ["--repair"]):
            result = run(path, *arguments)
            assert result.exit_code == 2
            assert "there is no buffer" in result.output
        with pytest.raises(FileNotFoundError, match="there is no buffer"):
            verify(path)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "fifo"}


def test_a_buffer_in_use_is_not_repaired(pair, directory, rng):
    pair.add(make_episodes([1], SPEC, rng))
    put("_next_index", 0, b"\7")(directory)
    result = run(directory, "--repair")
    assert result.exit_code == 1
    assert "is being written" in result.output


@pytest.mark.parametrize(("frames", "looks"), [(300, 200), (1, 5000)])
def test_a_buffer_is_verified_while_it_is_written(tmp_path, frames, looks):
    spec = {"x": {"shape": (), "dtype": np.int64}}
    writer = OnlineBuffer(tmp_path, spec, 1000, 10, output="numpy")
    stop = threading.Event()

    def insert():
        data = make_episodes([frames], spec, np.random.default_rng(0))
        while not stop.is_set():
            writer.add_data({key: value.copy() for key, value in data.items()})

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        for _ in range(looks):
            try:
                assert verify(tmp_path) == []
            except RuntimeError as error:
                assert "were overwritten" in str(error)  # noqa: PT017 - allowed, not expected
    finally:
        stop.set()
        thread.join()


def test_a_repaired_copy_is_what_it_was(pair, directory, tmp_path):
    """The state alone, lost, costs nothing."""
    copied = tmp_path / "copy"
    shutil.copytree(directory, copied)
    (copied / "_state").unlink()
    repair(copied)
    check_columns(OnlineBuffer(copied, output="numpy"), pair.model)


def change_state(directory, word, value):
    """Give a word of both records another value, with the checksums that belong to it."""
    path = directory / "_state"
    words = np.frombuffer(path.read_bytes(), "<u8").copy()
    for at in (16, 32):
        words[at + word] = value
        words[at + 15] = zlib.crc32(words[at : at + 15].tobytes())
    path.write_bytes(words.tobytes())


def test_a_counter_of_episodes_that_is_too_small_is_found(pair, directory):
    change_state(directory, 3, 0)
    (finding,) = verify(directory)
    assert "expected at least 3 episodes ever added, got 0" in str(finding)


def test_a_lock_that_is_no_file_is_found(pair, directory):
    (directory / "_lock").unlink()
    os.mkfifo(directory / "_lock")
    assert "_lock: expected a regular file" in str(verify(directory)[0])


def test_what_cannot_be_looked_at_is_an_error_and_no_damage(pair, directory):
    before = snapshot(directory)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        for look in (verify, repair):
            with pytest.raises(OSError, match="Too many open files"):
                look(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert snapshot(directory) == before


def test_who_has_a_buffer_open_follows_it_through_a_repair(pair, directory, rng):
    reader = OnlineBuffer(directory, output="numpy", mode="r")
    put("_next_index", 0, b"\7")(directory)
    assert repair(directory)
    pair.buffer = OnlineBuffer(directory, output="numpy")
    for lengths in ([3], [9, 4]):
        pair.add(make_episodes(lengths, SPEC, rng))
        check_columns(reader, pair.model)


class Bar:
    """Remembers what it is told, and may raise."""

    def __init__(self, raised=None):
        self.updates = []
        self.raised = raised

    def update(self, n):
        self.updates.append(n)
        if self.raised:
            raise self.raised


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A buffer of several millions of frames."""
    directory = tmp_path_factory.mktemp("large") / "b"
    spec = {"v": {"shape": (1,), "dtype": np.dtype(np.int8)}}
    frames = 5_000_000
    with OnlineBuffer(directory, spec, buffer_capacity=frames, fps=10, preallocate=False) as buffer:
        number = np.arange(frames) % 1000
        buffer.add_data(
            {
                "v": np.zeros((frames, 1), np.int8),
                "frame_index": number,
                "timestamp": number / 10,
                "episode_index": np.arange(frames) // 1000,
                "index": np.arange(frames),
            }
        )
    return directory


def show_in(bar, monkeypatch):
    monkeypatch.setattr("fastbuffer.verification.progress", lambda *_: contextlib.nullcontext(bar))


def test_progress_is_told(large, monkeypatch):
    show_in(bar := Bar(), monkeypatch)
    assert verify(large) == []
    assert len(bar.updates) >= 3
    assert min(bar.updates) > 0
    assert 50 < sum(bar.updates) <= 100


@pytest.mark.parametrize("act", [verify, repair])
def test_what_is_raised_meanwhile_ends_the_check(large, monkeypatch, act):
    show_in(bar := Bar(KeyboardInterrupt()), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        act(large)
    assert len(bar.updates) == 1
