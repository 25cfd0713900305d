"""Every refused call: its exception, its message, and that it leaves no trace.

Each row of a table is one call that must be refused, with the exception and what the message has to
mention: the key or argument, what was expected, and what came instead.
"""

import contextlib
import copy
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fastbuffer import OnlineBuffer, compute_sampler_weights
from helpers import Pair, assert_equal, make_episodes, snapshot
from test_sampler_weights import Offline

SPEC = {
    "state": {"shape": (3,), "dtype": np.float32},
    "count": {"shape": (), "dtype": np.int32},
    "done": {"shape": (), "dtype": bool},
}
VALID = {"data_spec": SPEC, "buffer_capacity": 8, "fps": 10}


def row(name, *values):
    """A row of a table, with a name to read in pytest's output."""
    return pytest.param(*values, id=name)


@pytest.fixture
def buffer(tmp_path):
    """A buffer that has wrapped, and whose lock is taken."""
    buffer = OnlineBuffer(tmp_path / "buffer", **VALID, output="numpy")
    for lengths in ([3, 4], [2, 3]):
        buffer.add_data(make_episodes(lengths, SPEC, np.random.default_rng(0)))
    return buffer


@contextlib.contextmanager
def refused(directory, error, mentions):
    """The block must raise exactly `error`, mention these and change no byte in `directory`."""
    before = snapshot(directory)
    with pytest.raises(error) as raised:
        yield
    assert snapshot(directory) == before
    assert type(raised.value) in (error if isinstance(error, tuple) else (error,))
    for part in mentions:
        assert part in str(raised.value), f"{part!r} is not in: {raised.value}"


# Creating


def key(name):
    return {"data_spec": {name: {"shape": (), "dtype": np.float32}}}


def shape(value):
    return {"data_spec": {"state": {"shape": value, "dtype": np.float32}}}


def dtype(value):
    return {"data_spec": {"state": {"shape": (3,), "dtype": value}}}


