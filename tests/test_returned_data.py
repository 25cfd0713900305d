"""What goes in comes out: every dtype, every kind of input array, and never a view of storage."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from helpers import DTYPES, SPEC, Pair, assert_equal, make_episodes, to_numpy

FPS = 10
VALUE = {"value": {"shape": (2, 3), "dtype": np.float32}}
DELTAS = {"action": [-0.1, 0.0, 0.1], "image": [-0.1, 0.0]}


@pytest.fixture(params=["numpy", "torch"])
def output(request):
    """Both kinds of output, torch's where it is installed."""
    if request.param == "torch":
        pytest.importorskip("torch")
    return request.param


@pytest.fixture
def pair(tmp_path, rng, output):
    """A wrapped buffer with windows, and its model."""
    pair = Pair(tmp_path, SPEC, 12, FPS, DELTAS, output)
    for lengths in ([4, 3], [5, 4]):
        pair.add(make_episodes(lengths, SPEC, rng, FPS))
    return pair


# Dtypes and shapes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 3)], ids=str)
def test_every_dtype_round_trips_bit_for_bit(tmp_path, rng, output, dtype, shape):
    spec = {"value": {"shape": shape, "dtype": np.dtype(dtype)}}
    pair = Pair(tmp_path, spec, 7, FPS, output=output)
    pair.add(make_episodes([3, 6], spec, rng))
    pair.check()
    pair.set_deltas({"value": [-0.1, 0.0]})
    pair.check()


@pytest.mark.parametrize("dtype", [np.float32, "float32", "<f4", np.dtype("f4"), "f"])
def test_a_dtype_may_be_given_in_any_of_numpys_ways(tmp_path, rng, dtype):
    pair = Pair(tmp_path, {"value": {"shape": (2,), "dtype": dtype}}, 5)
    pair.add(make_episodes([3], VALUE | pair_spec(pair), rng))
    pair.check()


def pair_spec(pair):
    shape, dtype = pair.model.columns["value"]
    return {"value": {"shape": shape, "dtype": dtype}}


@pytest.mark.parametrize("shape", [[2, 3], (np.int32(2), np.int64(3))], ids=str)
def test_a_shape_may_be_a_list_or_of_numpy_integers(tmp_path, rng, shape):
    pair = Pair(tmp_path, {"value": {"shape": shape, "dtype": "f4"}}, np.int64(5))
    pair.add(make_episodes([3], VALUE, rng))
    pair.check()


def test_a_shape_of_small_numpy_integers_does_not_overflow(tmp_path):
    shape = (np.int32(50_000), np.int32(50_000))
    spec = {"image": {"shape": shape, "dtype": np.uint8}}
    OnlineBuffer(tmp_path, spec, 1, preallocate=False).close()
    assert (tmp_path / "image").stat().st_size == 2_500_000_000


def test_uint8_images_come_back_uint8_and_cost_exactly_their_bytes(pair, tmp_path):
    item, batch = pair.buffer[3], pair.buffer[[0, 1]]
    for images in (item["image"], batch["image"], pair.buffer.get_data_by_key("image")):
        assert to_numpy(images).dtype == np.uint8
    assert (tmp_path / "image").stat().st_size == 12 * 4 * 5 * 3


def test_scalars_are_0_d(pair):
    item = pair.buffer[0]
    for key in ("reward", "done", "index", "frame_index", "episode_index", "timestamp"):
        assert item[key].shape == ()


def test_the_output_is_of_the_kind_that_was_asked_for(pair, output):
    kind = np.ndarray if output == "numpy" else pytest.importorskip("torch").Tensor
    for result in (pair.buffer[0], pair.buffer[[0]], pair.buffer[:]):
        assert all(isinstance(value, kind) for value in result.values())
    assert isinstance(pair.buffer.get_data_by_key("reward"), kind)


def test_torch_is_the_default_where_it_is_installed(tmp_path, rng, torch):
    with OnlineBuffer(tmp_path, SPEC, 5) as buffer:
        buffer.add_data(make_episodes([2], SPEC, rng))
        assert isinstance(buffer[0]["image"], torch.Tensor)
        assert isinstance(buffer, torch.utils.data.Dataset)


def test_an_empty_buffer_has_columns_without_rows(tmp_path, output):
    pair = Pair(tmp_path, SPEC, 5, FPS, DELTAS, output)
    pair.check()
    assert_equal(pair.buffer[[]], pair.model.batch([]))


# No aliasing


