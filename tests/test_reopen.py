"""Directories outlive objects: reopening ours, adopting NumPy's, and being read by plain NumPy."""

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from helpers import SPEC, Pair, assert_equal, check_columns, make_episodes, snapshot
from model import COLUMNS, Model

FPS = 10
CAPACITY = 12
DELTAS = {"action": [-0.1, 0.0, 0.1]}

# One `add_data` call per list of lengths, for every phase of filling.
PHASES = {
    "empty": [],
    "partly full": [[3, 4]],
    "one frame short": [[6], [5]],
    "exactly full": [[6], [6]],
    "full by one call": [[12]],
    "wrapped": [[7], [4, 6]],
    "wrapped, ending at the end": [[7], [5], [12]],
    "wrapped many times": [[11], [10], [9], [11], [8]],
}


def phases(function):
    return pytest.mark.parametrize("calls", PHASES.values(), ids=PHASES)(function)


def filled(directory, calls, spec=SPEC, capacity=CAPACITY, seed=0):
    """A pair after these calls."""
    pair = Pair(directory, spec, capacity, FPS, DELTAS if spec is SPEC else None)
    rng = np.random.default_rng(seed)
    for lengths in calls:
        pair.add(make_episodes(lengths, spec, rng, FPS))
    return pair


def reopen(pair, directory, *arguments):
    pair.buffer.close()
    deltas = pair.model.deltas or None
    pair.buffer = OnlineBuffer(directory, *arguments, delta_timestamps=deltas, output="numpy")


# Our own directories


@phases
@pytest.mark.parametrize("arguments", [(), (SPEC, CAPACITY, FPS), (None, CAPACITY)], ids=len)
def test_a_reopened_buffer_is_the_same(tmp_path, calls, arguments, rng):
    pair = filled(tmp_path, calls)
    reopen(pair, tmp_path, *arguments)
    assert pair.buffer.fps == FPS
    pair.check()
    pair.add(make_episodes([2, 5], SPEC, rng, FPS))
    pair.check()


def test_matching_arguments_may_be_written_differently(tmp_path):
    pair = filled(tmp_path, [[5]])
    spec = {
        key: {"shape": list(field["shape"]), "dtype": np.dtype(field["dtype"]).name}
        for key, field in reversed(SPEC.items())
    }
    reopen(pair, tmp_path, spec, np.int64(CAPACITY), float(FPS))
    pair.check()


CONTRADICTIONS = {
    "capacity": ({"buffer_capacity": 13}, ["buffer_capacity", "12", "13"]),
    "fps": ({"fps": 20}, ["fps", "10", "20"]),
    "dtype": (
        {"data_spec": SPEC | {"reward": {"shape": (), "dtype": np.float64}}},
        ["reward", "float32", "float64"],
    ),
    "shape": (
        {"data_spec": SPEC | {"action": {"shape": (7,), "dtype": np.float32}}},
        ["action", "2", "7"],
    ),
    "extra key": (
        {"data_spec": SPEC | {"novel": {"shape": (), "dtype": np.float32}}},
        ["novel"],
    ),
    "missing key": ({"data_spec": {k: SPEC[k] for k in SPEC if k != "done"}}, ["done"]),
    "no keys": ({"data_spec": {}}, ["action"]),
}


@pytest.mark.parametrize(
    ("arguments", "mentions"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys()
)
def test_a_contradicting_argument_is_refused(tmp_path, arguments, mentions):
    pair = filled(tmp_path, [[5]])
    pair.buffer.close()
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="stored") as raised:
        OnlineBuffer(tmp_path, **arguments)
    for part in mentions:
        assert part in str(raised.value)
    assert snapshot(tmp_path) == before
    reopen(pair, tmp_path)
    pair.check()


def test_fps_may_be_given_where_none_is_stored(tmp_path):
    Pair(tmp_path, SPEC, CAPACITY).buffer.close()
    buffer = OnlineBuffer(tmp_path, fps=20, delta_timestamps=DELTAS)
    assert (buffer.fps, buffer.tolerance_s) == (20, 1 / 20 - 1e-4)
    buffer.close()
    with OnlineBuffer(tmp_path) as again:
        assert again.fps is None
        with pytest.raises(ValueError, match="fps"):
            again.set_delta_timestamps(DELTAS)