CREATION = [
    row("empty key", key(""), ValueError, ["data_spec", "empty"]),
    row("underscore key", key("_x"), ValueError, ["data_spec", "_x", "begin"]),
    row("long key", key("k" * 300), ValueError, ["data_spec", "kkk", "255"]),
    row("long encoded key", key("/" * 100), ValueError, ["data_spec", "///", "255"]),
    row("int key", key(7), TypeError, ["data_spec", "str", "int"]),
    *(
        row(f"key {name}", key(name), ValueError, [name])
        for name in ("index", "frame_index", "episode_index", "timestamp")
    ),
    row("object", dtype(object), ValueError, ["state", "object"]),
    row("string", dtype("U5"), ValueError, ["state", "U5"]),
    row("bytes", dtype("S5"), ValueError, ["state", "S5"]),
    row("datetime", dtype("datetime64[s]"), ValueError, ["state", "datetime64"]),
    row("timedelta", dtype("timedelta64[s]"), ValueError, ["state", "timedelta64"]),
    row("big-endian", dtype(">f4"), ValueError, ["state", ">f4"]),
    row("structured", dtype([("a", "f4")]), ValueError, ["state", "f4"]),
    row("subarray dtype", dtype(("f4", (2,))), ValueError, ["state", "f4"]),
    row("long double", dtype(np.longdouble), ValueError, ["state", str(np.dtype(np.longdouble))]),
    row("no dtype", dtype("nonsense"), (TypeError, ValueError), ["state", "nonsense"]),
    row("dtype None", dtype(None), ValueError, ["state", "dtype", "None"]),
    row("0-d shape", shape(np.array(3)), TypeError, ["state", "shape", "array(3)"]),
    row("2-d shape", shape(np.array([[2, 3]])), TypeError, ["state", "shape", "[2, 3]"]),
    row("shape of arrays", shape((np.array([3]),)), TypeError, ["state", "shape", "int"]),
    row("31 dimensions", shape((1,) * 31), ValueError, ["state", "shape", "30", "31"]),
    row("surrogate key", key("\ud800"), ValueError, ["data_spec", "Unicode", "ud800"]),
    row("zero-size shape", shape((3, 0)), ValueError, ["state", "shape", "0"]),
    row("negative shape", shape((-1,)), ValueError, ["state", "shape", "-1"]),
    row("float shape", shape((2.0,)), TypeError, ["state", "shape", "float"]),
    row("bool shape", shape((True,)), TypeError, ["state", "shape", "bool"]),
    row("str shape", shape("12"), TypeError, ["state", "shape", "str"]),
    row("huge shape", shape((2**40, 2**40)), ValueError, ["state"]),
    row("beyond 64 bits", shape((2**70,)), ValueError, ["state"]),
    row("no shape", {"data_spec": {"a": {"dtype": bool}}}, ValueError, ["'a'", "shape"]),
    row("no dtype entry", {"data_spec": {"a": {"shape": ()}}}, ValueError, ["'a'", "dtype"]),
    row("entry not a mapping", {"data_spec": {"a": 3}}, TypeError, ["'a'", "int"]),
    row("spec not a mapping", {"data_spec": [1]}, TypeError, ["data_spec", "list"]),
    row("spec missing", {"data_spec": None}, ValueError, ["data_spec", "buffer_capacity"]),
    row("capacity missing", {"buffer_capacity": None}, ValueError, ["buffer_capacity"]),
    row("capacity 0", {"buffer_capacity": 0}, ValueError, ["buffer_capacity", "1", "0"]),
    row("capacity -3", {"buffer_capacity": -3}, ValueError, ["buffer_capacity", "-3"]),
    row("capacity 8.0", {"buffer_capacity": 8.0}, TypeError, ["buffer_capacity", "int", "float"]),
    row("capacity True", {"buffer_capacity": True}, TypeError, ["buffer_capacity", "int", "bool"]),
    row(
        "capacity array", {"buffer_capacity": np.array([5])}, TypeError, ["buffer_capacity", "int"]
    ),
    row("capacity str", {"buffer_capacity": "8"}, TypeError, ["buffer_capacity", "int", "str"]),
    row(
        "capacity * item > 64 bits", {"buffer_capacity": 2**62}, ValueError, ["4611686018427387904"]
    ),
    row("capacity > 64 bits", {"buffer_capacity": 2**70}, ValueError, ["buffer_capacity"]),
    row("fps 0", {"fps": 0}, ValueError, ["fps", "0"]),
    row("fps -1", {"fps": -1.5}, ValueError, ["fps", "-1.5"]),
    row("fps NaN", {"fps": float("nan")}, ValueError, ["fps", "NaN"]),
    row("fps inf", {"fps": float("inf")}, ValueError, ["fps", "inf"]),
    row("fps 10,000", {"fps": 10_000}, ValueError, ["fps", "10000"]),
    row("fps str", {"fps": "30"}, TypeError, ["fps", "str"]),
    row("fps bool", {"fps": True}, TypeError, ["fps", "bool"]),
    row("output array", {"output": np.zeros(2)}, ValueError, ["output", "numpy", "torch"]),
    row("output", {"output": "jax"}, ValueError, ["output", "jax", "numpy", "torch"]),
    row(
        "deltas without fps", {"fps": None, "delta_timestamps": {"state": [0]}}, ValueError, ["fps"]
    ),
    row("deltas of no key", {"delta_timestamps": {"stat": [0]}}, ValueError, ["stat", "state"]),
]


@pytest.mark.parametrize(("arguments", "error", "mentions"), CREATION)
def test_creation_is_refused_and_makes_nothing(tmp_path, arguments, error, mentions):
    with refused(tmp_path, error, mentions):
        OnlineBuffer(tmp_path / "buffer", **(VALID | arguments))


def test_write_dir_is_of_a_wrong_type(tmp_path):
    with refused(tmp_path, TypeError, ["write_dir", "int"]):
        OnlineBuffer(5, **VALID)


@pytest.mark.parametrize("arguments", [VALID, {}], ids=["create", "open"])
def test_write_dir_is_a_file(tmp_path, arguments):
    (tmp_path / "file").write_text("mine")
    with refused(tmp_path, NotADirectoryError, [str(tmp_path / "file")]):
        OnlineBuffer(tmp_path / "file", **arguments)