def reads(buffer):
    """Everything that a caller can get hold of, as one list of arrays."""
    kinds = [buffer[3], buffer[[1, 3, 3]], buffer[:], buffer[2:9:3]]
    columns = [buffer.get_data_by_key(key) for key in buffer.data_keys]
    return [value for kind in kinds for value in kind.values()] + columns


def test_writing_to_what_was_returned_changes_no_stored_data(pair):
    for value in reads(pair.buffer):
        array = to_numpy(value)
        assert array.flags.writeable
        array[...] = np.logical_not(array) if array.dtype == bool else array + 1
    pair.check()


def test_later_inserts_do_not_change_what_was_returned(pair, rng):
    before = reads(pair.buffer)
    copies = [to_numpy(value).copy() for value in before]
    for _ in range(3):
        pair.add(make_episodes([9, 8], SPEC, rng))
    for value, copied in zip(before, copies, strict=True):
        assert_equal(value, copied)


def test_what_was_returned_outlives_the_buffer(tmp_path, rng, output):
    pair = Pair(tmp_path, SPEC, 12, FPS, DELTAS, output)
    pair.add(make_episodes([5], SPEC, rng))
    item = pair.buffer[2]
    pair.buffer.close()
    pair.buffer = None
    assert_equal(item, pair.model.item(2))


def test_inputs_are_copied(tmp_path, rng):
    pair = Pair(tmp_path, SPEC, 12)
    data = make_episodes([5], SPEC, rng)
    pair.add(data)
    for array in data.values():
        array[...] = 0
    pair.check()


# Kinds of input

VIEWS = {
    "C order": lambda a: a,
    "Fortran order": np.asfortranarray,
    "every other column": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "every other row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "reversed rows": lambda a: a[::-1].copy()[::-1],
    "reversed columns": lambda a: a[..., ::-1].copy()[..., ::-1],
    "transposed": lambda a: a.T.copy().T,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "unaligned": lambda a: unaligned(a),
    "read-only": lambda a: read_only(a),
    "list": lambda a: a.tolist(),
    "list of arrays": list,
    "tuple": lambda a: tuple(a.tolist()),
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "memmap-like subclass": lambda a: a.view(np.memmap),
}


def unaligned(array):
    raw = np.zeros(array.nbytes + 1, np.uint8)
    view = raw[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def counted_episodes(n, spec=VALUE):
    """One episode whose values are whole numbers, so that lists of them keep their kind."""
    data = make_episodes([n], spec, np.random.default_rng(0))
    shape = data["value"].shape
    return data | {"value": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)}


@pytest.mark.parametrize("view", VIEWS)
def test_any_layout_of_input_keeps_its_values(tmp_path, view):
    pair = Pair(tmp_path, {"value": {"shape": (2, 3), "dtype": np.float64}}, 7)
    for n in (5, 4, 9):
        data = counted_episodes(n)
        data |= {"value": VIEWS[view](data["value"].astype(np.float64))}
        pair.add(data)
        pair.check()


@pytest.mark.parametrize("view", VIEWS)
def test_any_layout_of_the_index_columns_keeps_their_values(tmp_path, view):
    pair = Pair(tmp_path, VALUE, 7)
    for n in (1, 5, 9):
        data = counted_episodes(n)
        keys = ("index", "frame_index", "episode_index", "timestamp")
        pair.add(data | {key: VIEWS[view](data[key]) for key in keys})
        pair.check()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_torch_tensors_are_taken(tmp_path, torch, requires_grad):
    pair = Pair(tmp_path, VALUE, 7)
    for n in (5, 4):
        data = counted_episodes(n)
        pair.model.add_data(data)
        tensors = {key: torch.from_numpy(value.copy()) for key, value in data.items()}
        tensors["value"].requires_grad_(requires_grad)
        pair.buffer.add_data(tensors)
        pair.check()


def test_strided_torch_tensors_keep_their_values(tmp_path, torch):
    pair = Pair(tmp_path, VALUE, 7)
    data = counted_episodes(5)
    pair.model.add_data(data)
    value = torch.from_numpy(data["value"].T.copy()).permute(2, 1, 0)
    pair.buffer.add_data(data | {"value": value})
    pair.check()


CASTS = [
    *[("float64", "float32"), ("float64", "float16"), ("int64", "float32"), ("int8", "float16")],
    *[("int64", "int8"), ("uint8", "int16"), ("uint8", "int8"), ("bool", "int8")],
    *[("bool", "float64"), ("float32", "complex64"), ("complex128", "complex64")],
    *[("uint64", "float64"), ("float16", "float64"), ("int32", "uint8")],
]


