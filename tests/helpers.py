"""What several test files share: making data, comparing bit for bit, and driving the model."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastbuffer import OnlineBuffer, TimestampToleranceError
from model import Model

SPEC = {
    "action": {"shape": (2,), "dtype": np.float32},
    "done": {"shape": (), "dtype": bool},
    "image": {"shape": (4, 5, 3), "dtype": np.uint8},
    "reward": {"shape": (), "dtype": np.float32},
}

DTYPES = [
    *["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    *["float16", "float32", "float64", "complex64", "complex128"],
]


def random_values(rng, shape, dtype):
    """Any bit pattern that the dtype has, NaNs and infinities included."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape).copy()


def make_episodes(lengths, spec, rng, fps=10):
    """One `add_data` call's worth of whole episodes, each with timestamps from 0 on."""
    n = sum(lengths)
    frame_index = np.concatenate([np.arange(0), *map(np.arange, lengths)]).astype(np.int64)
    data = {key: random_values(rng, (n, *f["shape"]), f["dtype"]) for key, f in spec.items()}
    return data | {
        "index": np.arange(n),
        "frame_index": frame_index,
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "timestamp": frame_index / fps,
    }


def snapshot(directory):
    """Everything below a directory: the bytes of files, None for what is not a file."""
    paths = sorted(Path(directory).rglob("*"))
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else None for p in paths}


def to_numpy(value):
    """A tensor or array as an array; anything else is not what the buffer may return."""
    if type(value).__module__ == "torch":
        return value.numpy()
    assert isinstance(value, np.ndarray), f"{type(value)} is neither a tensor nor an array"
    return value


def equal(a, b):
    """Whether two tensors or arrays agree in dtype, shape and every bit."""
    a, b = to_numpy(a), to_numpy(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_equal(actual, expected):
    """Items, batches or single arrays agree bit for bit."""
    if not isinstance(expected, dict):
        assert equal(actual, expected), f"\n{actual!r}\nis not\n{expected!r}"
        return
    assert actual.keys() == expected.keys()
    for key in expected:
        assert equal(actual[key], expected[key]), f"{key}: {actual[key]!r} != {expected[key]!r}"


def assert_drawn_by(drawn, likelihoods):
    """Chi-square: the draws of positions have these likelihoods."""
    counts = np.bincount(drawn, minlength=len(likelihoods))
    expected = len(drawn) * likelihoods / likelihoods.sum()
    assert not counts[expected == 0].any()
    terms = (counts - expected)[expected > 0] ** 2 / expected[expected > 0]
    freedom = max(len(terms) - 1, 1)
    assert (terms.sum() - freedom) / np.sqrt(2 * freedom) < 5


class Pair:
    """A buffer and the model of it, fed with the same data and compared."""

    def __init__(self, directory, spec, capacity, fps=None, deltas=None, output="numpy"):
        self.model = Model(spec, capacity, fps, deltas)
        self.buffer = OnlineBuffer(directory, spec, capacity, fps, deltas, output=output)

    def add(self, data):
        self.model.add_data(data)  # first, since the buffer shifts data["index"] in place
        self.buffer.add_data(data)

    def set_deltas(self, deltas):
        self.model.deltas = deltas or {}
        self.buffer.set_delta_timestamps(deltas)

    def set_tolerance(self, tolerance_s):
        self.model.tolerance_s = tolerance_s
        self.buffer.tolerance_s = tolerance_s

    def check(self):
        """Counts, columns, every item and a batch of all of them."""
        check_columns(self.buffer, self.model)
        everything = list(range(self.model.num_frames))
        for i in everything:
            check_read(self.buffer, self.model, i)
        check_read(self.buffer, self.model, everything)


def check_columns(buffer, model):
    """The buffer has the model's counts and the model's columns."""
    assert (len(buffer), buffer.num_frames) == (model.num_frames, model.num_frames)
    assert buffer.num_episodes == model.num_episodes
    for key in model.columns:
        assert_equal(buffer.get_data_by_key(key), model.get_data_by_key(key))


def check_read(buffer, model, index):
    """An item or batch is the model's, or is refused where the model refuses it."""
    broken = model.broken_episodes([index] if isinstance(index, int) else index)
    if broken:
        with pytest.raises(TimestampToleranceError) as raised:
            buffer[index]
        assert int(re.search(r"episode\D*(\d+)", str(raised.value))[1]) in broken
    elif isinstance(index, int):
        assert_equal(buffer[index], model.item(index))
    else:
        assert_equal(buffer[index], model.batch(index))


def start_python(code, *arguments):
    """A Python process that runs `code`, to be talked to in lines."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    )


def run_python(code, *arguments):
    """Run `code` in a Python process of its own and give what it printed."""
    with start_python(code, *arguments) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def refused_with(said, function, *arguments, **options):
    """The call is a ValueError whose message matches `said`."""
    with pytest.raises(ValueError, match=f"(?s){said}"):
        function(*arguments, **options)
