"""One writer and any number of readers: objects, threads, forks and other processes."""

import copy
import fcntl
import itertools
import os
import pickle
import shutil
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


def test_objects_of_one_process_write_in_turns(pair, tmp_path):
    add(pair, [3])
    second = OnlineBuffer(tmp_path, output="numpy")  # as a notebook cell that is run again makes it
    data = make_episodes([2], SPEC, np.random.default_rng(1), FPS)
    pair.model.add_data(data)
    second.add_data(data)
    add(pair, [4])
    pair.check()
    check_columns(second, pair.model)
    with start_python(WRITER, tmp_path) as other:
        for release in (pair.buffer.close, second.close):
            assert ask(other, "2").startswith("BufferLockedError")
            release()
        assert ask(other, "2") == "added"
        with pytest.raises(BufferLockedError, match=rf"\b{other.pid}\b"):
            second.add_data(make_episodes([2], SPEC, np.random.default_rng(0), FPS))
        other.stdin.close()


def test_many_threads_insert_and_read_at_once(tmp_path):
    """Through one object and through several; each episode has one number in all of its frames."""
    spec = {"number": {"shape": (300,), "dtype": np.int64}}
    buffer = OnlineBuffer(tmp_path, spec, 64, FPS, {"number": [-0.1, 0.0, 0.1]}, output="numpy")
    objects = [buffer, OnlineBuffer(tmp_path, delta_timestamps=buffer.delta_timestamps)]
    errors, stop = [], threading.Event()

    def insert(k):
        rng = np.random.default_rng(k)
        for i in range(150):
            n = int(rng.integers(1, 9))
            rows = np.full((n, 300), 1000 * k + i)
            objects[k % 2].add_data(make_episodes([n], {}, rng, FPS) | {"number": rows})

    def read(k):
        rng = np.random.default_rng(k)
        while not stop.is_set():
            try:
                indices = rng.integers(0, max(1, len(buffer)), 16)
                rows = np.asarray(objects[k % 2].get_batch(indices)["number"])
            except IndexError:
                continue  # still empty
            assert (rows == rows[:, :1, :1]).all()

    def guarded(work, k):
        try:
            work(k)
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=guarded, args=(read, k)) for k in range(3)]
    writers = [threading.Thread(target=guarded, args=(insert, k)) for k in range(4)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert errors == []
    index = np.sort(buffer.get_data_by_key("index"))
    assert np.array_equal(index, np.arange(index[0], index[0] + 64))


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


class Multiplied(OnlineBuffer):
    """A buffer with a method, a constructor and an attribute of its own."""

    def __init__(self, directory, factor):
        super().__init__(directory, output="numpy")
        self.factor = factor

    def __getitem__(self, index):
        return {"index": super().__getitem__(index)["index"] * self.factor}


@pytest.mark.parametrize(
    "copied", [lambda b: pickle.loads(pickle.dumps(b)), copy.copy, copy.deepcopy]
)
def test_a_copy_of_a_subclass_is_one(pair, tmp_path, copied):
    add(pair, [7])
    twin = copied(Multiplied(tmp_path, 2))
    assert type(twin) is Multiplied
    assert twin[3]["index"] == 6
    assert twin.factor == 2


# A directory that is not what it was


def test_a_buffer_that_took_the_place_of_another_is_not_written_into(pair, tmp_path):
    add(pair, [4])
    pair.buffer.close()
    before = pair.buffer.get_data_by_key("action")
    shutil.rmtree(tmp_path)
    other = Pair(tmp_path, SPEC, CAPACITY, FPS, DELTAS)
    add(other, [9])
    other.buffer.close()
    with pytest.raises(ValueError, match=r"another in its place: open the buffer anew"):
        pair.buffer.add_data(make_episodes([3], SPEC, np.random.default_rng(0), FPS))
    assert_equal(pair.buffer.get_data_by_key("action"), before)
    other.check()
    add(other, [2])  # the lock is free
    other.check()


def test_a_relative_path_means_the_same_after_a_change_of_directory(tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        buffer = OnlineBuffer("b", SPEC, CAPACITY, FPS, output="numpy")
        buffer.add_data(make_episodes([3 if name == "here" else 5], SPEC, np.random.default_rng(0)))
        buffer.close()
    monkeypatch.chdir(tmp_path / "here")
    here = OnlineBuffer("b", output="numpy")
    monkeypatch.chdir(tmp_path / "there")
    here.add_data(make_episodes([2], SPEC, np.random.default_rng(0)))
    assert len(here) == len(pickle.loads(pickle.dumps(here))) == 5
    assert OnlineBuffer("b", output="numpy").num_episodes == 1
    assert OnlineBuffer(tmp_path / "here" / "b", output="numpy").num_episodes == 2


def test_a_lock_file_of_several_names_is_left_alone(pair, tmp_path):
    (tmp_path / "_lock").unlink(missing_ok=True)
    (tmp_path / "victim").write_text("precious")
    os.link(tmp_path / "victim", tmp_path / "_lock")
    with pytest.raises(ValueError, match="_lock: expected a file of one name"):
        add(Pair(tmp_path, SPEC, CAPACITY, FPS), [2])
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("kind", ["link", "dangling link", "directory", "fifo"])
def test_a_lock_file_that_is_none_is_refused(pair, tmp_path, kind):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock = tmp_path / "_lock"
    lock.unlink(missing_ok=True)
    make = {
        "link": lambda: lock.symlink_to(victim),
        "dangling link": lambda: lock.symlink_to(tmp_path / "nothing"),
        "directory": lock.mkdir,
        "fifo": lambda: os.mkfifo(lock),
    }
    make[kind]()
    with pytest.raises(ValueError, match="_lock: expected a regular file"):
        add(Pair(tmp_path, SPEC, CAPACITY, FPS), [2])
    assert victim.read_text() == "precious"


KILLED_PARENT = """
import os, sys, time
import numpy as np
from fastbuffer import OnlineBuffer
from helpers import SPEC, make_episodes

buffer = OnlineBuffer(sys.argv[1])
buffer.add_data(make_episodes([3], SPEC, np.random.default_rng(0), 10))
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)  # by now it has closed what it must
    os.close(1)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(pair, tmp_path):
    with start_python(KILLED_PARENT, tmp_path) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    try:
        pair.buffer.add_data(make_episodes([2], SPEC, np.random.default_rng(0), FPS))
        assert len(pair.buffer) == 5
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_writer_whose_lock_was_removed_takes_it_anew(pair, tmp_path):
    add(pair, [3])
    (tmp_path / "_lock").unlink()
    with start_python(WRITER, tmp_path) as other:
        add(pair, [2])
        assert ask(other, "4").startswith("BufferLockedError")
        pair.check()
        (tmp_path / "_lock").unlink()
        assert ask(other, "4") == "added"
        with pytest.raises(BufferLockedError, match=rf"\b{other.pid}\b"):
            pair.buffer.add_data(make_episodes([2], SPEC, np.random.default_rng(0), FPS))
        other.stdin.close()


def test_a_directory_that_was_removed_is_not_written(pair, tmp_path):
    directory = tmp_path / "b"
    pair = Pair(directory, SPEC, CAPACITY, FPS)
    add(pair, [3])
    shutil.rmtree(directory)
    with pytest.raises(FileNotFoundError, match="_lock"):
        pair.buffer.add_data(make_episodes([2], SPEC, np.random.default_rng(0), FPS))
    pair.check()  # what was there can still be read
    directory.mkdir()
    with pytest.raises(OSError, match=str(directory)):
        pair.buffer.add_data(make_episodes([2], SPEC, np.random.default_rng(0), FPS))


# Forks of a process whose other threads are busy


def fork_while(busy, work):
    """The exit code of a child that is forked while a thread is in `busy`, and does `work`."""
    thread = threading.Thread(target=busy)
    thread.start()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            work()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    thread.join()
    return status


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_wait_for_the_threads_of_its_parent(tmp_path):
    """A lock that a thread of the parent holds would never be released in the child."""
    spec = {"value": {"shape": (64,), "dtype": np.float64}}
    rng = np.random.default_rng(0)
    # Made before, as NumPy's generators and allocations have locks, too.
    large, small = (make_episodes([n], spec, rng, FPS) for n in (20_000, 5))
    for values in (*large.values(), *small.values()):
        values.flags.writeable = False  # so that they may be inserted again and again
    times = rng.permutation(large["timestamp"])  # windows take long to be searched for in these
    buffer = OnlineBuffer(tmp_path, spec, 100_000, FPS, {"value": [0.0]}, output="numpy")
    buffer.add_data(large | {"timestamp": times})
    buffer.tolerance_s = np.inf
    expected = buffer[7]
    positions = np.zeros(5000, int)

    def read():
        buffer.add_data(small)
        buffer.get_batch(positions)

    def insert():
        for _ in range(10):
            buffer.add_data(large)

    def read_in_child():
        assert_equal(buffer[7], expected)
        assert buffer.num_episodes >= 1

    def write_in_child():
        try:
            buffer.add_data(small)
        except BufferLockedError:
            buffer.close()
        else:
            raise AssertionError("the child could write")

    assert fork_while(read, read_in_child) == 0
    assert fork_while(read, write_in_child) == 0
    assert fork_while(insert, write_in_child) == 0
    buffer.add_data(small)  # the parent still may


def test_a_column_is_read_while_it_is_written_all_the_time(tmp_path):
    """Each insert overwrites a part of what is read, of which only that part is read again."""
    spec = {"number": {"shape": (5000,), "dtype": np.int64}}
    capacity = 2000
    writer = OnlineBuffer(tmp_path, spec, capacity, output="numpy")
    reader = OnlineBuffer(tmp_path, output="numpy")
    stop = threading.Event()

    def insert(numbers):
        data = make_episodes([len(numbers)], {}, np.random.default_rng(0))
        rows = np.broadcast_to(np.array(numbers)[:, None], (len(numbers), 5000))
        writer.add_data(data | {"number": rows})

    def keep_inserting():
        newest = capacity
        while not stop.is_set():
            insert([newest])
            newest += 1
            time.sleep(0.001)

    insert(range(capacity))
    thread = threading.Thread(target=keep_inserting)
    thread.start()
    try:
        for _ in range(5):
            rows = reader.get_data_by_key("number")
            assert (rows == rows[:, :1]).all()
            assert sorted(rows[:, 0]) == list(range(rows[:, 0].min(), rows[:, 0].min() + capacity))
    finally:
        stop.set()
        thread.join()


WAITING = """
import sys
from fastbuffer import OnlineBuffer

print("waiting", flush=True)
try:
    OnlineBuffer(sys.argv[1], {"x": {"shape": (), "dtype": "f4"}}, 4)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_waiting_for_another_process_that_makes_the_buffer_can_be_interrupted(tmp_path):
    lock = tmp_path / "_lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with start_python(WAITING, tmp_path) as process:
            assert process.stdout.readline() == "waiting\n"
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=10)[0] == "interrupted\n"
    assert list(tmp_path.iterdir()) == [lock]


def test_flushing_does_not_take_the_lock(pair, tmp_path):
    with start_python(WRITER, tmp_path) as other:
        assert ask(other, "4") == "added"
        with pytest.raises(BufferLockedError):
            pair.buffer.add_data(make_episodes([2], SPEC, np.random.default_rng(0), FPS))
        other.stdin.close()
    pair.buffer.flush()
    with start_python(WRITER, tmp_path) as other:
        assert ask(other, "4") == "added"
        other.stdin.close()


BUSY_PARENT = """
import os, sys, threading, time
import numpy as np
from fastbuffer import OnlineBuffer
from helpers import SPEC, make_episodes

buffer = OnlineBuffer(sys.argv[1])
data = make_episodes([9], SPEC, np.random.default_rng(0), 10)

def insert():
    while True:
        buffer.add_data({key: value.copy() for key, value in data.items()})

threading.Thread(target=insert, daemon=True).start()
time.sleep(0.1)
children = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(60)
        os._exit(0)
    children.append(child)
time.sleep(0.2)
print(*children, flush=True)
time.sleep(60)
"""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_forked_during_inserts_do_not_keep_the_lock_of_their_dead_parent(pair, tmp_path):
    with start_python(BUSY_PARENT, tmp_path) as parent:
        children = [int(child) for child in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 20
    try:
        before = pair.buffer.get_data_by_key("index").max()
        pair.buffer.add_data(make_episodes([2], SPEC, np.random.default_rng(0), FPS))
        assert pair.buffer.get_data_by_key("index").max() == before + 2
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


HOOKED = """
import gc, os, signal, sys, threading, time

def hook():
    signal.alarm(20)  # ends whoever waits for ever, parent or child
    use()

os.register_at_fork(**{sys.argv[1]: hook})  # before fastbuffer, so called while it has the lock

import numpy as np
from fastbuffer import OnlineBuffer
from helpers import SPEC, make_episodes

gc.disable()
data = make_episodes([2], SPEC, np.random.default_rng(0), 10)
buffer = OnlineBuffer(sys.argv[2], output="numpy")
buffer.add_data(data)
if sys.argv[3] == "collect":
    cycle = [buffer]
    cycle.append(cycle)
    del buffer, cycle
    use = gc.collect
elif sys.argv[3] == "drop":
    # Lets a thread drop the last reference, which it does with the interpreter's lock.
    kept = [buffer]
    del buffer
    begin, threads = threading.Event(), []
    dropping = threading.Thread(target=lambda: (begin.wait(), kept.clear()))
    dropping.start()
    use = lambda: (begin.set(), time.sleep(0.3))
else:
    use = {"insert": lambda: buffer.add_data(data), "close": buffer.close}[sys.argv[3]]
child = os.fork()
if child == 0:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    ("when", "what"),
    [
        *itertools.product(["before", "after_in_parent"], ["insert", "close", "collect", "drop"]),
        ("after_in_child", "collect"),
        ("after_in_child", "close"),
    ],
)
def test_hooks_of_a_fork_may_use_and_drop_buffers(pair, tmp_path, when, what):
    """A fork waits for inserts, but neither for its own thread nor for the garbage collector."""
    with start_python(HOOKED, when, tmp_path, what) as process:
        output, errors = process.communicate(timeout=60)
    assert output == "0\n", errors
    # Nobody keeps the lock, and nothing that was acknowledged is missing.
    data = make_episodes([2], SPEC, np.random.default_rng(0), FPS)
    inserts = 1 + (what == "insert")
    for _ in range(inserts):
        pair.model.add_data({key: value.copy() for key, value in data.items()})
    pair.check()
    pair.add(data)
    pair.check()
