"""Making a synthetic dataset: complete, or not at all.

Positions are drawn first, into a file, since only then the order of the episodes is known. Then one
episode after the other is drawn as images and handed to the writers of the arrays, so the memory
that is needed does not grow with the number of episodes.
"""

import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import describe, refused
from fastbuffer._chunks import IMAGE_CHUNK
from fastbuffer._progress import progress
from fastbuffer._staging import check_replaceable, replace_store, staging
from fastbuffer._zarr import (
    Layout,
    checked_shard,
    new_store,
)
from fastbuffer.synthetic.episodes import actions_of, draw, mode_counts, shuffled
from fastbuffer.synthetic.plot import TrajectoryPicture
from fastbuffer.synthetic.render import Renderer
from fastbuffer.synthetic.schema import (
    ACTION_KEY,
    IMAGE_KEY,
    KEYS,
    MODE_KEY,
    POSITION_KEY,
    SyntheticSchema,
    check,
    frame_arrays,
    task_of,
)
from fastbuffer.synthetic.tasks import Positions, Task

Array = NDArray[Any]


def create_replay_buffer_from_synthetic(
    schema: SyntheticSchema, image_frames_per_shard: int | None = 256
) -> None:
    """Make the dataset that `schema` describes, as a Zarr v3 store in a directory.

    The store has `data/<key>` for each array of the schema, with all frames of all episodes, and
    `meta/episode_ends` (int64): for each episode, how many frames there are up to its end. Beside
    it `<stem>_trajectories.png` shows all trajectories. What was there before is replaced when both
    are complete, and left as it was if this fails.

    Args:
        schema: A `SyntheticSchema`, or an object with its attributes and `get_zarr_array_specs`.
        image_frames_per_shard: Frames per shard of the images, a multiple of the frames per chunk
            (16). None for chunks without shards.

    Raises:
        ValueError: A value of the schema, or `image_frames_per_shard`, is not allowed.
        TypeError: One has the wrong type.
        RuntimeError: The noise leads every draw of an episode into an obstacle.
        FileExistsError: Something else than a Zarr store is at `zarr_path`.
        BufferLockedError: Another process is making a dataset there.
        OSError: The dataset cannot be written.
        ImportError: OpenCV or matplotlib is not installed.
    """
    check(schema)
    task = task_of(schema)
    layouts = _layouts(schema, task, image_frames_per_shard)
    named = Path(_arguments.path(schema.zarr_path, "zarr_path")).absolute()
    target = named.resolve()  # a link stays one
    check_replaceable(target, "zarr_path")
    if picture_path(named).is_dir():
        expected = "no directory where the picture goes"
        raise FileExistsError(refused("zarr_path", expected, picture_path(named)))
    with staging(target) as directory:
        store, picture = directory / "store", directory / "trajectories.png"
        episodes = _written_order(schema, task, directory / "positions")
        _make(schema, task, layouts, episodes, store, picture)
        replace_store(store, target)
        shutil.move(picture, picture_path(named))


def picture_path(store: Path) -> Path:
    """Where the picture of a dataset goes, by the absolute path of its store."""
    return store.with_name(f"{store.stem}_trajectories.png")


def _layouts(schema: SyntheticSchema, task: Task, image_frames_per_shard: Any) -> dict[str, Layout]:
    """How to store each array that the schema wants.

    Raises:
        ValueError: The schema wants something else than there is, or the shards do not fit.
        TypeError: `image_frames_per_shard` is no int.
    """
    made = frame_arrays(task, schema.image_size)
    specs: Mapping[str, Any] = schema.get_zarr_array_specs()
    layouts = {}
    for key, spec in specs.items():
        if key not in made:
            raise ValueError(refused("get_zarr_array_specs()", f"keys of {KEYS}", describe(key)))
        name, (shape, dtype) = f"get_zarr_array_specs()[{key!r}]", made[key]
        missing = {"shape", "chunks", "dtype", "needs_compressor"} - set(spec)
        if missing:
            raise ValueError(refused(name, f"the keys {sorted(missing)}", list(spec)))
        if tuple(spec["shape"][1:]) != shape or np.dtype(spec["dtype"]) != dtype:
            got = f"{spec['shape']} of {spec['dtype']}"
            raise ValueError(refused(name, f"{shape} of {dtype}", got))
        chunk, *inner = spec["chunks"]
        _arguments.integer(chunk, f"{name}['chunks'][0]", at_least=1)
        if tuple(inner) != shape:
            raise ValueError(refused(f"{name}['chunks']", f"(frames, *{shape})", spec["chunks"]))
        layouts[key] = Layout(shape, dtype, int(chunk), None, bool(spec["needs_compressor"]))
    images = layouts.get(IMAGE_KEY)
    shard = checked_shard(image_frames_per_shard, images.chunk if images else IMAGE_CHUNK)
    if images:
        layouts[IMAGE_KEY] = images._replace(shard=shard)
    return layouts


def _make(
    schema: SyntheticSchema,
    task: Task,
    layouts: dict[str, Layout],
    episodes: Iterator[tuple[int, Positions]],
    store: Path,
    picture: Path,
) -> None:
    num_episodes, length = schema.num_episodes, schema.trajectory_length
    renderer = Renderer(task, schema.image_size) if IMAGE_KEY in layouts else None
    trajectories = TrajectoryPicture(task, num_episodes)
    ends = np.arange(1, num_episodes + 1) * length
    with (
        new_store(store, layouts, ends) as writers,
        progress(num_episodes, "synthetic episodes", " episodes") as bar,
    ):
        for mode, positions in episodes:
            for key, writer in writers.items():
                if key != IMAGE_KEY:
                    writer.append(_values(key, task, mode, positions))
                elif renderer is not None:
                    writer.fill(length, partial(renderer.draw, positions, mode))
            trajectories.add(mode, positions)
            bar.update(1)
    trajectories.save(picture)


def _written_order(
    schema: SyntheticSchema, task: Task, drawn: Path
) -> Iterator[tuple[int, Positions]]:
    """The mode and the positions of each episode, in the order in which they are written."""
    counts = mode_counts(schema.num_episodes, task.num_modes, schema.mode_weights)
    rng = np.random.default_rng(schema.seed)
    with drawn.open("xb") as file:
        for positions in draw(task, counts, schema.noise_std, rng):
            file.write(positions.tobytes())
    last_of_mode = np.cumsum(counts)
    shape = (schema.trajectory_length, 2)
    size = np.dtype(np.float32).itemsize * schema.trajectory_length * 2
    with drawn.open("rb") as file:
        for episode in shuffled(schema.num_episodes, rng):
            file.seek(int(episode) * size)
            positions = np.frombuffer(file.read(size), np.float32).reshape(shape)
            yield int(np.searchsorted(last_of_mode, episode, side="right")), positions


def _values(key: str, task: Task, mode: int, positions: Positions) -> Array:
    """What an array other than that of the images holds of one episode."""
    length = len(positions)
    if key == POSITION_KEY:
        return positions
    if key == ACTION_KEY:
        return actions_of(positions)
    if key == MODE_KEY:
        return np.full((length, 1), mode, np.uint8)
    context = np.zeros((length, task.num_modes), np.float32)
    context[:, mode] = task.shows_mode
    return context
