"""get_batch, with and without `out`, and what empty_batch makes."""

import copy
import itertools
import pickle

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from helpers import SPEC, Pair, assert_equal, make_episodes, refused_with, to_numpy

DELTAS = {"image": [-0.1, 0.0], "action": [0.0, 0.1, 0.2], "reward": []}


@pytest.fixture
def pair(tmp_path):
    """A buffer that has wrapped: whole episodes, one that lost frames, one around the end."""
    pair = Pair(tmp_path / "buffer", SPEC, 50, fps=10, deltas=DELTAS)
    for seed, lengths in enumerate([[20, 15], [12, 18]]):
        pair.add(make_episodes(lengths, SPEC, np.random.default_rng(seed)))
    return pair


@pytest.fixture(params=["numpy", "torch"])
def buffer(pair, request):
    """The pair's buffer, for each kind of output."""
    if request.param == "torch":
        pytest.importorskip("torch")
    return OnlineBuffer(pair.buffer.write_dir, delta_timestamps=DELTAS, output=request.param)


def test_every_kind_of_indices_is_one_path(buffer, pair):
    wanted = [3, -1, 3, 49, 0]
    expected = pair.model.batch(wanted)
    kinds = [list, tuple, np.array, lambda v: np.array(v, np.int8), range_like]
    for kind in kinds:
        assert_equal(buffer.get_batch(kind(wanted)), expected)
        assert_equal(buffer[kind(wanted)], expected)
    for part in [slice(None), slice(40, 2, -3), slice(7, 7), slice(-5, None)]:
        positions = list(range(50))[part]
        assert_equal(buffer.get_batch(part), pair.model.batch(positions))
        assert_equal(buffer.get_batch(range(50)[part]), pair.model.batch(positions))


def range_like(values):
    """The values as an array with a stride."""
    return np.repeat(values, 2)[::2]


def test_getitems_are_the_items(buffer, pair):
    items = buffer.__getitems__([5, -1, 5])
    assert len(items) == 3
    for item, position in zip(items, [5, 49, 5], strict=True):
        assert_equal(item, pair.model.item(position))
    assert buffer.__getitems__([]) == []


def test_out_is_filled_and_returned(buffer, pair):
    out = buffer.empty_batch(6)
    memory = addresses(out)
    for start in (0, 20, 44):
        assert buffer.get_batch(range(start, start + 6), out=out) is out
        assert_equal(dict(out), pair.model.batch(range(start, start + 6)))
        assert addresses(out) == memory


def addresses(batch):
    """Where the memory of each value begins, except of those that have none."""
    arrays = {key: to_numpy(value) for key, value in batch.items()}
    return {key: a.__array_interface__["data"][0] for key, a in arrays.items() if a.size}


def test_an_empty_batch_has_the_shapes_of_a_batch(buffer):
    for size in (0, 1, 7):
        batch = buffer.get_batch(np.zeros(size, int))
        empty = buffer.empty_batch(size)
        assert empty.keys() == batch.keys()
        for key, value in batch.items():
            assert (empty[key].shape, empty[key].dtype) == (value.shape, value.dtype)
            assert type(empty[key]) is type(value)


def test_out_may_be_any_dict_of_arrays_and_tensors(buffer, pair):
    torch = pytest.importorskip("torch")
    expected = pair.model.batch([1, 2])
    arrays = {key: np.empty_like(value) for key, value in expected.items()}
    tensors = {key: torch.from_numpy(value.copy()) for key, value in expected.items()}
    mixed = arrays | {"image": tensors["image"]}
    for out in (arrays, tensors, mixed, dict(reversed(arrays.items()))):
        for value in out.values():
            to_numpy(value)[...] = 0
        assert buffer.get_batch([1, 2], out=out) is out
        assert_equal(out, expected)