@pytest.mark.parametrize("exists", [True, False])
def test_there_is_no_buffer_to_open(tmp_path, exists):
    if exists:
        (tmp_path / "buffer").mkdir()
    with refused(tmp_path, ValueError, ["data_spec", "buffer_capacity", str(tmp_path)]):
        OnlineBuffer(tmp_path / "buffer")


# Directories without write permission


@contextlib.contextmanager
def as_nobody():
    """Run the block as a user who, unlike root, is bound by permissions."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(65534)
    except OSError as error:
        pytest.skip(f"root that may not become another user: {error}")
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_dir():
    """A directory that every user may reach, unlike those of tmp_path."""
    directory = Path(tempfile.mkdtemp(prefix="fastbuffer-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def make_read_only(directory):
    for path in directory.rglob("*"):
        path.chmod(0o444)
    directory.chmod(0o555)


@pytest.mark.parametrize("name", ["", "buffer", "deeper/buffer"])
def test_a_directory_without_write_permission_is_a_permission_error(open_dir, name):
    open_dir.chmod(0o555)
    with as_nobody(), refused(open_dir, PermissionError, [str(open_dir)]):
        OnlineBuffer(open_dir / name, **VALID)
    open_dir.chmod(0o755)


def test_a_read_only_directory_opens_and_samples_but_takes_nothing(open_dir, rng):
    pair = Pair(open_dir / "buffer", SPEC, 8, 10, {"state": [-0.1, 0]})
    pair.add(make_episodes([3, 7], SPEC, rng))
    pair.buffer.close()
    make_read_only(open_dir / "buffer")
    with as_nobody():
        deltas = pair.model.deltas
        pair.buffer = OnlineBuffer(open_dir / "buffer", delta_timestamps=deltas, output="numpy")
        pair.check()
        data = make_episodes([3], SPEC, rng)
        with refused(open_dir, PermissionError, [str(open_dir / "buffer")]):
            pair.buffer.add_data(data)
        pair.check()
    (open_dir / "buffer").chmod(0o755)


# Adding


def put(key, value):
    """Replace one key's array; `value` is the new one or makes it from the old one."""
    return lambda data: data | {key: value(data[key]) if callable(value) else value}


def at(position, value):
    """A change of one element."""

    def change(array):
        array = array.copy()
        array[position] = value
        return array

    return change


ADDING = [
    row("missing key", lambda data: {k: data[k] for k in data if k != "state"}, ["state"]),
    row(
        "missing column",
        lambda data: {k: data[k] for k in data if k != "frame_index"},
        ["frame_index"],
    ),
    row("shorter", put("count", lambda a: a[:-1]), ["count", "5", "4"]),
    row("longer", put("timestamp", lambda a: np.tile(a, 2)), ["timestamp", "5", "10"]),
    row("trailing shape", put("state", lambda a: a[:, :2]), ["state", "3", "2"]),
    row("missing dimension", put("state", lambda a: a[:, 0]), ["state", "3"]),
    row("extra dimension", put("count", lambda a: a[:, None]), ["count", "1"]),
    row("index of 2-d", put("index", lambda a: a[:, None]), ["index", "1"]),
    row("float into int", put("count", np.linspace(0, 1, 5)), ["count", "int32", "float64"]),
    row("int into bool", put("done", np.arange(5)), ["done", "bool", "int64"]),
    row("complex into float", put("state", np.ones((5, 3), complex)), ["state", "complex128"]),
    row(
        "signed into time", put("timestamp", lambda a: a.astype(complex)), ["timestamp", "complex"]
    ),
    row("float index", put("index", lambda a: a.astype(float)), ["index", "int64", "float64"]),
    row("string", put("state", lambda a: a.astype("U")), ["state", "float32", "U"]),
    row("object", put("state", lambda a: a.astype(object)), ["state", "float32", "object"]),
    row("datetime", put("count", lambda a: a.astype("M8[s]")), ["count", "int32", "datetime64"]),
    row("structured", put("count", np.zeros(5, [("x", "i4")])), ["count", "int32"]),
    row("first index", put("index", lambda a: a + 3), ["index", "0", "3"]),
    row("first episode", put("episode_index", lambda a: a + 2), ["episode_index", "0", "2"]),
    row("first episode -1", put("episode_index", lambda a: a - 1), ["episode_index", "-1"]),
    row("decreasing", put("episode_index", at(3, -1)), ["episode_index", "-1"]),
    row("torn episode", put("episode_index", np.array([0, 0, 1, 1, 0])), ["episode_index", "0"]),
    row("NaN time", put("timestamp", at(2, np.nan)), ["timestamp", "NaN"]),
    row("inf time", put("timestamp", at(4, np.inf)), ["timestamp", "inf"]),
    row("-inf time", put("timestamp", at(0, -np.inf)), ["timestamp", "-inf"]),
    row("ragged", put("state", [[1, 2, 3], [1, 2], [3], [4], [5]]), ["state"]),
    row(
        "index beyond int64",
        put("index", np.array([0, 1, 2, 3, 2**63 + 1], np.uint64)),
        ["index", "int64", str(2**63 + 1)],
    ),
    row("masked", put("count", lambda a: np.ma.masked_less(a, a.max())), ["count", "masked"]),
    row("0-d", put("count", np.array(3)), ["count"]),
    row("scalar", put("count", 3), ["count"]),
    row("None", put("count", None), ["count"]),
]

