"""PrioritizedSampler against a list of priorities, and what becomes of them on the disk."""

import os
import shutil
import tempfile
import threading
import time
from textwrap import dedent

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fastbuffer import OnlineBuffer, PrioritizedSampler
from fastbuffer.verification import repair
from helpers import (
    assert_drawn_by,
    make_episodes,
    refused_with,
    run_python,
    start_python,
    to_numpy,
)

FILE = "_priorities"


def add(buffer, *lengths):
    buffer.add_data(make_episodes(lengths, {}, np.random.default_rng(0)))


def made(directory, capacity, *lengths):
    buffer = OnlineBuffer(directory, {}, capacity, 10, output="numpy")
    for length in lengths:
        add(buffer, length)
    return buffer


PRIORITY = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, 0.7, 1e-300, 1e300]))


class Priorities(RuleBasedStateMachine):
    """Two samplers of one directory, and a list with a priority for each frame ever added."""

    @initialize(capacity=st.integers(1, 24), alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]))
    def begin(self, capacity, alpha):
        self.directory = tempfile.mkdtemp()
        self.capacity = capacity
        self.alpha = alpha
        self.priorities = []
        self.given = [1.0]
        self.samplers = [None, None]
        self.drawn = [{}, {}]
        for which in (0, 1):
            self.open(which)

    def teardown(self):
        shutil.rmtree(self.directory)

    @property
    def live(self):
        """The numbers of the live frames, in slot order."""
        count = len(self.priorities)
        frames = range(max(0, count - self.capacity), count)
        return sorted(frames, key=lambda frame: frame % self.capacity)

    def powers(self):
        with np.errstate(over="ignore", under="ignore"):
            priorities = np.array([self.priorities[frame] for frame in self.live])
            powers = np.minimum(priorities**self.alpha, 1e200)
        return np.where(priorities > 0, np.maximum(powers, np.finfo(float).tiny), 0)

    @rule(which=st.sampled_from([0, 1]))
    def open(self, which):
        buffer = made(self.directory, self.capacity)
        self.samplers[which] = PrioritizedSampler(buffer, self.alpha, seed=which)
        self.drawn[which] = {}

    @rule(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=3))
    def add_frames(self, lengths):
        add(self.samplers[0]._buffer, *lengths)
        self.priorities += [max(self.given)] * sum(lengths)

    @rule(which=st.sampled_from([0, 1]), count=st.integers(1, 20), whole=st.booleans())
    def draw(self, which, count, whole):
        sampler = self.samplers[which]
        powers = self.powers()
        if not powers.any():
            refused_with("buffer: expected at least one|above 0", sampler.sample, count)
            return
        if whole:
            positions = next(iter(sampler.batches(count)))
        else:
            positions, weights = sampler.sample(count)
            assert weights.dtype == np.float32
            with np.errstate(over="ignore"):
                times = powers[positions] / powers[powers > 0].min()
            np.testing.assert_allclose(weights, times**-sampler.beta, rtol=1e-5, atol=1e-37)
        assert (powers[positions] > 0).all()
        for position in [] if whole else positions:
            frame = self.live[position]
            self.drawn[which][frame % self.capacity] = frame

    @rule(which=st.sampled_from([0, 1]), data=st.data())
    def update(self, which, data):
        positions = st.integers(-len(self.live), len(self.live) - 1)
        count = data.draw(st.integers(0, 8)) if self.live else 0
        positions = [data.draw(positions) for _ in range(count)]
        numbers = [data.draw(PRIORITY) for _ in range(count)]
        self.samplers[which].update(positions, numbers)
        for position, number in zip(positions, numbers, strict=True):
            frame = self.live[position]
            if self.drawn[which].get(frame % self.capacity, frame) == frame:
                self.priorities[frame] = number
                self.given.append(number)
        for position in positions:
            self.drawn[which].pop(self.live[position] % self.capacity, None)

    @invariant()
    def all_agree(self):
        if not hasattr(self, "samplers"):
            return
        expected = [self.priorities[frame] for frame in self.live]
        for sampler in self.samplers:
            np.testing.assert_array_equal(sampler.priorities(), expected)


