"""One writer and any number of readers: objects, threads, forks and other processes."""

import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest

from fastbuffer import BufferLockedError, OnlineBuffer
from helpers import (
    SPEC,
    Pair,
    assert_equal,
    check_columns,
    make_episodes,
    run_python,
    start_python,
)

CAPACITY = 12
FPS = 10
DELTAS = {"action": [-0.1, 0.0]}


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path, SPEC, CAPACITY, FPS, DELTAS)


def add(pair, lengths, seed=0):
    pair.add(make_episodes(lengths, SPEC, np.random.default_rng(seed), FPS))


# The writer's lock

WRITER = """
import sys
import numpy as np
from fastbuffer import OnlineBuffer
from helpers import SPEC, make_episodes

buffer = OnlineBuffer(sys.argv[1])
for line in sys.stdin:
    lengths = [int(word) for word in line.split()]
    try:
        buffer.add_data(make_episodes(lengths, SPEC, np.random.default_rng(0), 10))
        print("added", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


def ask(process, line):
    """Send a line to a process and read the line that it answers."""
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_second_process_may_not_write(pair, tmp_path):
    add(pair, [3])
    with start_python(WRITER, tmp_path) as other:
        answer = ask(other, "4")
        assert answer.startswith("BufferLockedError")
        assert str(os.getpid()) in answer
        pair.check()
        pair.buffer.close()
        assert ask(other, "4") == "added"
        pair.buffer = OnlineBuffer(tmp_path, delta_timestamps=DELTAS, output="numpy")
        data = make_episodes([2], SPEC, np.random.default_rng(0), FPS)
        with pytest.raises(BufferLockedError, match=rf"\b{other.pid}\b"):
            pair.buffer.add_data(data)
        assert data["index"].tolist() == [0, 1]
        other.stdin.close()


def test_a_dead_writer_is_no_obstacle(pair, tmp_path):
    add(pair, [3])
    pair.buffer.close()
    with start_python(WRITER, tmp_path) as other:
        assert ask(other, "4") == "added"
        other.send_signal(signal.SIGKILL)
    pair.model.add_data(make_episodes([4], SPEC, np.random.default_rng(0), FPS))
    pair.buffer = OnlineBuffer(tmp_path, delta_timestamps=DELTAS, output="numpy")
    pair.check()
    add(pair, [6, 2])
    pair.check()


def test_a_second_object_may_not_write_until_the_first_is_gone(pair, tmp_path):
    add(pair, [3])
    second = OnlineBuffer(tmp_path)
    with pytest.raises(BufferLockedError, match=rf"\b{os.getpid()}\b"):
        second.add_data(make_episodes([2], SPEC, np.random.default_rng(0), FPS))
    pair.buffer = None
    second.add_data(make_episodes([2], SPEC, np.random.default_rng(0), FPS))
    assert len(second) == 5


def test_a_locked_error_is_an_os_error():
    assert issubclass(BufferLockedError, OSError)


def test_an_object_opened_before_others_wrote_continues_their_numbers(pair, tmp_path):
    with OnlineBuffer(tmp_path) as other:
        data = make_episodes([5, 9], SPEC, np.random.default_rng(1), FPS)
        pair.model.add_data(data)
        other.add_data(data)
    add(pair, [4])
    pair.check()


COUNTERS = {key: {"shape": (2000,), "dtype": np.int64} for key in "ab"}


def count_into(buffer, rng, committed):
    """Write episodes for ever in which each value is its frame's index; report each commit."""
    total = len(buffer)
    while True:
        n = int(rng.integers(1, 9))
        data = make_episodes([n], {}, rng, FPS)
        counter = np.repeat(np.arange(total, total + n)[:, None], 2000, axis=1)
        buffer.add_data(data | dict.fromkeys(COUNTERS, counter))
        total += n
        os.write(committed, total.to_bytes(8, "little"))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_killed_writer_leaves_every_committed_frame_that_it_was_not_overwriting(tmp_path, rng):
    for k in range(30):
        directory = tmp_path / str(k)
        OnlineBuffer(directory, COUNTERS, 20, FPS).close()
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                count_into(OnlineBuffer(directory), np.random.default_rng(k), write_end)
            finally:
                os._exit(1)
        os.close(write_end)
        os.read(read_end, 8)
        time.sleep(rng.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(read_end, "rb") as pipe:
            committed = int.from_bytes(pipe.read()[-8:] or b"\1", "little")

        buffer = OnlineBuffer(directory, output="numpy")
        index = buffer.get_data_by_key("index")
        for key in COUNTERS:
            assert_equal(buffer.get_data_by_key(key), np.repeat(index[:, None], 2000, axis=1))
        newest = max(index)
        assert newest + 1 >= committed
        assert sorted(index) == list(range(newest + 1 - len(index), newest + 1))
        assert len(index) >= min(newest + 1, 20 - 8)
        buffer.add_data(
            make_episodes([2], {}, rng, FPS)
            | dict.fromkeys(COUNTERS, np.zeros((2, 2000), dtype=np.int64))
        )
        assert max(buffer.get_data_by_key("index")) == newest + 2


# Readers

READER = """
import sys
from fastbuffer import OnlineBuffer

buffer = OnlineBuffer(sys.argv[1], output="numpy")
for line in sys.stdin:
    print(len(buffer), buffer.num_episodes, buffer.get_data_by_key("index").tolist(), flush=True)
"""


def test_readers_follow_the_writer_in_any_process(pair, tmp_path):
    reader = OnlineBuffer(tmp_path, output="numpy")
    with start_python(READER, tmp_path) as other:
        for lengths in ([], [3], [4, 2], [6], [30]):
            add(pair, lengths)
            check_columns(reader, pair.model)
            index = pair.model.get_data_by_key("index").tolist()
            expected = f"{pair.model.num_frames} {pair.model.num_episodes} {index}"
            assert ask(other, "") == expected
        other.stdin.close()


def test_a_reader_never_sees_two_commits_at_once(tmp_path):
    """A writer puts one counter into all keys; every frame read must agree with itself."""
    spec = {key: {"shape": (257,), "dtype": np.int64} for key in "abc"}
    deltas = {"a": [-0.1, 0.0], "b": [-0.1, 0.0]}
    writer = OnlineBuffer(tmp_path, spec, 20, FPS, output="numpy")
    done = threading.Event()
    failures = []

    def read():
        reader = OnlineBuffer(tmp_path, delta_timestamps=deltas, output="numpy")
        while not done.is_set():
            failures.extend(frame for frame in [reader[:]] if not whole(frame))

    def whole(batch):
        counter = batch["index"]
        a, b, c = (batch[key] for key in "abc")
        same = np.array_equal(a, b) and (a == a[..., :1]).all() and (c == c[..., :1]).all()
        return same and np.array_equal(a[:, 1, 0], counter) and np.array_equal(c[:, 0], counter)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    total = 0
    for n in np.random.default_rng(0).integers(1, 25, 500):
        data = make_episodes([n], {}, np.random.default_rng(0), FPS)
        counter = np.repeat(np.arange(total, total + n)[:, None], 257, axis=1)
        writer.add_data(data | dict.fromkeys(spec, counter))
        total += n
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


# Copies of the object


def test_a_pickle_is_small_and_its_copy_follows_later_writes(tmp_path):
    spec = {"value": {"shape": (100,), "dtype": np.float32}}
    pair = Pair(tmp_path, spec, 100_000, FPS, {"value": [-0.1, 0.0]})
    pair.set_tolerance(0.03)
    rng = np.random.default_rng(0)
    pair.add(make_episodes([50], spec, rng, FPS))
    content = pickle.dumps(pair.buffer)
    assert len(content) < 10_000
    copy = pickle.loads(content)
    assert (copy.fps, copy.tolerance_s) == (FPS, 0.03)
    assert_equal(copy.delta_timestamps, {"value": np.array([-0.1, 0.0])})
    pair.add(make_episodes([20], spec, rng, FPS))
    check_columns(copy, pair.model)
    assert_equal(copy[60], pair.model.item(60))


def test_a_pickle_travels_to_a_new_process(pair):
    add(pair, [4, 3])
    code = "import pickle, sys; print(len(pickle.loads(bytes.fromhex(sys.argv[1]))))"
    assert run_python(code, pickle.dumps(pair.buffer).hex()) == "7\n"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_what_its_parent_had(pair):
    add(pair, [7, 4])
    indices = np.arange(256) % 11
    expected = pair.model.batch(indices)
    assert_equal(pair.buffer[indices], expected)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert_equal(pair.buffer[indices], expected)
            assert_equal(pair.buffer[3], pair.model.item(3))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    add(pair, [6])
    pair.check()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_not_write_besides_its_parent(pair):
    add(pair, [7])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pair.buffer.add_data(make_episodes([2], SPEC, np.random.default_rng(0), FPS))
        except BufferLockedError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pair.check()
    add(pair, [3])
    pair.check()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_dataloader_workers_give_what_items_give(tmp_path, torch, start):
    pair = Pair(tmp_path, SPEC, CAPACITY, FPS, DELTAS, "torch")
    add(pair, [7])
    add(pair, [9])
    loader = torch.utils.data.DataLoader(
        pair.buffer, batch_size=5, num_workers=2, multiprocessing_context=start
    )
    for k, batch in enumerate(loader):
        assert_equal(batch, pair.model.batch(range(12)[5 * k : 5 * k + 5]))