# Fine in the first call, too large once shifted to continue what is there.
OVERFLOWING = [
    row("index overflows", put("index", at(4, 2**63 - 1)), ["index", "int64"]),
    row("episode overflows", put("episode_index", at(4, 2**63 - 1)), ["episode_index", "int64"]),
]


def check_refusal(buffer, directory, spoil, mentions):
    """The spoilt data is refused, and neither it nor the buffer changes."""
    data = spoil(make_episodes([2, 3], SPEC, np.random.default_rng(1)))
    given = copy.deepcopy(data)
    columns = {key: buffer.get_data_by_key(key) for key in buffer.data_keys}
    with refused(directory, ValueError, mentions):
        buffer.add_data(data)
    assert data.keys() == given.keys()
    for key, value in data.items():
        if isinstance(value, np.ndarray):
            assert_equal(value, given[key])
        else:
            assert value == given[key]
    for key, column in columns.items():
        assert_equal(buffer.get_data_by_key(key), column)


@pytest.mark.parametrize(("spoil", "mentions"), [*ADDING, *OVERFLOWING])
def test_data_is_refused_and_left_alone(buffer, tmp_path, spoil, mentions):
    check_refusal(buffer, tmp_path, spoil, mentions)


@pytest.mark.parametrize(("spoil", "mentions"), ADDING)
def test_the_first_data_of_all_is_refused_likewise(tmp_path, spoil, mentions):
    buffer = OnlineBuffer(tmp_path / "buffer", **VALID, output="numpy")
    check_refusal(buffer, tmp_path, spoil, mentions)


@pytest.mark.parametrize("data", [None, 3, [1, 2], "abc"], ids=str)
def test_data_is_not_a_mapping(buffer, tmp_path, data):
    with refused(tmp_path, TypeError, ["data", type(data).__name__]):
        buffer.add_data(data)


# Looking up


@pytest.mark.parametrize("name", ["../x", "a/b", "", "_x", "_next_index", "stat", "k" * 300])
def test_lookups_of_unknown_keys_are_refused(buffer, tmp_path, name):
    with refused(tmp_path, KeyError, [name]):
        buffer.get_data_by_key(name)
    with refused(tmp_path, ValueError, ["delta_timestamps", name]):
        buffer.set_delta_timestamps({name: [0.0]})


DELTAS = [
    row("NaN", {"state": [0, float("nan")]}, ValueError, ["state", "NaN"]),
    row("inf", {"state": [float("inf")]}, ValueError, ["state", "inf"]),
    row("too many", {"state": np.zeros(2**16 + 1)}, ValueError, ["state", "65536", "65537"]),
    row("2-d", {"state": [[0.0]]}, ValueError, ["state"]),
    row("scalar", {"state": 0.5}, (TypeError, ValueError), ["state"]),
    row("str", {"state": "0.5"}, (TypeError, ValueError), ["state"]),
    row("list of str", {"state": ["x"]}, (TypeError, ValueError), ["state"]),
    row("None", {"state": None}, (TypeError, ValueError), ["state"]),
    row("bool", {"state": [True]}, TypeError, ["state", "numbers", "True"]),
    row("surrogate", {"\ud800": [0.0]}, ValueError, ["delta_timestamps", "Unicode"]),
    row("int key", {3: [0.0]}, TypeError, ["delta_timestamps", "str", "int"]),
    row("complex", {"state": [1j]}, (TypeError, ValueError), ["state"]),
    row("not a mapping", [0.0], TypeError, ["delta_timestamps", "list"]),
]