def test_an_empty_batch_whose_tensors_were_replaced_is_looked_at_anew(buffer, pair):
    out = buffer.empty_batch(2)
    buffer.get_batch([1, 2], out=out)
    first = copy.deepcopy(dict(out))
    for key, value in out.items():
        out[key] = copy.deepcopy(value)
    assert_equal(dict(buffer.get_batch([3, 4], out=out)), pair.model.batch([3, 4]))
    for clone in (copy.deepcopy(out), pickle.loads(pickle.dumps(out)), copy.copy(out), dict(out)):
        assert_equal(dict(buffer.get_batch([1, 2], out=clone)), dict(first))
    out["index"], out["frame_index"] = out["frame_index"], out["index"]
    assert_equal(dict(buffer.get_batch([3, 4], out=out)), pair.model.batch([3, 4]))
    out["action"] = None
    refused_with(r'out\["action"\]: expected .*, got .*NoneType', buffer.get_batch, [1, 2], out=out)


@pytest.mark.parametrize(
    "change",
    [
        lambda out: out.update(image=out["image"][:2]),
        lambda out: out.update(image=out["image"].view(-1)),
        lambda out: out.update(action=out["action"].view(out["index"].dtype)),
        lambda out: out["image"].transpose_(0, 1),
        lambda out: out["action"].requires_grad_(),
        lambda out: out.update(action=out["action"]._neg_view()),
    ],
    ids=["a part", "another shape", "another dtype", "another order", "a gradient", "negated"],
)
def test_an_empty_batch_whose_tensors_were_changed_is_looked_at_anew(pair, change):
    pytest.importorskip("torch")
    buffer = OnlineBuffer(pair.buffer.write_dir, delta_timestamps=DELTAS, output="torch")
    out = buffer.empty_batch(4)
    change(out)
    refused_with(r"out\[.(image|action).\]: expected", buffer.get_batch, [1, 2, 3, 4], out=out)


def broken_outs():
    """What is wrong with an `out`, and what is said about it."""
    return {
        "missing key": (lambda out: out.pop("done"), r"out: expected the keys .*done"),
        "other key": (lambda out: out.update(x=out.pop("done")), r'out\["done"\].*no such key'),
        "extra key": (lambda out: out.update(x=out["done"]), "out: expected the keys .*'x'"),
        "shape": (lambda out: out.update(done=out["done"][:1]), r'out\["done"\].*\[2\].*\[1\]'),
        "shape of a window": (
            lambda out: out.update(action=out["action"][:, :2]),
            r'out\["action"\].*\[2, 3, 2\].*\[2, 2, 2\]',
        ),
        "dtype": (
            lambda out: out.update(action=out["action"].astype("f8")),
            r'out\["action"\].*float32.*float64',
        ),
        "byte order": (
            lambda out: out.update(action=out["action"].astype(">f4")),
            r'out\["action"\].*float32.*>f4',
        ),
        "layout": (
            lambda out: out.update(image=np.asfortranarray(out["image"])),
            r'out\["image"\].*C-contiguous.*strides',
        ),
        "read-only": (
            lambda out: out["image"].setflags(write=False),
            r'out\["image"\].*writeable.*read-only',
        ),
        "list": (lambda out: out.update(done=[0, 0]), r'out\["done"\].*array.*list'),
        "overlap": (
            lambda out: out.update(index=out["frame_index"]),
            "out: expected arrays with memory of their own.*overlap",
        ),
        "partial overlap": (share_memory, "out: expected arrays with memory of their own"),
    }


def share_memory(out):
    """Let two arrays share one element."""
    both = np.zeros(3, np.int64)
    out.update(index=both[:2], frame_index=both[1:])


@pytest.mark.parametrize(("break_it", "said"), broken_outs().values(), ids=broken_outs())
def test_an_out_that_does_not_fit_is_refused_and_left_alone(pair, break_it, said):
    out = pair.buffer.get_batch([1, 2])
    break_it(out)
    before = {key: np.array(value) for key, value in out.items()}
    refused_with(said, pair.buffer.get_batch, [3, 4], out=out)
    for key, value in before.items():
        assert np.array_equal(out[key], value)


