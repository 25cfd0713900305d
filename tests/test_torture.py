"""Kills, racing readers, random damage and long runs: what single cases do not reach.

Each test has a short form, and a long one that `pytest -m long` runs. Frames are numbered by their
`index`, and every element of a frame follows from its number, so that any torn or misplaced row is
seen by looking at it.
"""

import collections
import functools
import itertools
import os
import re
import shutil
import signal
import struct
import subprocess
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from helpers import assert_equal, start_python

pytestmark = [
    pytest.mark.skipif(
        not Path("/proc/self/statm").exists(), reason="forks, and counts what Linux shows in /proc"
    ),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

FPS = 10
SPEC = {
    "left": {"shape": (500,), "dtype": np.int64},
    "image": {"shape": (128, 128, 3), "dtype": np.uint8},
    "right": {"shape": (500,), "dtype": np.int64},
}


def long(*values):
    """The long form of a test: the same code with larger numbers."""
    marks = [pytest.mark.long, pytest.mark.timeout(7200)]
    return pytest.param(*values, marks=marks, id="-".join(["long", *map(str, values)]))


# Frames that check themselves


def content(numbers, shape, dtype):
    """The rows that belong to frame numbers, which may have any number of dimensions."""
    numbers = np.asarray(numbers).reshape(*np.shape(numbers), *[1] * len(shape))
    return (numbers * 7).astype(dtype) + np.arange(np.prod(shape)).astype(dtype).reshape(shape)


@functools.cache
def bytes_content(shape):
    """The uint8 rows of the numbers 0 to 511, after which they repeat themselves: 7 * 256 % 256."""
    return content(np.arange(512), shape, np.uint8)


def column(first, n, shape, dtype):
    """The rows of n numbers; large ones are only looked up, so that writers mostly write."""
    if dtype == np.uint8 and n <= 256:
        return bytes_content(shape)[first % 256 :][:n]
    return content(np.arange(first, first + n), shape, dtype)


def episodes(first, lengths, spec=None):
    """The `add_data` argument whose frames will have the numbers from `first` on."""
    n = sum(lengths)
    frame_index = np.concatenate([np.arange(length) for length in lengths])
    columns = {key: column(first, n, f["shape"], f["dtype"]) for key, f in (spec or SPEC).items()}
    return columns | {
        "index": np.arange(n),
        "frame_index": frame_index,
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "timestamp": frame_index / FPS,
    }


def wrong_rows(rows, numbers):
    """How many rows are not those of their frame numbers."""
    rows = np.asarray(rows)
    shape = rows.shape[np.ndim(numbers) :]
    same = rows == content(numbers, shape, rows.dtype)
    return int((~same.reshape(*np.shape(numbers), -1).all(-1)).sum())


# Writers that are killed

CAPACITY = 20


def insert_for_ever(directory, durability, seed, pipe):
    """Insert as fast as it goes; tell what an insert will end at before it, and 0 after it."""
    buffer = OnlineBuffer(directory, durability=durability, output="numpy")
    rng = np.random.default_rng(seed)
    end = max(buffer.get_data_by_key("index"), default=-1) + 1
    while True:
        # An insert never overwrites everything, so that what is left tells the newest number.
        lengths = rng.integers(1, 7, rng.integers(1, 4))
        data = episodes(end, lengths)
        end += sum(lengths)
        os.write(pipe, struct.pack("<q", end))
        buffer.add_data(data)
        os.write(pipe, struct.pack("<q", 0))


def kill_a_writer(directory, durability, seed, rng):
    """The numbers that the reports of a killed child hold."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            insert_for_ever(directory, durability, seed, write_end)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        reports = pipe.read(16)  # the first insert is acknowledged
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        reports += pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return [number for (number,) in struct.iter_unpack("<q", reports)]


def live_range(buffer):
    """The first live number and the one past the last, after a look at every frame."""
    numbers = buffer.get_data_by_key("index")
    first, end = int(min(numbers)), int(max(numbers)) + 1
    assert sorted(numbers) == list(range(first, end))
    for key in SPEC:
        assert wrong_rows(buffer.get_data_by_key(key), numbers) == 0, key
    batch = buffer[:]
    assert_equal(batch["index"], numbers)
    assert_equal(batch["timestamp"], batch["frame_index"] / FPS)
    return first, end


def assert_sound(buffer):
    """The buffer's own check, and its two files for other programs, agree with what is live."""
    assert buffer.verify() == []
    first, end = live_range(buffer)
    mask = np.fromfile(buffer.write_dir / "_occupancy_mask", dtype=bool)
    assert sorted(np.flatnonzero(mask)) == sorted(i % CAPACITY for i in range(first, end))
    next_index = int(np.fromfile(buffer.write_dir / "_next_index", dtype=np.int64)[0])
    assert next_index % CAPACITY == end % CAPACITY


@pytest.mark.parametrize(
    ("durability", "kills"),
    [("process", 15), ("fsync", 4), long("process", 500), long("fsync", 100)],
)
def test_killed_writers_take_turns_in_one_directory(tmp_path, rng, durability, kills):
    OnlineBuffer(tmp_path, SPEC, CAPACITY, FPS).close()
    first = 0  # the lowest live number when the child begins
    seen = collections.Counter()
    for kill in range(kills):
        said = kill_a_writer(tmp_path, durability, kill, rng)
        acknowledged = max(end for end, after in itertools.pairwise(said) if after == 0)
        last = max(said)  # of the insert during or after which the child died

        buffer = OnlineBuffer(tmp_path, durability=durability, output="numpy")
        assert buffer.verify() == []
        low, end = live_range(buffer)
        context = f"kill {kill}: live {low}..{end}, {acknowledged} acknowledged, {last} begun"
        assert end in {acknowledged, last}, context
        untouched, overwritten = (max(first, n - CAPACITY) for n in (acknowledged, last))
        assert low in ({untouched, overwritten} if end == acknowledged else {overwritten}), context
        seen["committed, not acknowledged" if end != acknowledged else ""] += 1
        seen["about to overwrite" if end != last and low != untouched else ""] += 1

        buffer.add_data(episodes(end, [2]))
        assert_sound(buffer)
        buffer.close()
        first = max(low, end + 2 - CAPACITY)
    print(f"{kills} kills: {dict(seen)}")


# Readers that race a writer

RACE_CAPACITY = 96
RACE_SPEC = {
    "windowed": {"shape": (64,), "dtype": np.int64},
    "image": {"shape": (48, 48, 3), "dtype": np.uint8},
}
OFFSETS = np.array([-2, -1, 0, 3])

RACE = """
import sys

if sys.argv[1] == "batches":
    sys.modules["torch"] = None  # takes seconds to import, and is not needed
from test_torture import check_batches, check_loader

check = {"batches": check_batches, "loader": check_loader}[sys.argv[1]]
print(*check(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])), flush=True)
"""


def check_batch(batch):
    """The number of rows, and of those that are not what they should be."""
    batch = {key: np.asarray(value) for key, value in batch.items()}
    numbers, windows, is_pad = (batch[key] for key in ("index", "windowed", "windowed_is_pad"))
    in_window = (windows[..., 0]) // 7  # what each row itself says that it is
    wrong = wrong_rows(windows, in_window) + wrong_rows(batch["image"], numbers)
    expected = numbers[:, None] + OFFSETS
    wrong += int((in_window != expected)[~is_pad].sum())
    wrong += int((is_pad[:, OFFSETS == 0]).sum())
    # Padding is the nearest frame of the episode, so between the item and what was asked for.
    between = (in_window - numbers[:, None]) * np.sign(OFFSETS)
    wrong += int(((between < 0) | (between > abs(OFFSETS)))[is_pad].sum())
    return windows.shape[0] * (windows.shape[1] + 1), wrong


def may_happen(error):
    """Whether a read may fail like this while a writer goes round and round."""
    overwritten = re.search(r"were overwritten in each of \d+ attempts", str(error))
    return isinstance(error, IndexError) or (isinstance(error, RuntimeError) and bool(overwritten))


def open_reader(directory, output):
    deltas = {"windowed": OFFSETS / FPS}
    return OnlineBuffer(directory, delta_timestamps=deltas, output=output, mode="r")


def check_batches(directory, rows, seed):
    """Read batches until so many rows were checked: those, the wrong ones and the failures."""
    rng = np.random.default_rng(seed)
    buffer = open_reader(directory, "numpy")
    checked = wrong = failures = turn = 0
    while checked < rows:
        turn += 1
        try:
            if turn % 2:
                batch = buffer.sample(128, generator=rng)
            else:
                batch = buffer.get_batch(rng.integers(0, RACE_CAPACITY, 64))
        except (IndexError, RuntimeError) as error:
            if not may_happen(error):
                raise
            failures += 1
            continue
        more = check_batch(batch)
        checked, wrong = checked + more[0], wrong + more[1]
    return checked, wrong, failures


def check_loader(directory, rows, seed):
    """As `check_batches`, but what the two workers of a DataLoader read."""
    rng = np.random.default_rng(seed)
    buffer = open_reader(directory, "torch")
    checked = wrong = failures = 0
    while checked < rows:
        # An insert of up to 16 frames is under way; the others are there.
        items = (rows - checked) // (len(OFFSETS) + 1) + 128
        positions = rng.integers(0, RACE_CAPACITY - 16, min(items, 50_000)).tolist()
        try:
            for batch in buffer.loader(64, sampler=positions, num_workers=2):
                more = check_batch(batch)
                checked, wrong = checked + more[0], wrong + more[1]
        except (IndexError, RuntimeError) as error:
            if not may_happen(error):
                raise
            failures += 1
    return checked, wrong, failures


def insert_while(processes, directory):
    """Insert until all processes have ended; the number of frames."""
    writer = OnlineBuffer(directory, output="numpy")
    rng = np.random.default_rng(0)
    end = RACE_CAPACITY
    while any(process.poll() is None for process in processes) or end < 300 * RACE_CAPACITY:
        for _ in range(50):
            lengths = rng.integers(1, 9, rng.integers(1, 3))
            writer.add_data(episodes(end, lengths, RACE_SPEC))
            end += int(sum(lengths))
    return end


def results(processes):
    """What the processes printed, as numbers."""
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        yield tuple(map(int, output.split()))


def end_all(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("rows", [200_000, long(10_000_000)])
def test_no_reader_sees_a_torn_row(tmp_path, rows):
    try:
        import torch  # noqa: F401
    except ImportError:
        kinds = ["batches"] * 4
    else:
        kinds = ["batches"] * 4 + ["loader"]
    writer = OnlineBuffer(tmp_path, RACE_SPEC, RACE_CAPACITY, FPS, output="numpy")
    writer.add_data(episodes(0, [8] * (RACE_CAPACITY // 8), RACE_SPEC))
    processes = []
    try:
        for seed, kind in enumerate(kinds):
            share = rows // 5 if kind == "batches" else rows - 4 * (rows // 5)
            share = share if len(kinds) == 5 else rows // 4
            processes.append(start_python(RACE, kind, tmp_path, share, seed))
        end = insert_while(processes, tmp_path)
        got = list(results(processes))
    finally:
        end_all(processes)
    print(f"{end // RACE_CAPACITY} times round; rows, wrong ones, failed reads: {got}")
    assert sum(checked for checked, _, _ in got) >= rows
    assert [wrong for _, wrong, _ in got] == [0] * len(kinds)
    assert end >= 300 * RACE_CAPACITY


# Directories that are damaged at random

FUZZ_SPEC = {
    "action": {"shape": (2,), "dtype": np.float32},
    "image": {"shape": (4, 5, 3), "dtype": np.uint8},
    "reward": {"shape": (), "dtype": np.int32},
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The files of a wrapped buffer that was closed, and its frames by number."""
    directory = tmp_path_factory.mktemp("original") / "b"
    with OnlineBuffer(directory, FUZZ_SPEC, 12, FPS, output="numpy") as buffer:
        for first, lengths in ((0, [7]), (7, [4, 6])):
            buffer.add_data(episodes(first, lengths, FUZZ_SPEC))
        frames = {int(buffer[i]["index"]): buffer[i] for i in range(len(buffer))}
    assert set(frames) == set(range(5, 17))
    return {path.name: path.read_bytes() for path in directory.iterdir()}, frames


def damaged(old, rng):
    """The bytes of a file after something happened to them."""
    kind = rng.choice(["flip", "zero", "random", "cut", "grow", "all zero", "all random"])
    size = len(old)
    if kind == "grow" or not size:
        return old + rng.bytes(rng.integers(1, 5000))
    if kind == "cut":
        return old[: rng.integers(0, size)]
    if kind == "all zero":
        return bytes(size)
    if kind == "all random":
        return rng.bytes(size)
    new = bytearray(old)
    if kind == "flip":
        for position in rng.integers(0, size, rng.integers(1, 4)):
            new[position] ^= 1 << int(rng.integers(8))
        return bytes(new)
    start = int(rng.integers(0, size))
    stop = int(rng.integers(start, min(size, start + 64))) + 1
    new[start:stop] = bytes(stop - start) if kind == "zero" else rng.bytes(stop - start)
    return bytes(new)


def use(directory, frames):
    """Open, read everything and insert; `frames`, if given, are all that may be in the buffer."""
    with OnlineBuffer(directory, output="numpy") as buffer:
        read_all(buffer, frames)
        data = episodes(1000, [3], FUZZ_SPEC)
        buffer.add_data(data)
        added = {int(n): {k: data[k][i] for k in data} for i, n in enumerate(data["index"])}
        read_all(buffer, None if frames is None else frames | added)
        numbers = buffer.get_data_by_key("index")
        for number, frame in added.items():
            found = [buffer[int(i)] for i in np.flatnonzero(numbers == number)]
            assert any(all((item[k] == frame[k]).all() for k in item) for item in found)
        buffer.verify()


def read_all(buffer, frames):
    """Columns, items and a batch agree with one another, and with the frames."""
    batch = buffer[:]
    items = [buffer[i] for i in range(len(buffer))]
    for key in buffer.data_keys:
        column = buffer.get_data_by_key(key)
        assert len(column) == len(items)
        assert_equal(batch[key], column)
        for item, value in zip(items, column, strict=True):
            assert_equal(item[key], np.asarray(value))
    if frames is not None:
        for item in items:
            frame = frames[int(item["index"])]
            assert_equal(item, {key: np.asarray(frame[key]) for key in item})


def is_named(error, directory, names):
    """Whether a message has the path of one of the files, or its name as a word."""
    message = str(error).replace(f"{directory}{os.sep}", " ")
    return any(re.search(rf"(?<![\w%]){re.escape(name)}(?![\w%])", message) for name in names)


def run_case(case, directory, files, frames):
    """Damage one file and use the buffer; whether it was refused."""
    rng = np.random.default_rng(case)
    name = sorted(files)[rng.integers(len(files))]
    directory.mkdir()
    for path, old in files.items():
        new = damaged(old, rng) if path == name else old
        (directory / path).write_bytes(new)
    try:
        use(directory, frames if name.startswith("_") else None)
    except (ValueError, OSError) as error:
        if not is_named(error, directory, files):
            raise AssertionError(f"case {case}, {name}: {error!r} names no file") from error
        return True
    except BaseException as error:
        raise AssertionError(f"case {case}, {name}: {error!r}") from error
    finally:
        shutil.rmtree(directory)
    return False


@pytest.mark.parametrize("cases", [300, long(10_000)])
def test_random_damage_is_harmless_or_refused(tmp_path, original, cases):
    refused = sum(run_case(case, tmp_path / "b", *original) for case in range(cases))
    assert cases / 10 < refused < cases * 9 / 10  # or the damage is not what it is meant to be


# Long runs

SOAK = """
import sys

sys.modules["torch"] = None  # takes seconds to import, and is not needed
from test_torture import soak

print(*soak(sys.argv[1], float(sys.argv[2])))
"""


def held():
    """What the process holds: bytes of its own memory, file descriptors and mappings."""
    pages = [int(word) for word in Path("/proc/self/statm").read_text().split()]
    own = (pages[1] - pages[2]) * os.sysconf("SC_PAGE_SIZE")
    maps = Path("/proc/self/maps").read_text().count("\n")
    return own, len(os.listdir("/proc/self/fd")), maps  # noqa: PTH208 - as the kernel counts


def one_turn(directory, end, rng):
    """Open, insert, be refused, read in every way, and close; the next frame number."""
    deltas = {"left": [-0.1, 0.0]}
    buffer = OnlineBuffer(directory, delta_timestamps=deltas, output="numpy")
    for _ in range(5):
        lengths = rng.integers(1, 7, 2)
        buffer.add_data(episodes(end, lengths))
        end += int(sum(lengths))
        batch = buffer.sample(16, generator=rng)
        assert wrong_rows(batch["image"], batch["index"]) == 0
        assert wrong_rows(buffer[-1]["left"][1], int(buffer[-1]["index"])) == 0
    for refused in (lambda: buffer[len(buffer)], lambda: buffer.add_data({"index": [1]})):
        try:
            refused()
        except (IndexError, ValueError):
            continue
        raise AssertionError("was not refused")
    buffer.get_data_by_key("image")
    if rng.integers(2):
        buffer.close()  # else the object is dropped as it is
    return end


def soak(directory, seconds):
    """The number of turns, and what was held after a third of the time and at its end."""
    OnlineBuffer(directory, SPEC, CAPACITY, FPS).close()
    rng = np.random.default_rng(0)
    start = time.monotonic()
    end = turns = 0
    warm = None
    while (passed := time.monotonic() - start) < seconds:
        if warm is None and passed > min(seconds / 3, 30) and turns >= 20:
            warm = held()
        end = one_turn(directory, end, rng)
        turns += 1
    return turns, *warm, *held()


@pytest.mark.parametrize("seconds", [3, long(600)])
def test_nothing_piles_up(tmp_path, seconds):
    process = start_python(SOAK, tmp_path, seconds)
    try:
        output, errors = process.communicate(timeout=seconds + 60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, errors
    turns, memory, files, maps, memory_after, files_after, maps_after = map(int, output.split())
    print(f"{turns} turns; {memory} -> {memory_after} bytes, {files} files, {maps} mappings")
    assert turns > 50
    assert files_after == files
    # The allocator maps and unmaps a few areas and keeps a little memory as it likes.
    assert abs(maps_after - maps) <= 4
    assert memory_after - memory < 8 << 20