@pytest.mark.parametrize(("deltas", "error", "mentions"), DELTAS)
def test_deltas_are_refused_and_the_old_ones_stay(buffer, tmp_path, deltas, error, mentions):
    buffer.set_delta_timestamps({"count": [-0.1]})
    with refused(tmp_path, error, mentions):
        buffer.set_delta_timestamps(deltas)
    assert_equal(buffer.delta_timestamps, {"count": np.array([-0.1])})


def test_a_pad_mask_may_not_hide_a_key(tmp_path):
    spec = SPEC | {"state_is_pad": {"shape": (), "dtype": bool}}
    buffer = OnlineBuffer(tmp_path, spec, 8, 10)
    buffer.set_delta_timestamps({"count": [0.0]})
    with refused(tmp_path, ValueError, ["state_is_pad"]):
        buffer.set_delta_timestamps({"state": [0.0]})


TOLERANCES = [
    row("negative", -1e-9, ValueError, ["tolerance_s", "-1e-09"]),
    row("NaN", float("nan"), ValueError, ["tolerance_s", "nan"]),
    row("str", "1", TypeError, ["tolerance_s", "str"]),
    row("None", None, TypeError, ["tolerance_s", "None"]),
    row("bool", True, TypeError, ["tolerance_s", "bool"]),
]


@pytest.mark.parametrize(("value", "error", "mentions"), TOLERANCES)
def test_tolerances_are_refused(buffer, tmp_path, value, error, mentions):
    with refused(tmp_path, error, mentions):
        buffer.tolerance_s = value
    assert buffer.tolerance_s == 1 / 10 - 1e-4


INDICES = [
    row("n", 8, IndexError, ["8"]),
    row("-n - 1", -9, IndexError, ["-9", "8"]),
    row("beyond 64 bits", 2**70, IndexError, [str(2**70)]),
    row("one of a list", [0, 8], IndexError, ["8"]),
    row("one beyond 64 bits", [0, 10**30], IndexError, [str(10**30)]),
    row("one of an array", np.array([0, -9]), IndexError, ["-9", "8"]),
    row("uint64", np.array([2**64 - 1], np.uint64), IndexError, [str(2**64 - 1)]),
    row("time differences", np.array([1, 2], "m8[s]"), TypeError, ["timedelta64"]),
    row("float", 1.0, TypeError, ["float"]),
    row("list of float", [0.0, 1.0], TypeError, ["float"]),
    row("array of float", np.array([0.0]), TypeError, ["float64"]),
    row("bool mask", np.ones(8, bool), TypeError, ["bool"]),
    row("list of bool", [True] * 8, TypeError, ["bool"]),
    row("2-d", np.zeros((2, 2), int), (ValueError, IndexError, TypeError), ["2"]),
    row("ragged", [[0], [0, 1]], (ValueError, TypeError), []),
    row("str", "0", TypeError, ["str"]),
    row("list of str", ["0"], TypeError, ["U1"]),
    row("key", "state", TypeError, ["str"]),
    row("None", None, TypeError, ["None"]),
    row("tuple with slice", (slice(2), 0), TypeError, []),
    row("slice of float", slice(0.0, 2.0), TypeError, []),
    row("slice of step 0", slice(None, None, 0), ValueError, ["zero"]),
]


@pytest.mark.parametrize(("index", "error", "mentions"), INDICES)
def test_indices_are_refused(buffer, tmp_path, index, error, mentions):
    with refused(tmp_path, error, mentions):
        buffer[index]


def test_a_bool_tensor_is_no_index(buffer, tmp_path, torch):
    with refused(tmp_path, TypeError, ["bool"]):
        buffer[torch.tensor(True)]