@pytest.mark.parametrize(("source", "target"), CASTS)
def test_values_are_cast_as_numpy_casts_them(tmp_path, source, target):
    spec = {"value": {"shape": (2,), "dtype": target}}
    pair = Pair(tmp_path, spec, 7)
    data = counted_episodes(5, spec)
    data["value"] = (data["value"] / 3 if source[0] in "fc" else data["value"]).astype(source)
    if np.can_cast(source, target, "same_kind"):
        pair.add(data)
    else:
        with pytest.raises(ValueError, match="wrong dtype"):
            pair.model.add_data(data)
        with pytest.raises(ValueError, match=rf"value.*{target}.*{source}"):
            pair.buffer.add_data(data)
    pair.check()


def test_a_mapping_that_is_no_dict_is_taken_and_extra_keys_are_ignored(tmp_path):
    class Rollout(Mapping):
        def __init__(self, data):
            self.data = data

        def __getitem__(self, key):
            return self.data[key]

        def __iter__(self):
            return iter(self.data)

        def __len__(self):
            return len(self.data)

    pair = Pair(tmp_path, VALUE, 7)
    pair.add(Rollout(counted_episodes(4) | {"notes": "of any kind", "_x": None}))
    pair.check()


# The shift of index and episode_index in the caller's arrays

SHIFTED = {
    "int64": (lambda a: a, True),
    "int32": (lambda a: a.astype(np.int32), True),
    "uint8": (lambda a: a.astype(np.uint8), True),
    "big-endian": (VIEWS["big-endian"], True),
    "strided": (VIEWS["every other row"], True),
    "reversed": (VIEWS["reversed rows"], True),
    "read-only": (read_only, False),
    "list": (lambda a: a.tolist(), False),
    "bool": (lambda a: np.array(a, dtype=bool), False),
}


@pytest.mark.parametrize(("form", "in_place"), SHIFTED.values(), ids=SHIFTED)
def test_the_callers_indices_are_shifted_where_they_can_be(tmp_path, form, in_place):
    pair = Pair(tmp_path, VALUE, 9)
    pair.add(counted_episodes(7))
    data = counted_episodes(2)
    index, episode_index = form(data["index"]), form(data["episode_index"])
    pair.add(data | {"index": index, "episode_index": episode_index})
    pair.check()
    assert list(index) == ([7, 8] if in_place else [0, 1])
    assert list(episode_index) == ([1, 1] if in_place else [0, 0])