TestPriorities = Priorities.TestCase
TestPriorities.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("lengths", [(7,), (20, 15), (30, 30, 25)], ids=str)
@pytest.mark.parametrize("alpha", [0, 0.6, 1])
def test_draws_are_in_proportion_to_powers_of_priorities(tmp_path, lengths, alpha):
    buffer = made(tmp_path, 40, *lengths)
    sampler = PrioritizedSampler(buffer, alpha)
    priorities = np.random.default_rng(0).choice([0, 0.01, 0.5, 1, 7], len(buffer))
    sampler.update(range(len(buffer)), priorities)
    assert_drawn_by(sampler.sample(30_000)[0], np.where(priorities > 0, priorities**alpha, 0))
    epoch = PrioritizedSampler(buffer, alpha, num_samples=30_000)
    assert_drawn_by(np.array(list(epoch)), np.where(priorities > 0, priorities**alpha, 0))


def test_a_seed_draws_the_same_for_ever(tmp_path):
    sampler = PrioritizedSampler(made(tmp_path, 40, 30), seed=5)
    sampler.update(range(30), np.arange(30))
    assert sampler.sample(8)[0].tolist() == FROZEN
    again = PrioritizedSampler(OnlineBuffer(tmp_path), seed=5)
    assert again.sample(8)[0].tolist() == FROZEN
    assert again.sample(8)[0].tolist() == sampler.sample(8)[0].tolist() != FROZEN


#: What came out when this was written.
FROZEN = [16, 9, 13, 5, 28, 18, 26, 26]


def test_a_resumed_sampler_draws_what_the_first_would_have(tmp_path):
    buffer = made(tmp_path, 40, 30)
    sampler, resumed = (PrioritizedSampler(buffer, seed=2, num_samples=50) for _ in range(2))
    sampler.sample(7)
    positions = iter(sampler)
    for _ in range(20):
        next(positions)
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.sample(9)[0].tolist() == sampler.sample(9)[0].tolist()
    assert list(resumed) == list(positions)
    refused_with("state: expected the key sampled", resumed.load_state_dict, {"epoch": 0})