def test_an_empty_buffer_has_no_item(tmp_path):
    buffer = OnlineBuffer(tmp_path, **VALID)
    for index in (0, -1, [0]):
        with refused(tmp_path, IndexError, [str(index).strip("[]"), "0"]):
            buffer[index]


# Sampler weights


def bounds(starts, ends, length=5):
    dataset = Offline([length])
    dataset.episode_data_index = {"from": starts, "to": ends}
    return dataset


ONLINE = object()  # stands for a buffer, in the arguments below
WEIGHTS = [
    row("ratio > 1", (Offline([5]), 0, ONLINE, 1.5), ValueError, ["online_sampling_ratio", "1.5"]),
    row(
        "ratio < 0", (Offline([5]), 0, ONLINE, -0.1), ValueError, ["online_sampling_ratio", "-0.1"]
    ),
    row(
        "ratio NaN", (Offline([5]), 0, ONLINE, np.nan), ValueError, ["online_sampling_ratio", "nan"]
    ),
    row("ratio str", (Offline([5]), 0, ONLINE, "1"), TypeError, ["online_sampling_ratio", "str"]),
    row("offline drop", (Offline([5]), -1), ValueError, ["offline_drop_n_last_frames", "-1"]),
    row("offline drop float", (Offline([5]), 1.0), TypeError, ["offline_drop_n_last_frames"]),
    row(
        "online drop",
        (Offline([5]), 0, ONLINE, 0.5, -2),
        ValueError,
        ["online_drop_n_last_frames", "-2"],
    ),
    row("no ratio", (Offline([5]), 0, ONLINE), ValueError, ["online_sampling_ratio"]),
    row("no dataset", (Offline([5]), 0, None, 0.5), ValueError, ["online_dataset"]),
    row("both empty", (Offline([]),), ValueError, ["empty"]),
    row("online is a list", (Offline([5]), 0, [1], 0.5), TypeError, ["online_dataset", "list"]),
    row("end outside", (bounds([0], [6]),), ValueError, ["6", "5"]),
    row("start outside", (bounds([-1], [5]),), ValueError, ["-1"]),
    row("end before start", (bounds([3], [2]),), ValueError, ["3", "2"]),
    row("unequal bounds", (bounds([0, 2], [5]),), ValueError, ["2", "1"]),
    row("float bounds", (bounds([0.0], [5.0]),), (TypeError, ValueError), ["float"]),
    row("no bounds", ([1, 2, 3],), TypeError, ["offline_dataset", "list"]),
    row("no length", (SimpleNamespace(),), TypeError, ["offline_dataset"]),
]


@pytest.mark.parametrize(("arguments", "error", "mentions"), WEIGHTS)
def test_sampler_weights_are_refused(buffer, tmp_path, arguments, error, mentions):
    arguments = [buffer if argument is ONLINE else argument for argument in arguments]
    with refused(tmp_path, error, mentions):
        compute_sampler_weights(*arguments)


def test_sampler_weights_of_two_empty_sides_are_refused(tmp_path):
    buffer = OnlineBuffer(tmp_path, **VALID)
    with refused(tmp_path, ValueError, ["empty"]):
        compute_sampler_weights(Offline([]), 0, buffer, 0.5)


# Odd keys that are fine


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "/etc/x", "..", ".", "a\0b", "50%", "%2F", "x" * 255]
)
def test_a_key_never_reaches_outside_write_dir(tmp_path, rng, name):
    outside = snapshot(tmp_path)
    spec = {name: {"shape": (2,), "dtype": np.float32}}
    pair = Pair(tmp_path / "buffer", spec, 6)
    pair.add(make_episodes([2, 5], spec, rng))
    pair.check()
    everything = snapshot(tmp_path)
    added = everything.keys() - outside.keys() - {"buffer"}
    assert {Path(file).parent for file in added} == {Path("buffer")}
    assert sum(len(b) == 6 * 2 * 4 for n, b in everything.items() if b is not None) >= 1
    pair.buffer.close()
    pair.buffer = OnlineBuffer(tmp_path / "buffer", output="numpy")
    assert name in pair.buffer.data_keys
    pair.check()