def test_an_out_of_another_length_or_window_is_refused(buffer):
    out = buffer.empty_batch(3)
    refused_with(r'out\["\w+"\]: expected .*\[2', buffer.get_batch, [3, 4], out=out)
    buffer.set_delta_timestamps({"action": [0.0]})
    refused_with("out: expected the keys", buffer.get_batch, [3, 4, 5], out=out)
    with pytest.raises(TypeError, match=r"out: expected a dict.*got list"):
        buffer.get_batch([1], out=[])


def test_tensors_that_are_not_plain_memory_are_refused(buffer):
    torch = pytest.importorskip("torch")
    good = {key: torch.as_tensor(value) for key, value in buffer.get_batch([1, 2]).items()}
    grad = torch.zeros(2, 3, 2, requires_grad=True)
    wrong = {
        "another device": (good["action"].to("meta"), "CPU memory.*meta"),
        "a gradient": (grad, "needs no gradient"),
        "sparse": (good["action"].to_sparse(), "plain tensor"),
        "bfloat16": (good["action"].bfloat16(), "plain tensor.*BFloat16"),
        "transposed": (torch.zeros(2, 2, 3).transpose(1, 2), "C-contiguous"),
        "double": (good["action"].double(), "float32.*float64"),
    }
    for tensor, said in wrong.values():
        refused_with(said, buffer.get_batch, [3, 4], out=good | {"action": tensor})


def test_a_batch_that_is_refused_leaves_out_alone(buffer, pair):
    out = buffer.empty_batch(2)
    buffer.get_batch([1, 2], out=out)
    for indices, error in [([0, 50], IndexError), ([0, -51], IndexError), ([0.0, 1.0], TypeError)]:
        with pytest.raises(error):
            buffer.get_batch(indices, out=out)
    assert_equal(dict(out), pair.model.batch([1, 2]))


def test_a_single_int_is_no_batch(buffer):
    with pytest.raises(TypeError, match="expected a slice or a one-dimensional sequence"):
        buffer.get_batch(3)


def test_empty_batch_checks_its_arguments(buffer):
    with pytest.raises(ValueError, match=r"batch_size: expected at least 0.*got -1"):
        buffer.empty_batch(-1)
    with pytest.raises(TypeError, match="batch_size: expected an int, got float"):
        buffer.empty_batch(2.0)
    with pytest.raises((MemoryError, ValueError)):
        buffer.empty_batch(2**62)


def test_pinned_memory_is_for_tensors(pair):
    refused_with(
        'pin_memory: expected False for output="numpy"', pair.buffer.empty_batch, 2, pin_memory=True
    )


def test_uniform_and_searched_windows_agree(tmp_path):
    """Times within, at and beyond what counts as uniform give what the model gives."""
    spec = {"value": {"shape": (), "dtype": np.int32}}
    rng = np.random.default_rng(0)
    jitters = [0.0, 1e-9, 2e-5, 2.5e-5, 2.6e-5, 1e-3, 0.02]
    for number, (fps, jitter) in enumerate(itertools.product([10, 29.97, 50], jitters)):
        pair = Pair(tmp_path / str(number), spec, 40, fps)
        for _ in range(4):
            data = make_episodes([9, 1, 6], spec, rng, fps)
            data["timestamp"] += rng.uniform(-jitter, jitter, 16)
            data["timestamp"] = data["timestamp"].astype(rng.choice(["f4", "f8"]))
            pair.add(data)
        for factor in (0.5, 1.0, 1.7, 2.0, 3.5, np.inf):
            pair.set_tolerance(factor / fps - 1e-4)
            for off in (0.0, 1e-6, -4e-5, 6e-5, 0.3 / fps):
                pair.set_deltas({"value": [k / fps + off for k in range(-4, 7)]})
                pair.check()