def test_priorities_survive_reopening(tmp_path):
    buffer = made(tmp_path, 10, 15)
    sampler = PrioritizedSampler(buffer, seed=1)
    numbers = np.array([0.7, 3, 0.1, 0, 0.7, 9, 1e-9, 2, 2, 2])
    sampler.update(range(10), numbers)
    before = sampler.sample(100)
    buffer.close()
    reopened = PrioritizedSampler(OnlineBuffer(tmp_path, output="numpy"), seed=1)
    assert reopened.priorities().tolist() == numbers.tolist()
    assert reopened.priorities([0, -2]).tolist() == [0.7, 2]
    for ours, theirs in zip(reopened.sample(100), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    add(reopened._buffer, 3)
    assert reopened.priorities()[5:8].tolist() == [9, 9, 9]


def test_frames_added_without_a_sampler_get_the_largest(tmp_path):
    buffer = made(tmp_path, 10, 4)
    PrioritizedSampler(buffer).update([0, 1], [5, 2])
    add(buffer, 3)
    assert PrioritizedSampler(buffer).priorities().tolist() == [5, 2, 1, 1, 5, 5, 5]


def test_an_update_for_a_frame_that_is_gone_is_left_out_once(tmp_path):
    buffer = made(tmp_path, 4, 4)
    sampler = PrioritizedSampler(buffer)
    sampler.update(range(4), [0, 1, 0, 0])
    drawn, _ = sampler.sample(2)
    assert drawn.tolist() == [1, 1]
    add(buffer, 3)
    sampler.update([*drawn, 0], [0.5, 0.5, 0.25])
    assert sampler.priorities().tolist() == [0.25, 1, 1, 0]
    sampler.update([1], [0.5])
    assert sampler.priorities().tolist() == [0.25, 0.5, 1, 0]


def test_new_frames_can_be_given_priorities(tmp_path):
    buffer = made(tmp_path, 8, 8)
    sampler = PrioritizedSampler(buffer)
    drawn, _ = sampler.sample(200)
    sampler.update(drawn, np.ones(200))
    add(buffer, 4)
    sampler.update([0, 1, 2, 3], [7, 7, 7, 7])
    assert sampler.priorities().tolist() == [7, 7, 7, 7, 1, 1, 1, 1]


def test_what_another_sampler_changes_meanwhile_is_seen(tmp_path):
    count = 300_000
    buffer = made(tmp_path, count, count)
    drawing, changing = (PrioritizedSampler(buffer) for _ in range(2))
    everything, numbers = np.arange(count), np.random.default_rng(0).random(count)
    first, large = everything[:1], np.array([1e30])
    for attempt in range(20):
        changing.update(everything, numbers)
        reading = threading.Thread(target=drawing.sample, args=(1,))
        reading.start()
        time.sleep(attempt / 4_000)
        changing.update(first, large)
        reading.join()
        assert set(drawing.sample(50)[0]) == {0}


def splitmix(state):
    mask = 2**64 - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        yield mixed ^ (mixed >> 31)


def xoshiro(seed):
    """The generator xoshiro256++ by D. Blackman and S. Vigna, seeded by splitmix64."""
    mask = 2**64 - 1
    words = splitmix(seed)
    s = [next(words) for _ in range(4)]
    rotated = lambda x, k: ((x << k) | (x >> (64 - k))) & mask  # noqa: E731
    while True:
        yield (rotated((s[0] + s[3]) & mask, 23) + s[0]) & mask
        t = (s[1] << 17) & mask
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotated(s[3], 45)


def shares(seed, epoch, number, count):
    """The numbers from 0 to below 1 that a sampler draws by."""
    for part in (epoch, number):
        seed = next(xoshiro(seed)) ^ part
    bits = xoshiro(seed)
    return np.array([1 - ((next(bits) >> 11) + 1) / 2**53 for _ in range(count)])


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
def test_draws_are_those_of_a_cumulative_sum(tmp_path, seed):
    buffer = made(tmp_path, 3000, 2900)
    sampler = PrioritizedSampler(buffer, alpha=1, seed=seed)
    priorities = np.random.default_rng(0).integers(0, 50, 2900)
    sampler.update(range(2900), priorities)
    for drawn in (0, 500):
        numbers = shares(seed, 2**64 - 1, drawn, 500) * priorities.sum()
        positions, weights = sampler.sample(500)
        expected = np.searchsorted(np.cumsum(priorities), numbers, "right")
        assert positions.tolist() == expected.tolist()
        likelihoods = priorities[positions] / priorities[priorities > 0].min()
        np.testing.assert_allclose(weights, likelihoods**-0.4, rtol=1e-6)
        assert weights.max() <= 1


def test_processes_share_priorities(tmp_path):
    buffer = made(tmp_path, 10, 6)
    sampler = PrioritizedSampler(buffer)
    sampler.update([1], [4])
    child = dedent("""
        import sys
        from fastbuffer import OnlineBuffer, PrioritizedSampler
        sampler = PrioritizedSampler(OnlineBuffer(sys.argv[1]))
        assert sampler.priorities().tolist() == [1, 4, 1, 1, 1, 1]
        sampler.update([0, 2], [8, 0])
    """)
    run_python(child, tmp_path)
    assert sampler.priorities().tolist() == [8, 4, 0, 1, 1, 1]
    assert_drawn_by(sampler.sample(20_000)[0], np.array([8, 4, 0, 1, 1, 1]) ** 0.6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_goes_on(tmp_path):
    buffer = made(tmp_path, 10, 6)
    sampler = PrioritizedSampler(buffer)
    sampler.update([1], [4])
    expected = PrioritizedSampler(buffer).sample(20)[0].tolist()
    child = os.fork()
    if child == 0:
        same = sampler.sample(20)[0].tolist() == expected
        sampler.update([0], [8])
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sampler.priorities()[:2].tolist() == [8, 4]


def test_a_killed_process_leaves_whole_priorities(tmp_path):
    made(tmp_path, 1000, 900)
    child = dedent("""
        import os, sys, threading, numpy as np
        from fastbuffer import OnlineBuffer, PrioritizedSampler
        buffer = OnlineBuffer(sys.argv[1], output="numpy")
        sampler = PrioritizedSampler(buffer)
        turns = 0
        while True:
            turns += 1
            if turns == 3:
                print("turn", flush=True)
                kill = lambda: os.kill(os.getpid(), 9)
                threading.Timer(float(sys.argv[2]), kill).start()
            for number in (2.5, 1e-3):
                sampler.update(range(len(buffer)), np.full(len(buffer), number))
            zeros = np.zeros(7, np.int64)
            buffer.add_data({"index": np.arange(7), "frame_index": zeros,
                             "episode_index": zeros, "timestamp": np.arange(7) / 10})
    """)
    for wait in (0.001, 0.01, 0.0537, 0.1):
        with start_python(child, tmp_path, wait) as killed:
            assert killed.communicate(timeout=60)[0].startswith("turn")
        assert killed.returncode == -9
        sampler = PrioritizedSampler(OnlineBuffer(tmp_path))
        assert set(sampler.priorities()) <= {1.0, 2.5, 1e-3}
        assert len(sampler.sample(10)[0]) == 10


# What is refused


def test_what_cannot_be_a_priority_changes_nothing(tmp_path):
    sampler = PrioritizedSampler(made(tmp_path, 10, 6))
    sampler.update([0, 1], [0.7, 2])
    for said, indices, numbers in [
        (
            "priorities: expected finite numbers, none negative, got NaN at position 1",
            [0, 1],
            [3, np.nan],
        ),
        ("got inf at position 0", [0], [np.inf]),
        ("got -1 at position 1", [0, 1], [3, -1]),
        ("priorities: expected 2 numbers", [0, 1], [3]),
        ("priorities: expected 1 numbers", [0], [[3]]),
        ("priorities: expected 1 numbers", [0], ["a"]),
        ("priorities: expected 1 numbers", [0], [1j]),
    ]:
        refused_with(said, sampler.update, indices, numbers)
    for index in (6, -7):
        with pytest.raises(IndexError):
            sampler.update([0, index], [3, 3])
    with pytest.raises(TypeError, match="index"):
        sampler.update([0.5], [3])
    assert sampler.priorities().tolist() == [0.7, 2, 1, 1, 1, 1]


def test_what_a_sampler_cannot_be_given_is_refused(tmp_path):
    buffer = made(tmp_path, 10)
    sampler = PrioritizedSampler(buffer)
    refused_with("buffer: expected at least one live frame", sampler.sample, 1)
    refused_with("buffer: expected at least one live frame", list, sampler)
    assert sampler.sample(0)[0].tolist() == []
    add(buffer, 3)
    refused_with("batch_size: expected at least 0", sampler.sample, -1)
    sampler.update([0, 1, 2], [0, 0, 0])
    refused_with("priorities: expected one above 0", sampler.sample, 1)
    for name in ("alpha", "beta"):
        for value in (-1, np.nan, np.inf):
            refused_with(f"{name}: expected", PrioritizedSampler, buffer, **{name: value})
    for beta in (-0.5, 1.5):
        refused_with("beta: expected", setattr, sampler, "beta", beta)
    with pytest.raises(TypeError, match="buffer: expected an OnlineBuffer"):
        PrioritizedSampler(None)
    with pytest.raises(OSError, match='mode="a"'):
        PrioritizedSampler(OnlineBuffer(tmp_path, mode="r"))


def word(position, value):
    def damage(path):
        with path.open("r+b") as file:
            file.seek(8 * position)
            file.write(np.array([value]).tobytes())

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: os.truncate(path, 100), "expected 208 bytes, got 100"),
        (word(0, 5), "word 0: expected"),
        (word(1, 2), "word 1: expected 1, got 2"),
        (word(2, 11), "word 2: expected 10, got 11"),
        (word(4, 0.5), "the largest priority is 0.5"),
        (word(4, np.nan), "the largest priority is NaN"),
        (word(18, np.nan), "slot 2: expected a finite number"),
        (word(18, -1.0), "slot 2: expected a finite number"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage, said):
    buffer = made(tmp_path, 10, 6)
    PrioritizedSampler(buffer).update([0], [3])
    damage(tmp_path / FILE)
    refused_with(f"{FILE}.*{said}", PrioritizedSampler, buffer)
    assert [finding.file.name for finding in buffer.verify()] == [FILE]
    buffer.close()
    assert FILE in {finding.file.name for finding in repair(tmp_path)}
    buffer = OnlineBuffer(tmp_path)
    assert buffer.verify() == []
    assert PrioritizedSampler(buffer).priorities().tolist() == [1] * 6


def test_a_file_that_was_not_finished_is_made_anew(tmp_path):
    buffer = made(tmp_path, 10, 6)
    for content in (b"", bytes(5), bytes(100), bytes(26 * 8)):
        (tmp_path / FILE).write_bytes(content)
        assert buffer.verify() == []
        assert PrioritizedSampler(buffer).priorities().tolist() == [1] * 6


def test_priorities_of_frames_that_are_gone_are_not_kept_for_others(tmp_path):
    """As after a power failure that took the newest frames and not their priorities."""
    buffer = made(tmp_path, 10, 6)
    state = (tmp_path / "_state").read_bytes()
    add(buffer, 2)
    PrioritizedSampler(buffer).update(range(8), [2, 2, 2, 2, 2, 2, 0, 0])
    buffer.close()
    (tmp_path / "_state").write_bytes(state)
    buffer = OnlineBuffer(tmp_path)
    sampler = PrioritizedSampler(buffer)
    assert sampler.priorities().tolist() == [2] * 6
    add(buffer, 3)
    assert sampler.priorities().tolist() == [2] * 9


def test_a_file_in_its_place_is_noticed(tmp_path):
    buffer = made(tmp_path, 10, 6)
    sampler = PrioritizedSampler(buffer)
    (tmp_path / FILE).unlink()
    add(buffer, 1)
    with pytest.raises(FileNotFoundError):
        sampler.sample(1)
    PrioritizedSampler(buffer)
    assert len(sampler.sample(1)[0]) == 1


def test_old_priorities_do_not_come_to_a_new_buffer(tmp_path):
    (tmp_path / FILE).write_bytes(b"old")
    with pytest.raises(FileExistsError, match=FILE):
        made(tmp_path, 10)


# torch


def test_tensors_come_and_go(torch, tmp_path):
    made(tmp_path, 10, 6)
    buffer = OnlineBuffer(tmp_path, output="torch")
    sampler = PrioritizedSampler(buffer)
    indices, weights = sampler.sample(4)
    assert weights.dtype == torch.float32
    errors = torch.arange(4.0, requires_grad=True) + 1
    sampler.update(torch.from_numpy(indices), errors)
    expected = dict(zip(indices, range(1, 5), strict=True))
    assert sampler.priorities(indices).tolist() == [expected[index] for index in indices]


def test_a_loader_draws_by_priority(torch, tmp_path):
    made(tmp_path, 10, 6)
    buffer = OnlineBuffer(tmp_path, output="torch")
    sampler = PrioritizedSampler(buffer, num_samples=64)
    sampler.update(range(6), [0, 1, 0, 0, 1, 0])
    drawn = torch.cat([batch["frame_index"] for batch in buffer.loader(8, sampler=sampler)])
    assert set(to_numpy(drawn)) == {1, 4}
