"""Buffers from Zarr stores, and into them: exact in both directions, complete or not at all."""

import shutil
import signal
import time

import numpy as np
import pytest

import fastbuffer._zarr
import fastbuffer.io.zarr
from fastbuffer import OnlineBuffer
from helpers import (
    DTYPES,
    SPEC,
    Pair,
    assert_equal,
    make_episodes,
    refused_with,
    snapshot,
    start_python,
)

zarr = pytest.importorskip("zarr")

FPS = 10
OWN = {"index", "episode_index", "frame_index", "timestamp"}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    """Frames travel in many pieces, so that their ends are met."""
    monkeypatch.setattr(fastbuffer.io.zarr, "BYTES_AT_ONCE", 1000)


def make_store(path, arrays, ends, *, zarr_format=3, chunk=4, shard=None, order=None):
    """A store of that content; a path that ends in .zip is one file."""
    is_zip = str(path).endswith(".zip")
    store = zarr.storage.ZipStore(path, mode="w") if is_zip else zarr.storage.LocalStore(path)
    root = zarr.create_group(store, zarr_format=zarr_format)
    for key, values in {
        **{f"data/{k}": v for k, v in arrays.items()},
        "meta/episode_ends": ends,
    }.items():
        values = np.asarray(values)
        is_data = key.startswith("data")
        array = root.create_array(
            key,
            shape=values.shape,
            chunks=((chunk if is_data else max(1, len(values))), *values.shape[1:]),
            shards=(shard, *values.shape[1:]) if shard and is_data else None,
            dtype=values.dtype,
            order=order,
        )
        array[...] = values
    store.close()
    return path


def example(lengths, seed=0):
    """Arrays of a store with that many episodes, and their ends."""
    rng = np.random.default_rng(seed)
    data = make_episodes(lengths, SPEC, rng, FPS)
    return {key: data[key] for key in SPEC}, np.cumsum(lengths)


def check(buffer, arrays, ends, first=0):
    """The buffer holds those frames, each with what follows from the ends of episodes."""
    lengths = np.diff(ends, prepend=0)
    total = int(ends[-1]) if len(ends) else 0
    order = np.argsort(buffer.get_data_by_key("index"))
    assert sorted(buffer.get_data_by_key("index")) == list(range(first, total))
    for key, values in arrays.items():
        expected = np.asarray(values)[first:total]
        assert_equal(
            buffer.get_data_by_key(key)[order], expected.astype(expected.dtype.newbyteorder("="))
        )
    counted = np.concatenate([np.arange(0), *map(np.arange, lengths)])[first:]
    numbers = np.repeat(np.arange(len(ends)), lengths)[first:]
    assert_equal(buffer.get_data_by_key("episode_index")[order], numbers)
    if "frame_index" not in arrays:
        assert_equal(buffer.get_data_by_key("frame_index")[order], counted.astype(np.int64))
    if "timestamp" not in arrays:
        assert_equal(buffer.get_data_by_key("timestamp")[order], counted / FPS)


def imported(tmp_path, store, **options):
    """The buffer made of a store, as NumPy arrays."""
    options = {"fps": FPS} | options
    OnlineBuffer.from_zarr(store, tmp_path / "buffer", **options).close()
    return OnlineBuffer(tmp_path / "buffer", output="numpy")


# Zarr -> buffer


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("s.zarr", {}),
        ("s.zarr", {"shard": 8}),
        ("s.zarr", {"shard": 64, "chunk": 1}),
        ("s.zarr", {"zarr_format": 2}),
        ("s.zarr", {"zarr_format": 2, "order": "F"}),
        ("s.zarr.zip", {}),
        ("s.zarr.zip", {"zarr_format": 2, "chunk": 100}),
        ("s.zarr.zip", {"shard": 16}),
    ],
)
def test_stores_of_every_kind_are_read(tmp_path, name, options):
    arrays, ends = example([5, 1, 12, 3, 30, 2])
    store = make_store(tmp_path / name, arrays, ends, **options)
    before = snapshot(tmp_path)
    buffer = imported(tmp_path, store)
    check(buffer, arrays, ends)
    assert buffer.num_episodes == 6
    assert buffer.buffer_capacity == 53
    assert buffer.verify() == []
    after = snapshot(tmp_path)
    assert {key: after[key] for key in before} == before
    assert {key.partition("/")[0] for key in after} == {name.partition("/")[0], "buffer"}