def test_write_reopen_write_leaves_no_gap_and_repeats_no_number(tmp_path):
    pair = filled(tmp_path, [], spec={}, capacity=100)
    for lengths in ([3, 2], [4], [1, 1, 6], [5]):
        pair.add(make_episodes(lengths, {}, np.random.default_rng(0), FPS))
        reopen(pair, tmp_path)
        reopen(pair, tmp_path)
    lengths = [3, 2, 4, 1, 1, 6, 5]
    episodes = pair.buffer.get_data_by_key("episode_index")
    assert episodes.tolist() == np.repeat(range(7), lengths).tolist()
    assert pair.buffer.get_data_by_key("index").tolist() == list(range(22))
    assert pair.buffer.num_episodes == 7


def test_missing_parents_are_made_and_strings_are_paths(tmp_path, rng):
    pair = Pair(str(tmp_path / "a" / "b"), SPEC, CAPACITY)
    pair.add(make_episodes([3], SPEC, rng))
    pair.check()


def test_closing_gives_up_the_lock_and_nothing_else(tmp_path, rng):
    pair = filled(tmp_path, [[3]])
    with pair.buffer:
        pass
    pair.buffer.close()
    pair.check()
    with OnlineBuffer(tmp_path) as other:
        data = make_episodes([2], SPEC, rng, FPS)
        pair.model.add_data(data)
        other.add_data(data)
    pair.add(make_episodes([9], SPEC, rng, FPS))
    pair.check()


# Directories of plain memmaps, as the NumPy implementation writes them


class NumpyBuffer:
    """The insert of the NumPy implementation, on the files that it keeps."""

    def __init__(self, directory, spec, capacity):
        self.capacity = capacity
        columns = {key: (tuple(f["shape"]), np.dtype(f["dtype"])) for key, f in spec.items()}
        layout = {key: ((capacity, *shape), dtype) for key, (shape, dtype) in columns.items()}
        layout |= {key: ((capacity,), dtype) for key, (_, dtype) in COLUMNS.items()}
        self.keys = sorted(layout)
        layout |= {"_next_index": ((), np.int64), "_occupancy_mask": ((capacity,), bool)}
        directory.mkdir(parents=True, exist_ok=True)
        self.data = {
            key: np.memmap(directory / key, dtype, "w+", shape=shape)
            for key, (shape, dtype) in layout.items()
        }

    def add_data(self, data):
        n = len(data["index"])
        start = int(self.data["_next_index"])
        mask = self.data["_occupancy_mask"]
        if mask.any():
            for key in ("index", "episode_index"):
                data[key] = data[key] + self.data[key][start - 1] + 1
        surplus = max(0, n - (self.capacity - start))
        fitting = n - surplus
        for key in self.keys:
            self.data[key][start : start + fitting] = data[key][:fitting]
            self.data[key][:surplus] = data[key][fitting:]
        mask[start : start + fitting] = True
        self.data["_next_index"][...] = surplus if surplus else start + n
        for array in self.data.values():
            array.flush()


def numpy_directory(directory, calls):
    """A directory as the NumPy implementation leaves it, with the model of what is in it."""
    theirs, model = NumpyBuffer(directory, SPEC, CAPACITY), Model(SPEC, CAPACITY, FPS, DELTAS)
    rng = np.random.default_rng(0)
    for lengths in calls:
        data = make_episodes(lengths, SPEC, rng, FPS)
        model.add_data(data)
        theirs.add_data(data)
    return theirs, model


@phases
def test_a_numpy_directory_opens_with_the_right_frames_in_the_right_order(tmp_path, calls, rng):
    theirs, model = numpy_directory(tmp_path, calls)
    if calls in (PHASES["exactly full"], PHASES["full by one call"]):
        assert theirs.data["_next_index"] == CAPACITY
    pair = Pair(tmp_path, SPEC, CAPACITY, FPS, DELTAS)
    pair.model = model
    pair.check()
    for lengths in ([2, 3], [9]):
        pair.add(make_episodes(lengths, SPEC, rng, FPS))
        pair.check()
    reopen(pair, tmp_path)
    pair.check()


def test_a_numpy_directory_needs_its_spec_and_capacity(tmp_path):
    numpy_directory(tmp_path, [[3]])
    before = snapshot(tmp_path)
    for arguments in ((), (SPEC,), (None, CAPACITY)):
        with pytest.raises(ValueError, match=r"data_spec|buffer_capacity"):
            OnlineBuffer(tmp_path, *arguments)
    assert snapshot(tmp_path) == before


