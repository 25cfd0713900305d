"""Synthetic datasets: what is in them, what is refused, and that they are complete or not there."""

import dataclasses
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fastbuffer
from fastbuffer import BufferLockedError, SyntheticSchema, create_replay_buffer_from_synthetic
from fastbuffer.synthetic import episodes
from fastbuffer.synthetic.schema import KEYS, task_of
from fastbuffer.synthetic.tasks import Task
from helpers import refused_with, run_python, snapshot, start_python

GOLDEN = Path(__file__).parent / "data" / "golden"
CASES = json.loads((GOLDEN / "cases.json").read_text())
GOLDEN_KEYS = {
    "agentview_rgb": "image",
    "synthetic_position": "position",
    "synthetic_position_action": "action",
    "synthetic_context": "context",
    "synthetic_mode_id": "mode_id",
}
SMALL = {"num_episodes": 6, "trajectory_length": 7, "image_size": 16}


@pytest.fixture
def drawing():
    """For tests that draw."""
    pytest.importorskip("cv2")
    pytest.importorskip("matplotlib")


def schema(path, **changes):
    return SyntheticSchema(path, **SMALL | changes)


def arrays_of(path):
    """All arrays of a store, by their paths."""
    zarr = pytest.importorskip("zarr")
    root = zarr.open_group(path, mode="r")
    return {name: array for name, array in root.members(max_depth=None) if hasattr(array, "dtype")}


def written_positions(schema):
    """Positions and modes, one after the other, by the rules alone and without a store."""
    task = task_of(schema)
    rng = np.random.default_rng(schema.seed)
    counts = episodes.mode_counts(schema.num_episodes, task.num_modes, schema.mode_weights)
    drawn = list(episodes.draw(task, counts, schema.noise_std, rng))
    modes = np.repeat(np.arange(task.num_modes), counts)
    pairs = list(zip(modes, drawn, strict=True))
    rng.shuffle(pairs)  # a list, as the rule has it
    return [int(mode) for mode, _ in pairs], np.concatenate([p for _, p in pairs])


# Content


@pytest.mark.parametrize("name", CASES)
def test_datasets_equal_the_golden_ones(tmp_path, drawing, name):
    path = tmp_path / "golden.zarr"
    create_replay_buffer_from_synthetic(SyntheticSchema(path, task_name=name, **CASES[name]))
    golden, arrays = np.load(GOLDEN / f"{name}.npz"), arrays_of(path)
    for key, golden_key in GOLDEN_KEYS.items():
        got = arrays[f"data/{key}"][...]
        assert got.dtype == golden[golden_key].dtype
        np.testing.assert_array_equal(got, golden[golden_key], key)
    np.testing.assert_array_equal(arrays["meta/episode_ends"][...], golden["episode_ends"])


