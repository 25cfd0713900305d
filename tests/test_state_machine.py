"""Hypothesis drives a buffer and its plain-NumPy model side by side and compares them bit for bit.

Specs, episode lengths, timestamps, windows and tolerances are random; capacities are so small that
the buffer wraps many times; the directory is reopened at random.
"""

import shutil
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fastbuffer import OnlineBuffer
from helpers import DTYPES, Pair, check_columns, check_read, make_episodes
from model import COLUMNS

KEYS = ["done", "observation.image", "a/b", "../x", ".hidden", "100%", "é ß"]
FIELD = st.fixed_dictionaries(
    {
        "shape": st.sampled_from([(), (), (1,), (3,), (2, 3), (3, 4, 3)]),
        "dtype": st.sampled_from(DTYPES),
    }
)
SPECS = st.dictionaries(st.sampled_from(KEYS), FIELD, max_size=3)
SEEDS = st.integers(0, 2**32 - 1)

# Timestamps of one episode of n frames, given in units of one frame's duration.
TIMES = {
    "uniform": lambda rng, n: np.arange(n),
    "jittered": lambda rng, n: np.arange(n) + rng.uniform(-0.2, 0.2, n),
    "very jittered": lambda rng, n: np.arange(n) + rng.uniform(-2, 2, n),
    "unsorted": lambda rng, n: rng.permutation(n),
    "reversed": lambda rng, n: -np.arange(n),
    "duplicated": lambda rng, n: np.sort(rng.integers(0, n, n)),
    "duplicated, unsorted": lambda rng, n: rng.integers(0, n, n),
    "constant": lambda rng, n: np.zeros(n),
    "gapped": lambda rng, n: np.cumsum(rng.integers(1, 4, n)),
    "signed zeros": lambda rng, n: rng.choice([0.0, -0.0], n),
    "huge": lambda rng, n: rng.uniform(-1e307, 1e307, n),
    "tiny": lambda rng, n: rng.integers(-3, 3, n) * 5e-324,
}

# How to spoil an `add_data` call that was valid.
REFUSED = {
    "missing": lambda data, key: {k: v for k, v in data.items() if k != key},
    "shorter": lambda data, key: data | {key: data[key][:-1]},
    "trailing shape": lambda data, key: data | {key: np.stack([data[key]] * 2, axis=1)},
    "dtype": lambda data, key: data | {key: np.zeros(data[key].shape, "datetime64[s]")},
    "first index": lambda data, key: data | {"index": data["index"] + 1},
    "first episode": lambda data, key: data | {"episode_index": data["episode_index"] - 1},
    "NaN": lambda data, key: data | {"timestamp": data["timestamp"] * np.nan},
}


@st.composite
def windows(draw, keys, fps):
    """Deltas for some of the keys: whole frames, odd times, far away, in any order."""
    delta = st.one_of(
        st.integers(-5, 5).map(lambda frames: frames / fps),
        st.floats(-2, 2).map(lambda frames: frames / fps),
        st.sampled_from([0.0, -0.0, 5e-324, 1e300, -1.7e308]),
    )
    return draw(st.dictionaries(st.sampled_from(keys), st.lists(delta, max_size=5), max_size=3))


class BufferMachine(RuleBasedStateMachine):
    """Every rule does the same to the buffer and to the model."""

    @initialize(
        spec=SPECS,
        capacity=st.integers(1, 12),
        fps=st.sampled_from([10, 1, 30.0, 29.97, 9_000, None]),
        data=st.data(),
    )
    def create(self, spec, capacity, fps, data):
        self.spec, self.capacity, self.fps = spec, capacity, fps
        self.keys = [*COLUMNS, *spec]
        deltas = self.draw_deltas(data)
        self.directory = tempfile.mkdtemp(prefix="fastbuffer-")
        self.pair = Pair(self.directory, spec, capacity, fps, deltas)
        # Opened once and never again: it has to follow what the others write.
        self.reader = OnlineBuffer(self.directory, output="numpy")

    def teardown(self):
        if hasattr(self, "directory"):
            self.pair.buffer.close()
            self.reader.close()
            shutil.rmtree(self.directory)

    def draw_deltas(self, data):
        return data.draw(windows(self.keys, self.fps)) if self.fps else None

    def episodes(self, lengths, kind, starts_at_0, seed):
        rng = np.random.default_rng(seed)
        fps = self.fps or 10
        data = make_episodes(lengths, self.spec, rng, fps)
        times = [TIMES[kind](rng, n) / fps for n in lengths]
        if not starts_at_0:
            times = [t + k for k, t in enumerate(times)]
        return data | {"timestamp": np.concatenate([np.zeros(0), *times])}

    @rule(
        lengths=st.lists(st.integers(1, 9), max_size=4),
        kind=st.sampled_from(sorted(TIMES)),
        starts_at_0=st.booleans(),
        seed=SEEDS,
    )
    def add(self, lengths, kind, starts_at_0, seed):
        self.pair.add(self.episodes(lengths, kind, starts_at_0, seed))

    @rule(spoil=st.sampled_from(sorted(REFUSED)), data=st.data(), seed=SEEDS)
    def add_is_refused(self, spoil, data, seed):
        good = self.episodes([2, 3], "uniform", True, seed)
        bad = REFUSED[spoil](good, data.draw(st.sampled_from(self.keys)))
        for side in (self.pair.model, self.pair.buffer):
            with pytest.raises(ValueError, match=r"."):
                side.add_data(bad)

    @rule(data=st.data(), repeat_arguments=st.booleans())
    def reopen(self, data, repeat_arguments):
        deltas = self.draw_deltas(data)
        self.pair.buffer.close()
        arguments = (self.spec, self.capacity, self.fps) if repeat_arguments else ()
        self.pair.buffer = OnlineBuffer(
            self.directory, *arguments, delta_timestamps=deltas, output="numpy"
        )
        self.pair.model.open(self.fps, deltas)

    @rule(data=st.data())
    def set_deltas(self, data):
        self.pair.set_deltas(self.draw_deltas(data))

    @rule(frames=st.sampled_from([0, 1e-3, 0.5, 1.0, 2.5, np.inf]))
    def set_tolerance(self, frames):
        self.pair.set_tolerance(frames / (self.fps or 10))

    @rule()
    def read_every_item(self):
        for i in range(-self.pair.model.num_frames, self.pair.model.num_frames):
            check_read(self.pair.buffer, self.pair.model, i)

    @rule(data=st.data())
    def read_batches(self, data):
        n = self.pair.model.num_frames
        some = data.draw(st.lists(st.integers(-n, n - 1), max_size=20)) if n else []
        check_read(self.pair.buffer, self.pair.model, some)
        check_read(self.pair.buffer, self.pair.model, list(range(n)))

    @rule(beyond=st.integers(0, 3))
    def read_out_of_range(self, beyond):
        n = self.pair.model.num_frames
        for index in (n + beyond, -n - 1 - beyond):
            for refused in (index, [index], [index, index]):
                with pytest.raises(IndexError, match=str(index)):
                    self.pair.buffer[refused]

    @invariant()
    def counts_and_columns_agree(self):
        check_columns(self.pair.buffer, self.pair.model)
        check_columns(self.reader, self.pair.model)

    @invariant()
    def the_newest_and_oldest_item_agree(self):
        model = self.pair.model
        for number in model.numbers and (min(model.numbers), max(model.numbers)):
            check_read(self.pair.buffer, model, model.numbers.index(number))


TestBufferMachine = BufferMachine.TestCase
TestBufferMachine.settings = settings(
    max_examples=600,
    stateful_step_count=30,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