def test_an_index_that_cannot_hold_the_shifted_values_is_left_alone(tmp_path):
    pair = Pair(tmp_path, VALUE, 300)
    pair.add(counted_episodes(126))
    data = counted_episodes(3)
    data["index"] = data["index"].astype(np.int8)
    pair.add(data)
    pair.check()
    assert data["index"].tolist() == [0, 1, 2]
    assert data["episode_index"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(("dtype", "after"), [("int8", [-4, -3]), ("uint8", [0, 1])])
def test_a_shift_may_be_negative(tmp_path, dtype, after):
    pair = Pair(tmp_path, VALUE, 9)
    pair.add(counted_episodes(3) | {"index": np.array([0, 7, -5])})
    data = counted_episodes(2) | {"index": np.arange(2, dtype=dtype)}
    pair.add(data)
    pair.check()
    assert data["index"].tolist() == after


def test_torch_indices_are_left_alone(tmp_path, torch):
    buffer = OnlineBuffer(tmp_path, VALUE, 9)
    data = {key: torch.from_numpy(array) for key, array in counted_episodes(3).items()}
    for _ in range(2):
        buffer.add_data(data)
    assert data["index"].tolist() == [0, 1, 2]
    assert buffer.get_data_by_key("index").tolist() == [0, 1, 2, 3, 4, 5]


def test_an_index_shared_with_another_key_shifts_only_its_own_column(tmp_path):
    pair = Pair(tmp_path, VALUE, 9)
    pair.add(counted_episodes(3))
    data = counted_episodes(4)
    data["frame_index"] = data["index"]
    pair.add(data)
    pair.check()


def test_one_array_may_serve_both_indices(tmp_path):
    pair = Pair(tmp_path, VALUE, 9)
    pair.add(counted_episodes(3))
    data = counted_episodes(1)
    data["episode_index"] = data["index"]
    pair.add(data)
    pair.check()


# Ways to index


def index_forms(n):
    """Each form of a batch index with the list of integers that it means."""
    some = [0, n - 1, 3, 3, -1, -n]
    yield some, some
    yield tuple(some), some
    yield np.array(some), some
    yield np.array(some, np.int8), some
    yield np.array(some, ">i4"), some
    yield np.array([5, 1], np.uint64), [5, 1]
    yield np.array(some)[::-2], some[::-2]
    yield [np.int64(4), 2], [4, 2]
    yield range(n - 1, 0, -2), list(range(n - 1, 0, -2))
    yield [], []
    yield np.array([], np.int64), []
    slices = [slice(None), slice(2, 5), slice(None, None, -1), slice(-3, None), slice(8, 2, -3)]
    slices += [slice(5, 5), slice(100, 200), slice(-100, 4), slice(None, 10**30)]
    for form in slices:
        yield form, list(range(n))[form]


def test_every_form_of_index_gives_the_same_batch(pair):
    for form, indices in index_forms(pair.model.num_frames):
        assert_equal(pair.buffer[form], pair.model.batch(indices))


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
def test_torch_tensors_are_indices_too(pair, torch, kind):
    index = torch.tensor([3, 0, 11], dtype=getattr(torch, kind))
    assert_equal(pair.buffer[index], pair.model.batch([3, 0, 11]))
    assert_equal(pair.buffer[index[0]], pair.model.item(3))
    assert_equal(pair.buffer[torch.tensor([], dtype=torch.int64)], pair.model.batch([]))
    assert_equal(pair.buffer[torch.tensor([3])], pair.model.batch([3]))
    assert_equal(pair.buffer[torch.tensor(3)], pair.model.item(3))


@pytest.mark.parametrize("index", [np.int64(3), np.uint8(3), np.array(3)], ids=type)
def test_a_numpy_integer_is_one_item(pair, index):
    assert_equal(pair.buffer[index], pair.model.item(3))


def test_iterating_stops_after_the_last_live_frame(pair):
    items = list(pair.buffer)
    assert len(items) == len(pair.buffer)
    for i, item in enumerate(items):
        assert_equal(item, pair.model.item(i))


def test_data_keys_are_sorted_and_have_the_four_columns(pair):
    columns = ["episode_index", "frame_index", "index", "timestamp"]
    assert pair.buffer.data_keys == sorted([*columns, *SPEC])


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_plain_dataloader_gives_what_items_give(tmp_path, rng, torch, batch_size):
    pair = Pair(tmp_path, SPEC, 12, FPS, DELTAS, "torch")
    pair.add(make_episodes([4, 5, 6], SPEC, rng, FPS))
    start = 0
    for batch in torch.utils.data.DataLoader(pair.buffer, batch_size=batch_size):
        size = len(batch["index"])
        assert_equal(batch, pair.model.batch(range(start, start + size)))
        start += size
    assert start == 12


def count_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_reading_opens_no_further_files(tmp_path, rng):
    spec = {f"key {k}": {"shape": (2,), "dtype": "f4"} for k in range(20)}
    with OnlineBuffer(tmp_path, spec, 50, FPS, {"key 3": [0.0, 0.1]}, output="numpy") as buffer:
        buffer.add_data(make_episodes([50], spec, rng, FPS))
        buffer[[0]]
        before = count_descriptors()
        for i in range(5000):
            buffer[[i % 50, 7]]
        assert count_descriptors() == before


def test_rows_past_4_gib_round_trip(tmp_path):
    """A sparse directory of plain memmaps, nearly full, saves writing the gigabytes before."""
    capacity, shape = 5000, (1 << 20,)
    layout = {"image": (shape, "u1"), "timestamp": ((), "f8")}
    layout |= dict.fromkeys(["index", "frame_index", "episode_index"], ((), "i8"))
    for key, (trailing, dtype) in layout.items():
        np.memmap(tmp_path / key, dtype, "w+", shape=(capacity, *trailing)).flush()
    mask = np.memmap(tmp_path / "_occupancy_mask", bool, "w+", shape=(capacity,))
    mask[: capacity - 3] = True
    np.memmap(tmp_path / "_next_index", np.int64, "w+", shape=())[...] = capacity - 3
    mask.flush()

    spec = {"image": {"shape": shape, "dtype": np.uint8}}
    buffer = OnlineBuffer(tmp_path, spec, capacity, preallocate=False, output="numpy")
    data = make_episodes([4], spec, np.random.default_rng(0))
    buffer.add_data(data)
    rows = buffer[[capacity - 3, capacity - 2, capacity - 1, 0]]
    assert_equal(rows["image"], data["image"])
    assert not buffer[1]["image"].any()
    assert Path(tmp_path / "image").stat().st_size == capacity << 20