def test_the_buffer_is_opened_with_the_windows_asked_for(tmp_path, torch):
    arrays, ends = example([5, 4])
    store = make_store(tmp_path / "s.zarr", arrays, ends)
    plain = OnlineBuffer.from_zarr(store, tmp_path / "plain", fps=FPS, output="numpy")
    assert isinstance(plain[0]["image"], np.ndarray)
    buffer = OnlineBuffer.from_zarr(
        *(str(store), str(tmp_path / "b")), fps=FPS, delta_timestamps={"action": [-0.1, 0.0]}
    )
    assert buffer[5]["action_is_pad"].tolist() == [True, False]
    assert isinstance(buffer[0]["image"], torch.Tensor)

    class Mine(OnlineBuffer):
        pass

    assert type(Mine.from_zarr(store, tmp_path / "mine", fps=FPS)) is Mine


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("order", "zarr_format"), [("<", 3), (">", 3), (">", 2)])
def test_every_dtype_keeps_its_values(tmp_path, dtype, order, zarr_format):
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind == "b":
        values = rng.integers(0, 2, (9, 3)).astype(bool)
    else:
        values = (rng.normal(size=(9, 3)) * 50).astype(dtype)
    swapped = values.astype(values.dtype.newbyteorder(order))
    store = make_store(tmp_path / "s.zarr", {"x": swapped}, [4, 9], zarr_format=zarr_format)
    buffer = imported(tmp_path, store)
    assert_equal(buffer.get_data_by_key("x"), values)


def test_timestamps_and_frame_numbers_of_the_store_are_kept(tmp_path):
    arrays, ends = example([5, 6])
    arrays |= {
        "timestamp": np.linspace(3, 9, 11).astype(np.float32)[:, None],
        "frame_index": np.arange(20, 31),
        "index": np.zeros(11),
        "episode_index": np.zeros(11),
    }
    buffer = imported(tmp_path, make_store(tmp_path / "s.zarr", arrays, ends), fps=None)
    assert buffer.fps is None
    assert_equal(buffer.get_data_by_key("timestamp"), arrays["timestamp"][:, 0].astype(float))
    assert_equal(buffer.get_data_by_key("frame_index"), arrays["frame_index"])
    assert_equal(buffer.get_data_by_key("index"), np.arange(11))
    assert_equal(buffer.get_data_by_key("episode_index"), np.repeat([0, 1], [5, 6]))


def test_keys_and_capacity_choose_what_is_kept(tmp_path):
    arrays, ends = example([5, 6, 7])
    arrays["obs/depth"] = np.arange(18.0)
    arrays["timestamp"] = np.arange(18) / FPS
    store = make_store(tmp_path / "t.zarr", arrays, ends)
    buffer = imported(
        tmp_path, store, keys=["obs/depth", "reward", "timestamp"], buffer_capacity=10
    )
    assert set(buffer.data_keys) == {"obs/depth", "reward", *OWN}
    taken = {key: arrays[key] for key in ("obs/depth", "reward", "timestamp")}
    check(buffer, taken, ends, first=8)
    larger = OnlineBuffer.from_zarr(store, tmp_path / "larger", fps=FPS, buffer_capacity=100)
    assert (len(larger), larger.buffer_capacity) == (18, 100)


def test_frames_past_the_last_end_are_left_out(tmp_path):
    """As a writer leaves them that is killed between its arrays and the ends."""
    arrays, _ = example([5, 6])
    buffer = imported(tmp_path, make_store(tmp_path / "s.zarr", arrays, [5]))
    check(buffer, arrays, np.array([5]))


def test_an_empty_store_makes_an_empty_buffer(tmp_path):
    arrays = {"action": np.zeros((0, 2), np.float32)}
    buffer = imported(tmp_path, make_store(tmp_path / "s.zarr", arrays, np.zeros(0, np.int64)))
    assert (len(buffer), buffer.buffer_capacity) == (0, 1)


def without(path, name):
    shutil.rmtree(path / name)
    return path


REFUSED = {
    "no data": (lambda store: without(store, "data"), {}, "a group 'data'"),
    "no ends": (lambda store: without(store, "meta"), {}, "an array 'meta/episode_ends'"),
    "no group": (lambda store: store / "data" / "reward", {}, "zarr_path: expected a Zarr group"),
    "no store": (lambda store: store / "data" / "reward" / "c", {}, "zarr_path: expected a Zarr"),
    "unknown key": (lambda store: store, {"keys": ["rewards"]}, "keys: expected some of .*rewards"),
    "no key": (lambda store: store, {"keys": [["image"]]}, "keys: expected some of .*list"),
    "no rate": (lambda store: store, {"fps": None}, "fps: expected a rate"),
    "no frames per second": (lambda store: store, {"fps": 0}, "fps"),
    "unknown window": (lambda store: store, {"delta_timestamps": {"x": [0.0]}}, "delta_timestamps"),
    "no capacity": (lambda store: store, {"buffer_capacity": 0}, "buffer_capacity"),
}