@pytest.mark.parametrize("name", CASES)
def test_positions_equal_the_golden_ones_without_drawing(name):
    modes, positions = written_positions(SyntheticSchema("x", task_name=name, **CASES[name]))
    golden = np.load(GOLDEN / f"{name}.npz")
    np.testing.assert_array_equal(positions, golden["position"])
    np.testing.assert_array_equal(
        np.repeat(modes, len(positions) // len(modes)), golden["mode_id"][:, 0]
    )


def draw_whole_frames(cv2, positions, mode, task, size):
    """Each image drawn from nothing, as the rules say."""

    def pixel(x, y):
        clipped = np.clip([x * (size - 1), (1 - y) * (size - 1)], 0, size - 1)
        return tuple(int(value) for value in clipped)

    for t in range(len(positions)):
        image = np.full((size, size, 3), 240, np.uint8)
        for x0, y0, x1, y1 in task.obstacles:
            cv2.rectangle(image, pixel(x0, y1), pixel(x1, y0), (80, 80, 80), -1)
        trail = np.array([pixel(*p) for p in positions[: t + 1]], np.int32)
        if t > 0:
            cv2.polylines(image, [trail], False, (180, 180, 180), 1, cv2.LINE_8)
        cv2.circle(image, pixel(*positions[t]), max(2, int(0.047 * size)), (66, 133, 244), -1)
        if task.name == "conditional_circle":
            k = max(4, int(0.094 * size))
            color = [(0, 0, 255), (255, 0, 0)][mode]
            cv2.rectangle(image, (2, 2), (2 + k, 2 + k), color, -1)
        yield image


@pytest.mark.parametrize(
    "changes",
    [
        {"task_name": "circle", "image_size": 96, "noise_std": 0.3},
        {"task_name": "conditional_circle", "image_size": 8, "mode_weights": np.array([1, 5])},
        {"task_name": "sequential_decision", "trajectory_length": 2},
        {"task_name": "radial", "num_modes": 5, "noise_std": 0.0},
        {"task_name": "radial", "num_modes": 1, "trajectory_length": 40},
        {"task_name": "corridor_navigation", "num_modes": 6, "num_styles": 3, "noise_std": 0.002},
        {"task_name": "circle", "num_episodes": 1, "seed": 2**40, "trajectory_length": 300},
    ],
    ids=lambda changes: changes["task_name"],
)
def test_images_are_those_drawn_frame_by_frame(tmp_path, drawing, changes):
    import cv2

    wanted = schema(tmp_path / "s.zarr", **changes)
    create_replay_buffer_from_synthetic(wanted)
    arrays, task = arrays_of(wanted.zarr_path), task_of(wanted)
    modes, positions = written_positions(wanted)
    np.testing.assert_array_equal(arrays["data/synthetic_position"][...], positions)
    images = arrays["data/agentview_rgb"][...]
    length = wanted.trajectory_length
    for number, mode in enumerate(modes):
        rows = slice(number * length, (number + 1) * length)
        expected = draw_whole_frames(cv2, positions[rows], mode, task, wanted.image_size)
        np.testing.assert_array_equal(images[rows], np.stack(list(expected)))
        actions = arrays["data/synthetic_position_action"][rows]
        np.testing.assert_array_equal(actions[:-1], np.diff(positions[rows], axis=0))
        assert not actions[-1].any()


def test_modes_share_episodes_by_weight():
    def counts(n, weights):
        return episodes.mode_counts(n, len(weights), weights)

    assert episodes.mode_counts(7, 4, None) == [2, 2, 2, 1]
    assert counts(4, [3.0, 1.0]) == [3, 1]
    assert counts(2, [1, 3]) == [1, 1]  # halves: the lower mode's goes first
    assert counts(10, [1e308, 1e308, 1e308]) == [4, 3, 3]
    assert counts(3, [1e-300, 1.0]) == [0, 3]
    assert counts(3, [1.0, 1.0, 7.0]) == [1, 0, 2]  # thirds, all three
    assert counts(1000, [1, 4, 1]) == [167, 667, 166]
    rng = np.random.default_rng(0)
    for _ in range(200):
        weights, n = rng.random(rng.integers(1, 9)) + 0.01, int(rng.integers(0, 50))
        got = np.array(counts(n, list(weights)))
        assert got.sum() == n
        assert (abs(got - n * weights / weights.sum()) < 1).all()


def test_episodes_keep_out_of_obstacles_or_are_given_up(tmp_path, drawing, monkeypatch):
    wanted = schema(
        "x",
        task_name="corridor_navigation",
        noise_std=0.04,
        num_episodes=300,
        trajectory_length=60,
    )
    (box,) = task_of(wanted).obstacles

    def hits(positions):
        x, y = positions.T
        return ((box.x0 <= x) & (x <= box.x1) & (box.y0 <= y) & (y <= box.y1)).sum()

    _, positions = written_positions(wanted)
    assert hits(positions) == 0
    with monkeypatch.context() as patched:
        patched.setattr(Task, "is_hit_by", lambda self, positions: False)
        _, unguarded = written_positions(wanted)
    assert hits(unguarded) > 0
    impossible = schema(
        tmp_path / "s.zarr",
        task_name="corridor_navigation",
        num_modes=8,
        noise_std=0.2,
        trajectory_length=300,
    )
    with pytest.raises(RuntimeError, match=r"noise_std.*corridor_navigation.*50 draws"):
        create_replay_buffer_from_synthetic(impossible)
    assert list(tmp_path.iterdir()) == []


# The store


def test_the_store_has_the_agreed_layout(tmp_path, drawing):
    zarr = pytest.importorskip("zarr")
    create_replay_buffer_from_synthetic(schema(tmp_path / "s.zarr"), image_frames_per_shard=32)
    arrays = arrays_of(tmp_path / "s.zarr")
    assert set(arrays) == {*(f"data/{key}" for key in KEYS), "meta/episode_ends"}
    images = arrays["data/agentview_rgb"]
    assert (images.shape, images.shards, images.chunks) == (
        (42, 16, 16, 3),
        (32, 16, 16, 3),
        (16, 16, 16, 3),
    )
    for key, width in [
        ("synthetic_position", 2),
        ("synthetic_context", 2),
        ("synthetic_mode_id", 1),
    ]:
        array = arrays[f"data/{key}"]
        assert (array.shape, array.shards, array.chunks) == ((42, width), None, (256, width))
    for name, array in arrays.items():
        assert array.metadata.zarr_format == 3
        if name == "meta/episode_ends":
            assert (array.compressors, array.chunks, array.dtype) == ((), (6,), np.int64)
            assert array[...].tolist() == [7, 14, 21, 28, 35, 42]
        else:
            (codec,) = array.compressors
            assert codec.cname.value == "lz4"
            assert (codec.clevel, codec.shuffle.value) == (5, "noshuffle")
    assert zarr.open_group(tmp_path / "s.zarr", mode="r")["data/agentview_rgb"].shape[0] == 42
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.zarr", "s_trajectories.png"]


@pytest.mark.parametrize("shard", [None, 16, 48, 256, np.int64(4096)])
def test_shards_do_not_change_what_is_stored(tmp_path, drawing, shard):
    first, second = (
        schema(tmp_path / "a.zarr", num_episodes=50),
        schema(tmp_path / "b.zarr", num_episodes=50),
    )
    create_replay_buffer_from_synthetic(first)
    create_replay_buffer_from_synthetic(second, image_frames_per_shard=shard)
    expected, got = arrays_of(first.zarr_path), arrays_of(second.zarr_path)
    assert got["data/agentview_rgb"].shards == (None if shard is None else (shard, 16, 16, 3))
    for key, array in expected.items():
        np.testing.assert_array_equal(got[key][...], array[...])


def test_only_the_wanted_arrays_are_written(tmp_path, drawing):
    wanted = schema(tmp_path / "s.zarr", keys=["synthetic_position"])
    assert list(wanted.get_zarr_array_specs()) == ["synthetic_position"]
    create_replay_buffer_from_synthetic(wanted)
    assert set(arrays_of(tmp_path / "s.zarr")) == {"data/synthetic_position", "meta/episode_ends"}


def test_any_object_with_the_attributes_will_do(tmp_path, drawing):
    ours = schema(tmp_path / "a.zarr", seed=3)
    specs = ours.get_zarr_array_specs()
    specs["agentview_rgb"] |= {"chunks": (4, 16, 16, 3)}
    specs["synthetic_position"] |= {"chunks": (10, 2), "needs_compressor": False}
    attributes = dataclasses.asdict(ours) | {"zarr_path": str(tmp_path / "b.zarr")}
    theirs = SimpleNamespace(**attributes, get_zarr_array_specs=lambda: specs)
    create_replay_buffer_from_synthetic(ours)
    create_replay_buffer_from_synthetic(theirs, image_frames_per_shard=12)
    expected, got = arrays_of(tmp_path / "a.zarr"), arrays_of(tmp_path / "b.zarr")
    assert got["data/agentview_rgb"].chunks[0] == 4
    assert got["data/synthetic_position"].compressors == ()
    for key, array in expected.items():
        np.testing.assert_array_equal(got[key][...], array[...])
    good = specs["synthetic_position"]
    for key, spec in [
        ("else", good),
        ("synthetic_position", good | {"shape": (0, 3)}),
        ("synthetic_position", good | {"dtype": "float64"}),
        ("synthetic_position", good | {"chunks": (0, 2)}),
        ("synthetic_position", good | {"chunks": (10, 1)}),
        ("synthetic_position", {"shape": (0, 2)}),
    ]:
        specs[key] = spec
        refused_with(rf"get_zarr_array_specs.*{key}", create_replay_buffer_from_synthetic, theirs)
        del specs[key]


COUNTED = """
import collections
import importlib.util
import sys
import zarr.storage
find_spec = importlib.util.find_spec
from fastbuffer import SyntheticSchema, create_replay_buffer_from_synthetic

written = collections.Counter()
for name in ("set", "set_if_not_exists"):
    original = getattr(zarr.storage.LocalStore, name)

    async def counting(self, key, value, *rest, original=original):
        written[key] += 1
        return await original(self, key, value, *rest)

    setattr(zarr.storage.LocalStore, name, counting)
if sys.argv[2] == "plain":
    importlib.util.find_spec = lambda name: None if name == "zarrs" else find_spec(name)
create_replay_buffer_from_synthetic(
    SyntheticSchema(sys.argv[1], num_episodes=40, trajectory_length=30, image_size=16), 64
)
shards = [key for key in written if "agentview_rgb/c/" in key]
chunks = [key for key in written if "synthetic_position/c/" in key]
print(len(shards), len(chunks), max(n for key, n in written.items() if "/c/" in key))
"""


def test_each_shard_and_chunk_is_written_once(tmp_path, drawing):
    shards = str(-(-1200 // 64))
    assert run_python(COUNTED, tmp_path / "s.zarr", "plain").split() == [shards, "5", "1"]


def test_the_codecs_of_zarrs_write_where_they_are_installed(tmp_path, drawing):
    """They write files by themselves, not through the store."""
    pytest.importorskip("zarrs")
    assert run_python(COUNTED, tmp_path / "s.zarr", "fast").split() == ["0", "0", "1"]
    assert len(list((tmp_path / "s.zarr/data/agentview_rgb/c").iterdir())) == 19


def test_the_codecs_of_zarrs_store_the_same(tmp_path, drawing):
    pytest.importorskip("zarrs")
    code = """
import importlib.util, sys
if sys.argv[2] == "without":
    importlib.util.find_spec = lambda name: None
from fastbuffer import SyntheticSchema, create_replay_buffer_from_synthetic
create_replay_buffer_from_synthetic(SyntheticSchema(sys.argv[1], num_episodes=20, image_size=16))
"""
    for how in ("with", "without"):
        run_python(code, tmp_path / f"{how}.zarr", how)
    without, fast = arrays_of(tmp_path / "without.zarr"), arrays_of(tmp_path / "with.zarr")
    for key, array in without.items():
        np.testing.assert_array_equal(fast[key][...], array[...])


# What is refused


REFUSED = {
    "unknown task": (
        {"task_name": "square"},
        "task_name: .*circle.*radial.*corridor_navigation.*square",
    ),
    "no episodes": ({"num_episodes": 0}, "num_episodes: expected at least 1"),
    "negative modes": ({"num_modes": -1}, "num_modes: expected at least 1"),
    "no styles": ({"num_styles": 0}, "num_styles: expected at least 1"),
    "odd gaps": (
        {"task_name": "corridor_navigation", "num_modes": 3},
        "num_modes: expected an even",
    ),
    "many directions": (
        {"task_name": "radial", "num_modes": 257},
        "num_modes: expected at most 256",
    ),
    "many ways": (
        {"task_name": "corridor_navigation", "num_modes": 128, "num_styles": 3},
        r"num_modes \* num_styles: expected at most 256, got 384",
    ),
    "few weights": ({"mode_weights": [1.0]}, "mode_weights: expected 2 numbers.*got 1"),
    "a weight of zero": ({"mode_weights": [1.0, 0.0]}, r"mode_weights\[1\]: .*above 0, got 0"),
    "a negative weight": ({"mode_weights": [-1.0, 1.0]}, r"mode_weights\[0\]: .*above 0"),
    "a weight that is NaN": ({"mode_weights": [1.0, float("nan")]}, r"mode_weights\[1\]: .*nan"),
    "an infinite weight": ({"mode_weights": [float("inf"), 1.0]}, r"mode_weights\[0\]: .*inf"),
    "short": ({"trajectory_length": 1}, "trajectory_length: expected at least 2"),
    "tiny images": ({"image_size": 7}, "image_size: expected at least 8"),
    "negative noise": ({"noise_std": -0.1}, "noise_std: expected at least 0"),
    "noise that is NaN": ({"noise_std": float("nan")}, "noise_std: expected at least 0"),
    "infinite noise": ({"noise_std": float("inf")}, "noise_std: expected a finite"),
    "negative seed": ({"seed": -1}, "seed: expected at least 0"),
    "unknown key": ({"keys": ["image"]}, "keys: expected some of agentview_rgb.*'image'"),
    "no keys": ({"keys": []}, "keys: expected some of"),
    "empty path": ({"zarr_path": ""}, "zarr_path"),
}
WRONG_TYPES = {
    "num_episodes": 1.5,
    "num_modes": True,
    "seed": "1",
    "image_size": None,
    "trajectory_length": np.float64(9),
    "noise_std": "0.1",
    "mode_weights": "11",
    "keys": "synthetic_position",
    "zarr_path": 3,
}


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_made_is_refused(tmp_path, changes, said):
    arguments = SMALL | {"zarr_path": tmp_path / "s.zarr"} | changes
    refused_with(said, SyntheticSchema, **arguments)
    good = schema(tmp_path / "s.zarr")
    attributes = dataclasses.asdict(good) | changes
    other = SimpleNamespace(**attributes, get_zarr_array_specs=good.get_zarr_array_specs)
    refused_with(said, create_replay_buffer_from_synthetic, other)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value"), WRONG_TYPES.items(), ids=WRONG_TYPES)
def test_wrong_types_are_refused(tmp_path, name, value):
    with pytest.raises(TypeError, match=name):
        SyntheticSchema(**SMALL | {"zarr_path": tmp_path / "s.zarr"} | {name: value})


def test_shards_are_whole_chunks(tmp_path):
    for shard in (0, -16, 8, 250, 2**70):
        refused_with(
            r"image_frames_per_shard: expected (a positive multiple of 16|at least)",
            *(create_replay_buffer_from_synthetic, schema(tmp_path / "s.zarr"), shard),
        )
    for shard in (True, 16.0, "16"):
        with pytest.raises(TypeError, match="image_frames_per_shard"):
            create_replay_buffer_from_synthetic(schema(tmp_path / "s.zarr"), shard)
    assert list(tmp_path.iterdir()) == []


# Complete or not at all


def test_a_dataset_is_replaced_by_the_next_one(tmp_path, drawing):
    path = tmp_path / "s.zarr"
    create_replay_buffer_from_synthetic(schema(path))
    picture = (tmp_path / "s_trajectories.png").read_bytes()
    create_replay_buffer_from_synthetic(schema(path, task_name="radial", num_episodes=2))
    assert arrays_of(path)["data/synthetic_position"].shape == (14, 2)
    assert (tmp_path / "s_trajectories.png").read_bytes() != picture
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.zarr", "s_trajectories.png"]


def test_only_a_store_or_nothing_is_replaced(tmp_path):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("precious")
    before = snapshot(tmp_path)
    for name in ("file", "full"):
        with pytest.raises(FileExistsError, match="zarr_path: expected nothing, or a Zarr store"):
            create_replay_buffer_from_synthetic(schema(tmp_path / name))
    assert snapshot(tmp_path) == before
    (tmp_path / "s_trajectories.png").mkdir()
    with pytest.raises(FileExistsError, match="no directory where the picture goes"):
        create_replay_buffer_from_synthetic(schema(tmp_path / "s.zarr"))


def test_a_failure_leaves_no_directories(tmp_path, drawing):
    wanted = schema(
        tmp_path / "new" / "deeper" / "s.zarr",
        task_name="corridor_navigation",
        noise_std=0.3,
        num_modes=8,
        trajectory_length=300,
    )
    with pytest.raises(RuntimeError, match="noise_std"):
        create_replay_buffer_from_synthetic(wanted)
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_one(tmp_path, drawing):
    (tmp_path / "disk").mkdir()
    (tmp_path / "s.zarr").symlink_to(tmp_path / "disk" / "real.zarr")
    create_replay_buffer_from_synthetic(schema(tmp_path / "s.zarr"))
    assert (tmp_path / "s.zarr").is_symlink()
    assert arrays_of(tmp_path / "disk" / "real.zarr")["data/synthetic_position"].shape == (42, 2)


LONG = """
import sys
from fastbuffer import SyntheticSchema, create_replay_buffer_from_synthetic
print("begun", flush=True)
create_replay_buffer_from_synthetic(SyntheticSchema(sys.argv[1], num_episodes=10**6, image_size=32))
"""


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("stage", ["positions", "store/data/agentview_rgb/c"])
def test_an_interrupted_dataset_leaves_the_old_one(tmp_path, drawing, number, stage):
    path = tmp_path / "s.zarr"
    create_replay_buffer_from_synthetic(schema(path))
    before = snapshot(tmp_path)
    building = tmp_path / ".s.zarr.building"
    code = LONG if stage == "positions" else LONG.replace("10**6", "3000")
    with start_python(code, path) as process:
        assert process.stdout.readline() == "begun\n"
        wait_for((building / stage).exists)
        with pytest.raises(BufferLockedError, match=str(process.pid)):
            create_replay_buffer_from_synthetic(schema(path))
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode != 0
    if number == signal.SIGINT:
        assert not building.exists()
    assert {
        k: v for k, v in snapshot(tmp_path).items() if not k.startswith(building.name)
    } == before
    create_replay_buffer_from_synthetic(schema(path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.zarr", "s_trajectories.png"]
    assert arrays_of(path)["data/synthetic_position"].shape == (42, 2)


def test_a_full_disk_leaves_the_old_one(tmp_path, drawing):
    resource = pytest.importorskip("resource")
    path = tmp_path / "s.zarr"
    create_replay_buffer_from_synthetic(schema(path))
    before = snapshot(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            create_replay_buffer_from_synthetic(schema(path, num_episodes=100, image_size=64))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert snapshot(tmp_path) == before


# Memory and pictures


PEAK = """
import sys
from fastbuffer import SyntheticSchema, create_replay_buffer_from_synthetic
create_replay_buffer_from_synthetic(
    SyntheticSchema(sys.argv[1], num_episodes=int(sys.argv[2]), image_size=16, trajectory_length=20)
)
with open("/proc/self/status") as file:
    print(next(line for line in file if line.startswith("VmHWM")).split()[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads its peak memory from /proc")
def test_memory_does_not_grow_with_the_number_of_episodes(tmp_path, drawing):
    """Their images alone, 123 MB, would be seen."""
    few, many = (int(run_python(PEAK, tmp_path / f"{n}.zarr", n)) for n in (1500, 9500))
    assert many < 1.2 * few


SHOWN = """
import sys
import fastbuffer._progress
from fastbuffer import SyntheticSchema, create_replay_buffer_from_synthetic
fastbuffer._progress.SECONDS_WITHOUT_A_BAR = 0.0
create_replay_buffer_from_synthetic(SyntheticSchema(sys.argv[1], num_episodes=300, image_size=8))
"""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_on_a_terminal_only(tmp_path, drawing, is_terminal):
    pytest.importorskip("tqdm")
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    if is_terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-c", SHOWN, tmp_path / "s.zarr"]
    done = subprocess.run(command, stdout=theirs, stderr=theirs, check=True)
    os.set_blocking(ours, False)
    try:
        shown = os.read(ours, 1 << 16).decode()
    except BlockingIOError:
        shown = ""
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0
    assert ("synthetic episodes" in shown and "/300" in shown) == is_terminal


def seen(picture, x, y):
    """The darkest-coloured pixel of a picture near a place of the world."""
    height, width = picture.shape[:2]
    side = 0.84 * height  # of the square that the axes' box of 0.7 by 0.84 has room for
    column = (0.08 + 0.35) * width + (x - 0.5) / 1.06 * side
    row = height - (0.08 * height + (y + 0.03) / 1.06 * side)
    near = picture[int(row) - 5 : int(row) + 6, int(column) - 5 : int(column) + 6].reshape(-1, 3)
    return near[near.sum(axis=1).argmin()]


@pytest.mark.parametrize("task", [*CASES, "many"])
def test_the_picture_shows_trajectories_in_their_modes_colours(tmp_path, drawing, task):
    from matplotlib.image import imread

    from fastbuffer.synthetic.plot import mode_colors

    changes = {"task_name": task} if task != "many" else {"task_name": "radial", "num_modes": 40}
    changes |= {"num_episodes": 80, "noise_std": 0.002, "trajectory_length": 60}
    wanted = schema(tmp_path / "s.zarr", **changes)
    create_replay_buffer_from_synthetic(wanted)
    picture = imread(tmp_path / "s_trajectories.png")[..., :3]
    made = task_of(wanted)
    for color, path in zip(mode_colors(made.num_modes), made.paths, strict=True):
        # Where this mode's path is furthest from all others.
        others = [other for other in made.paths if other is not path]
        apart = [min(np.linalg.norm(o - p, axis=1).min() for o in others) for p in path]
        place = path[int(np.argmax(apart))]
        tone = seen(picture, *place)
        drawn = 1 - (1 - np.array(color[:3])) * (1 - tone.min()) / (1 - min(color[:3]) + 1e-9)
        assert abs(tone - drawn).max() < 0.2, (task, place, tone, color)
    for box in made.obstacles:
        middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
        assert abs(seen(picture, *middle) - 0.35).max() < 0.02


@pytest.mark.parametrize("missing", ["cv2", "matplotlib"])
def test_a_missing_package_is_named(tmp_path, drawing, missing):
    code = f"""
import sys
sys.modules[{missing!r}] = None
from fastbuffer import SyntheticSchema, create_replay_buffer_from_synthetic
try:
    create_replay_buffer_from_synthetic(SyntheticSchema(sys.argv[1]))
except ImportError as error:
    print(error)
"""
    said = run_python(code, tmp_path / "s.zarr")
    assert f"needs the package '{missing}': pip install 'fastbuffer[synthetic]'" in said
    assert list(tmp_path.iterdir()) == []


def test_a_schema_is_made_without_zarr(tmp_path):
    code = "import sys; from fastbuffer import SyntheticSchema; print('zarr' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout == "False\n"


RACE = """
import sys
from fastbuffer import BufferLockedError
from fastbuffer._staging import staging
from pathlib import Path
import time
built = 0
while built < 50:
    try:
        with staging(Path(sys.argv[1])) as directory:
            for k in range(20):
                (directory / f"part {k}").mkdir()
        built += 1
    except BufferLockedError:
        time.sleep(0.0005)
print(built)
"""


def test_building_in_turns_is_done_or_refused_and_nothing_else(tmp_path):
    processes = [start_python(RACE, tmp_path / "target") for _ in range(3)]
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert output == "50\n"
    assert list(tmp_path.iterdir()) == []


def test_what_comes_to_the_place_meanwhile_is_left_alone(tmp_path, drawing, monkeypatch):
    path = tmp_path / "s.zarr"
    save = fastbuffer.synthetic.dataset.TrajectoryPicture.save

    def coming(self, picture):
        path.mkdir()
        (path / "thesis.tex").write_text("precious")
        save(self, picture)

    monkeypatch.setattr(fastbuffer.synthetic.dataset.TrajectoryPicture, "save", coming)
    with pytest.raises(FileExistsError, match="expected nothing, or a Zarr store"):
        create_replay_buffer_from_synthetic(schema(path))
    assert (path / "thesis.tex").read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_of_that_name_is_not_built_in(tmp_path):
    (tmp_path / ".s.zarr.building").mkdir()
    (tmp_path / ".s.zarr.building" / "mine").write_text("precious")
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match="a place to build in"):
        create_replay_buffer_from_synthetic(schema(tmp_path / "s.zarr"))
    assert snapshot(tmp_path) == before