def resize(name, change):
    def spoil(directory):
        path = directory / name
        path.write_bytes(path.read_bytes()[:change] if change < 0 else path.read_bytes() * 2)

    return spoil


def overwrite(name, values):
    return lambda directory: (directory / name).write_bytes(np.array(values).tobytes())


SPOILT_NUMPY = {
    "column too short": ("image", resize("image", -1)),
    "column too long": ("action", resize("action", 2)),
    "index too short": ("index", resize("index", -8)),
    "mask too short": ("_occupancy_mask", resize("_occupancy_mask", -1)),
    "mask too long": ("_occupancy_mask", resize("_occupancy_mask", 2)),
    "next index too short": ("_next_index", resize("_next_index", -4)),
    "column missing": ("reward", lambda directory: (directory / "reward").unlink()),
    "next index negative": ("_next_index", overwrite("_next_index", -1)),
    "next index beyond": ("_next_index", overwrite("_next_index", CAPACITY + 1)),
    "next index huge": ("_next_index", overwrite("_next_index", 2**62)),
    "next index elsewhere": ("_occupancy_mask", overwrite("_next_index", 3)),
    "mask with holes": ("_occupancy_mask", overwrite("_occupancy_mask", [True, False] * 6)),
    "time that is none": ("timestamp", overwrite("timestamp", [0.0, np.nan] + [0.0] * 10)),
    "episodes that decrease": ("episode_index", overwrite("episode_index", [1, 0] * 6)),
}


@pytest.mark.parametrize(("name", "spoil"), SPOILT_NUMPY.values(), ids=SPOILT_NUMPY)
def test_a_numpy_directory_that_does_not_fit_is_refused(tmp_path, name, spoil):
    numpy_directory(tmp_path, [[3, 4]])
    spoil(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises((ValueError, OSError), match=name):
        OnlineBuffer(tmp_path, SPEC, CAPACITY, FPS)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("preallocate", [True, False])
def test_space_that_a_numpy_directory_lacks_is_reserved(tmp_path, preallocate):
    spec = {"image": {"shape": (1 << 20,), "dtype": np.uint8}}
    NumpyBuffer(tmp_path, spec, 4)  # whose files are holes
    OnlineBuffer(tmp_path, spec, 4, preallocate=preallocate).close()
    held = (tmp_path / "image").stat().st_blocks * 512
    assert (held >= 4 << 20) == preallocate


# Our files, read by plain NumPy


@phases
@pytest.mark.parametrize("adopted", [False, True])
def test_plain_memmaps_read_our_files(tmp_path, calls, adopted):
    if adopted:
        numpy_directory(tmp_path, [])
    pair = filled(tmp_path, calls)
    model = pair.model
    n = model.num_frames
    mask = np.memmap(tmp_path / "_occupancy_mask", bool, "r", shape=(CAPACITY,))
    assert mask.tolist() == [True] * n + [False] * (CAPACITY - n)
    next_index = np.memmap(tmp_path / "_next_index", np.int64, "r", shape=())
    assert 0 <= next_index <= CAPACITY
    assert next_index % CAPACITY == len(model.frames) % CAPACITY
    for key, (shape, dtype) in model.columns.items():
        column = np.memmap(tmp_path / key, dtype, "r", shape=(CAPACITY, *shape))
        assert_equal(np.array(column[mask]), model.get_data_by_key(key))


def test_keys_that_no_file_can_be_named_after_are_percent_encoded(tmp_path, rng):
    names = {"a/b": "a%2Fb", "../x": "%2E.%2Fx", "50%": "50%25", "n\0l": "n%00l", "a.b": "a.b"}
    spec = {key: {"shape": (2,), "dtype": np.float32} for key in names}
    pair = filled(tmp_path, [[3, 6], [5]], spec)
    for key, name in names.items():
        column = np.memmap(tmp_path / name, np.float32, "r", shape=(CAPACITY, 2))
        assert_equal(np.array(column), pair.model.get_data_by_key(key))


def test_a_reader_with_its_own_windows_does_not_disturb_the_writers(tmp_path):
    pair = filled(tmp_path, [[7], [4, 6]])
    other = OnlineBuffer(tmp_path, delta_timestamps={"reward": [0.2]}, output="numpy")
    assert other[0]["reward"].shape == (1,)
    check_columns(other, pair.model)
    pair.check()