@pytest.mark.parametrize(("spoil", "options", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_imported_is_refused(tmp_path, spoil, options, said):
    store = spoil(make_store(tmp_path / "s.zarr", *example([5, 6])))
    before = snapshot(tmp_path)
    options = {"fps": FPS} | options
    refused_with(said, OnlineBuffer.from_zarr, store, tmp_path / "b", **options)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("arrays", "ends", "said"),
    [
        ({"x": np.zeros(5)}, [3, 9], r"data/x: expected at least the 9 frames .*\(5,\)"),
        (
            {"x": np.zeros(9)},
            [3, 3],
            "meta/episode_ends: .* that grow.*3 for episode 1",
        ),
        ({"x": np.zeros(9)}, [-1, 3], "meta/episode_ends.*-1 for episode 0"),
        ({"x": np.zeros(9)}, [3.0, 9.0], "meta/episode_ends: expected one whole number.*float64"),
        ({"x": np.zeros(9)}, [[3, 9]], "meta/episode_ends: expected one whole number"),
        ({"x": np.array(["a"] * 9)}, [9], "data/x: expected numbers or bools; leave it out"),
        (
            {"x": np.zeros(9), "timestamp": np.zeros((9, 2))},
            [9],
            "data/timestamp: .*one value",
        ),
        ({"x": np.zeros(9), "timestamp": np.full(9, np.nan)}, [9], "timestamp.*finite"),
        ({"_x": np.zeros(9)}, [9], "_x"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification.*")
def test_stores_that_do_not_fit_are_refused(tmp_path, arrays, ends, said):
    store = make_store(tmp_path / "s.zarr", arrays, ends)
    before = snapshot(tmp_path)
    refused_with(said, OnlineBuffer.from_zarr, store, tmp_path / "b", fps=FPS)
    assert snapshot(tmp_path) == before


def test_a_place_that_is_taken_is_refused(tmp_path):
    store = make_store(tmp_path / "s.zarr", *example([5, 6]))
    OnlineBuffer(tmp_path / "buffer", SPEC, 5)
    (tmp_path / "file").write_text("precious")
    before = snapshot(tmp_path)
    for name in ("buffer", "file"):
        with pytest.raises(FileExistsError, match="write_dir: expected nothing, or an empty"):
            OnlineBuffer.from_zarr(store, tmp_path / name, fps=FPS)
    with pytest.raises(FileNotFoundError, match="zarr_path: expected a Zarr store, got nothing"):
        OnlineBuffer.from_zarr(tmp_path / "missing", tmp_path / "b", fps=FPS)
    assert snapshot(tmp_path) == before
    (tmp_path / "empty").mkdir()
    assert len(OnlineBuffer.from_zarr(store, tmp_path / "empty", fps=FPS)) == 11
    assert not list(tmp_path.glob(".*"))


def test_a_broken_chunk_leaves_no_buffer(tmp_path):
    store = make_store(tmp_path / "s.zarr", *example([50, 6]))
    chunk = sorted((store / "data" / "image" / "c").rglob("*"))[-1]
    chunk.write_bytes(b"broken")
    with pytest.raises((ValueError, OSError)):
        OnlineBuffer.from_zarr(store, tmp_path / "b", fps=FPS)
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


@pytest.mark.parametrize("shard", [None, 8])
def test_each_chunk_is_read_once(tmp_path, monkeypatch, shard):
    arrays, ends = example([7, 30, 2, 2, 51, 1, 40])
    store = make_store(tmp_path / "s.zarr", arrays, ends, shard=shard)
    read = []
    original = zarr.Array.__getitem__

    def counting(self, selection):
        if isinstance(selection, slice):
            read.append((self.path, selection.start or 0, selection.stop))
        return original(self, selection)

    monkeypatch.setattr("fastbuffer._zarr.BYTES_AT_ONCE", 500 if shard else 1)
    monkeypatch.setattr(zarr.Array, "__getitem__", counting)
    check(imported(tmp_path, store), arrays, ends)
    for key in SPEC:
        parts = [(start, stop) for path, start, stop in read if path == f"data/{key}" and stop]
        starts, stops = zip(*parts, strict=True)
        assert starts == (0, *stops[:-1])
        assert stops[-1] >= 133
        assert all(start % (shard or 4) == 0 for start in starts)


# Buffer -> Zarr


def exported(buffer, path, **options):
    """The arrays of the store that a buffer is written to, and the ends of its episodes."""
    buffer.to_zarr(path, **options)
    root = zarr.open_group(path, mode="r")
    members = root["data"].members(max_depth=None)
    arrays = {key: array[...] for key, array in members if hasattr(array, "dtype")}
    return arrays, root["meta/episode_ends"][...]


def in_order(pair):
    """The live frames of the model in the order in which they were added."""
    return sorted(pair.model.live, key=lambda frame: frame["index"])


def live_in_order(pair):
    """Their columns, but for those that an export leaves out."""
    frames = in_order(pair)
    keys = [key for key in frames[0] if key not in ("index", "episode_index")]
    return {key: np.stack([np.asarray(frame[key]) for frame in frames]) for key in keys}


@pytest.mark.parametrize(
    "calls", [[[5]], [[5, 4], [3]], [[7], [4, 6]], [[30]], [[12]], [[9], [2, 4, 1]]]
)
def test_live_episodes_are_written_in_the_order_they_came(tmp_path, rng, calls):
    pair = Pair(tmp_path / "b", SPEC, 12, FPS, {"action": [-0.1, 0.0]})
    for lengths in calls:
        pair.add(make_episodes(lengths, SPEC, rng, FPS))
    arrays, ends = exported(pair.buffer, tmp_path / "s.zarr")
    expected = live_in_order(pair)
    assert set(arrays) == set(expected)
    for key, values in expected.items():
        assert_equal(arrays[key], values)
    numbers = [frame["episode_index"] for frame in pair.model.live]
    assert ends.tolist() == [
        i + 1 for i in range(len(numbers)) if numbers[i] != ([*numbers, None])[i + 1]
    ]
    assert pair.buffer.delta_timestamps is not None

    again = OnlineBuffer.from_zarr(tmp_path / "s.zarr", tmp_path / "again", fps=FPS)
    for key, values in expected.items():
        assert_equal(np.asarray(again.get_data_by_key(key)), values)
    second, ends_again = exported(again, tmp_path / "second.zarr")
    assert ends_again.tolist() == ends.tolist()
    for key in arrays:
        assert_equal(second[key], arrays[key])


def test_an_oldest_episode_that_lost_frames_is_kept_or_dropped(tmp_path, rng):
    pair = Pair(tmp_path / "b", SPEC, 12, FPS)
    for lengths, partial in ([[7, 4], 0], [[3], 5], [[4], 1], [[1], 0], [[30], 12]):
        pair.add(make_episodes(lengths, SPEC, rng, FPS))
        expected = live_in_order(pair)
        kept, kept_ends = exported(pair.buffer, tmp_path / "kept.zarr", partial="keep")
        left, left_ends = exported(pair.buffer, tmp_path / "left.zarr", partial="drop")
        for key, values in expected.items():
            assert_equal(kept[key], values)
            assert_equal(left[key], values[partial:])
        assert left_ends.tolist() == [end - partial for end in kept_ends.tolist()][partial > 0 :]


def test_the_store_has_the_layout_that_is_asked_for(tmp_path, rng):
    buffer = OnlineBuffer(tmp_path / "b", SPEC, 50, FPS)
    buffer.add_data(make_episodes([30, 10], SPEC, rng, FPS))
    for options, image in [
        ({}, (16, 256)),
        ({"image_frames_per_shard": None}, (16, None)),
        ({"image_frames_per_shard": 10, "image_chunk": 5}, (5, 10)),
    ]:
        buffer.to_zarr(tmp_path / "s.zarr", **options)
        data = zarr.open_group(tmp_path / "s.zarr", mode="r")["data"]
        chunk, shard = image
        assert data["image"].chunks == (chunk, 4, 5, 3)
        assert data["image"].shards == (None if shard is None else (shard, 4, 5, 3))
        assert (data["action"].chunks, data["action"].shards) == ((256, 2), None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "s.zarr"]


def test_an_empty_buffer_makes_an_empty_store(tmp_path):
    buffer = OnlineBuffer(tmp_path / "b", SPEC, 50, FPS)
    arrays, ends = exported(buffer, tmp_path / "s.zarr", partial="drop")
    assert arrays["image"].shape == (0, 4, 5, 3)
    assert ends.tolist() == []
    assert len(OnlineBuffer.from_zarr(tmp_path / "s.zarr", tmp_path / "again", fps=FPS)) == 0


def test_exports_with_wrong_arguments_are_refused(tmp_path, rng):
    buffer = OnlineBuffer(tmp_path / "b", SPEC, 50, FPS)
    buffer.add_data(make_episodes([3], SPEC, rng, FPS))
    before = snapshot(tmp_path)
    path = tmp_path / "s.zarr"
    refused_with(
        "image_frames_per_shard: .*multiple of 16", buffer.to_zarr, path, image_frames_per_shard=40
    )
    refused_with("image_chunk: expected at least 1", buffer.to_zarr, path, image_chunk=0)
    refused_with('partial: expected "keep" or "drop"', buffer.to_zarr, path, partial="some")
    with pytest.raises(TypeError, match="path"):
        buffer.to_zarr(None)
    for size in (2**40, 2**62):
        options = {"image_chunk": size, "image_frames_per_shard": size}
        refused_with("data/image: expected at most .* frames", buffer.to_zarr, path, **options)
    with pytest.raises(FileExistsError, match="path: expected nothing, or a Zarr store"):
        buffer.to_zarr(tmp_path / "b")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "keys", [["a", "a/b"], ["a/__x"], ["a//b"], ["../x"], ["a\\b"], ["x/zarr.json"]]
)
def test_keys_that_a_store_cannot_have_are_refused(tmp_path, keys):
    spec = {key: {"shape": (), "dtype": "f4"} for key in keys}
    buffer = OnlineBuffer(tmp_path / "b", spec, 5, FPS)
    refused_with("data_keys: expected keys that can name", buffer.to_zarr, tmp_path / "s.zarr")
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("capacity", [43, 42])
def test_an_export_during_inserts_is_complete_or_refused(tmp_path, monkeypatch, rng, capacity):
    buffer = OnlineBuffer(tmp_path / "b", SPEC, capacity, FPS, output="numpy")
    buffer.add_data(make_episodes([30, 10], SPEC, rng, FPS))
    buffer.to_zarr(tmp_path / "s.zarr")
    before, images = snapshot(tmp_path / "s.zarr"), buffer.get_data_by_key("image")
    append = fastbuffer._zarr.ArrayWriter.append
    episodes = iter([make_episodes([3], SPEC, rng, FPS)])

    def inserting(self, rows):
        for data in episodes:
            buffer.add_data(data)
        append(self, rows)

    monkeypatch.setattr(fastbuffer._zarr.ArrayWriter, "append", inserting)
    if capacity < 43:
        with pytest.raises(RuntimeError, match="were overwritten while they were exported"):
            buffer.to_zarr(tmp_path / "s.zarr")
        assert snapshot(tmp_path / "s.zarr") == before
        return
    buffer.to_zarr(tmp_path / "s.zarr")
    store = zarr.open_group(tmp_path / "s.zarr", mode="r")
    assert store["meta/episode_ends"][...].tolist() == [30, 40]
    assert_equal(store["data/image"][...], images)


LONG_EXPORT = """
import sys
import numpy as np
from fastbuffer import OnlineBuffer
import fastbuffer.io.zarr
fastbuffer.io.zarr.BYTES_AT_ONCE = 20_000
buffer = OnlineBuffer(sys.argv[1], output="numpy", mode="r")
print("begun", flush=True)
for _ in range(100):
    buffer.to_zarr(sys.argv[2])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_export_leaves_the_old_store(tmp_path, number, rng):
    spec = {"image": {"shape": (32, 32, 3), "dtype": np.uint8}}
    with OnlineBuffer(tmp_path / "b", spec, 2000, FPS) as buffer:
        buffer.add_data(make_episodes([1000, 1000], spec, rng, FPS))
        buffer.to_zarr(tmp_path / "s.zarr")
    arrays = zarr.open_group(tmp_path / "s.zarr", mode="r")["data/image"][...]
    building = tmp_path / ".s.zarr.building" / "store" / "data" / "image" / "c"
    with start_python(LONG_EXPORT, tmp_path / "b", tmp_path / "s.zarr") as process:
        process.stdout.readline()
        deadline = time.monotonic() + 60
        while not building.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode != 0
    np.testing.assert_array_equal(
        zarr.open_group(tmp_path / "s.zarr", mode="r")["data/image"][...], arrays
    )
    buffer.to_zarr(tmp_path / "s.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "s.zarr"]
