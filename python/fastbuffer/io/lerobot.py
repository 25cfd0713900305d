"""Between buffers and LeRobot datasets of format 3.

Images are stored as uint8 of shape `(height, width, channels)`, a quarter of what LeRobot's items
take; `as_lerobot` turns what a buffer returns into what a dataset does. Both directions go episode
by episode.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbuffer import _arguments
from fastbuffer._arguments import DataSpec, DeltaTimestamps, FieldSpec, describe, refused
from fastbuffer._optional import require
from fastbuffer._progress import progress
from fastbuffer._staging import staging
from fastbuffer._tensors import Output
from fastbuffer.io.building import Buffer, build, checked_target
from fastbuffer.io.snapshot import Array, Snapshot
from fastbuffer.online_buffer import OnlineBuffer

if TYPE_CHECKING:
    import torch

_IMAGES = ("image", "video")
#: What both count by themselves.
_OWN = (
    OnlineBuffer.INDEX_KEY,
    OnlineBuffer.FRAME_INDEX_KEY,
    OnlineBuffer.EPISODE_INDEX_KEY,
    OnlineBuffer.TIMESTAMP_KEY,
)
_TASK_INDEX = "task_index"
#: Decoded as float32, so that is four times as many bytes.
_VIDEO_FRAMES_AT_ONCE = 32
_BYTES_AT_ONCE = 32 << 20
#: LeRobot's own bound on how far a timestamp may be from its frame's multiple of 1 / fps.
_TOLERANCE_S = 1e-4

ImageSize = int | tuple[int, int]


def as_lerobot(
    values: "Mapping[str, torch.Tensor]", image_keys: Collection[str] | None = None
) -> "dict[str, torch.Tensor]":
    """Convert an item or a batch of a buffer to what a LeRobot dataset returns.

    Images become float32 in [0, 1] with the channels first, and timestamps float32.

    Args:
        values: What `buffer[i]`, `get_batch`, `sample` or a loader returns, as tensors.
        image_keys: The keys of images, uint8 of shape `(..., height, width, channels)`. None for
            all uint8 values whose last dimension is 1, 3 or 4 and which have two more before.

    Returns:
        The values, the others as they are.
    """
    import torch

    def is_image(key: str, value: torch.Tensor) -> bool:
        if image_keys is not None:
            return key in image_keys
        return value.dtype == torch.uint8 and value.ndim >= 3 and value.shape[-1] in (1, 3, 4)

    converted = dict(values)
    for key, value in values.items():
        if is_image(key, value):
            converted[key] = value.movedim(-1, -3).contiguous().to(torch.float32).div_(255)
    timestamp = OnlineBuffer.TIMESTAMP_KEY
    if timestamp in values:
        converted[timestamp] = values[timestamp].to(torch.float32)
    return converted


# LeRobot -> buffer


def buffer_from_lerobot_dataset(
    cls: type[Buffer],
    dataset: Any,
    write_dir: str | os.PathLike[str],
    *,
    buffer_capacity: int | None,
    keys: Sequence[str] | None,
    delta_timestamps: DeltaTimestamps | None,
    image_size: ImageSize | None,
    output: Output | None,
) -> Buffer:
    """See `OnlineBuffer.from_lerobot_dataset`."""
    require("lerobot", extra="lerobot", purpose="a buffer of a LeRobot dataset")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    if not isinstance(dataset, LeRobotDataset):
        raise TypeError(refused("dataset", "a LeRobotDataset", describe(dataset)))
    size = None if image_size is None else _checked_size(image_size)
    target = checked_target(write_dir, "write_dir")
    source = _Source(dataset, keys, size)
    if delta_timestamps is None and dataset.delta_timestamps is not None:
        own = dataset.delta_timestamps.items()
        delta_timestamps = {key: deltas for key, deltas in own if key in {*source.spec, *_OWN}}
    capacity = max(1, dataset.num_frames) if buffer_capacity is None else buffer_capacity
    return build(
        *(cls, target, source.spec, capacity, dataset.fps),
        *(delta_timestamps, output, source.insert_into),
    )


class _Source:
    """A dataset's frames, as the rows of a buffer."""

    def __init__(
        self, dataset: Any, keys: Sequence[str] | None, size: tuple[int, int] | None
    ) -> None:
        self._dataset, self._size = dataset, size
        self._rows = dataset.hf_dataset.with_format("numpy")
        # Its user chose it for this dataset; LeRobot 0.6 keeps it to itself.
        attributes = vars(dataset)
        self._decoder = attributes.get("video_backend", attributes.get("_video_backend"))
        self._kinds = {key: feature["dtype"] for key, feature in dataset.features.items()}
        self._chosen = self._checked_keys(keys)
        self.spec: DataSpec = {key: self._field(key) for key in self._chosen}

    def _checked_keys(self, keys: Sequence[str] | None) -> list[str]:
        possible = [
            key for key, kind in self._kinds.items() if key not in _OWN and kind != "string"
        ]
        if keys is None:
            return possible
        if isinstance(keys, str) or not isinstance(keys, Sequence | set | frozenset):
            raise TypeError(refused("keys", "a list of str", describe(keys)))
        for key in keys:
            if key not in possible and key not in _OWN:
                raise ValueError(refused("keys", f"some of {sorted(possible)}", describe(key)))
        return [key for key in keys if key not in _OWN]

    def _field(self, key: str) -> FieldSpec:
        """What LeRobot's items have: they go through Python's numbers, which widens dtypes."""
        feature = self._dataset.features[key]
        if key in getattr(self._dataset.meta, "depth_keys", ()):  # since LeRobot 0.6
            expected = "numbers, or images of 8 bits; leave it out with keys="
            raise ValueError(refused(f"feature {key!r}", expected, "a depth map"))
        if self._kinds[key] in _IMAGES:
            names = list(feature["names"] or ("height", "width", "channels"))
            shape = tuple(feature["shape"])
            if names[0] in ("channel", "channels"):
                shape = (*shape[1:], shape[0])
            return {"shape": (*(self._size or shape[:2]), shape[2]), "dtype": np.uint8}
        dtype = np.dtype(self._kinds[key])
        wide = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}.get(dtype.kind)
        if wide is None:
            expected = "numbers or bools; leave it out with keys="
            raise ValueError(refused(f"feature {key!r}", expected, dtype))
        shape = tuple(feature["shape"])
        return {"shape": () if shape == (1,) else shape, "dtype": wide}

    def insert_into(self, buffer: OnlineBuffer) -> None:
        """Add all episodes."""
        numbers = self._column(OnlineBuffer.EPISODE_INDEX_KEY, 0, len(self._rows))
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        with progress(len(starts), "importing", " episodes") as bar:
            for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True):
                buffer.add_data(self._episode(int(numbers[start]), int(start), int(stop)))
                bar.update(1)

    def _column(self, key: str, start: int, stop: int) -> Array:
        return np.asarray(self._rows.select_columns([key])[start:stop][key])

    def _episode(self, number: int, start: int, stop: int) -> dict[str, Array]:
        frames = self._column(OnlineBuffer.FRAME_INDEX_KEY, start, stop)
        stored = self._column(OnlineBuffer.TIMESTAMP_KEY, start, stop)
        exact = frames / self._dataset.fps  # of which float32 keeps too little in long episodes
        data = {key: self._values(key, number, start, stop) for key in self._chosen}
        return data | {
            OnlineBuffer.INDEX_KEY: np.arange(stop - start),
            OnlineBuffer.EPISODE_INDEX_KEY: np.zeros(stop - start, np.int64),
            OnlineBuffer.FRAME_INDEX_KEY: frames,
            OnlineBuffer.TIMESTAMP_KEY: np.where(
                exact.astype(np.float32) == stored, exact, stored.astype(np.float64)
            ),
        }

    def _values(self, key: str, number: int, start: int, stop: int) -> Array:
        field = self.spec[key]
        if self._kinds[key] == "video":
            images = self._video(key, number, start, stop)
        elif self._kinds[key] == "image":
            images = iter(self._rows.select_columns([key])[start:stop][key])
        else:
            return self._column(key, start, stop).astype(field["dtype"])
        values = np.empty((stop - start, *field["shape"]), np.uint8)
        for row, image in zip(values, images, strict=True):
            row[...] = self._resized(_checked_image(key, image)).reshape(row.shape)
        return values

    def _video(self, key: str, number: int, start: int, stop: int) -> Iterator[Array]:
        """The frames of an episode's part of a video file."""
        from lerobot.datasets.video_utils import decode_video_frames

        dataset = self._dataset
        path = dataset.root / dataset.meta.get_video_file_path(number, key)
        offset = dataset.meta.episodes[number][f"videos/{key}/from_timestamp"]
        for first in range(start, stop, _VIDEO_FRAMES_AT_ONCE):
            last = min(stop, first + _VIDEO_FRAMES_AT_ONCE)
            times = self._column(OnlineBuffer.TIMESTAMP_KEY, first, last)
            seconds = [offset + time for time in times.tolist()]
            frames = decode_video_frames(path, seconds, dataset.tolerance_s, self._decoder)
            yield from (frames * 255).round().byte().permute(0, 2, 3, 1).numpy()

    def _resized(self, image: Array) -> Array:
        if self._size is None or image.shape[:2] == self._size:
            return image
        import cv2  # which lerobot brings

        height, width = self._size
        return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)


def _checked_image(key: str, image: Any) -> Array:
    array = np.asarray(image)
    if array.dtype != np.uint8:
        raise ValueError(refused(f"feature {key!r}", "images of 8 bits", array.dtype))
    return array


def _checked_size(size: ImageSize) -> tuple[int, int]:
    sides = size if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2:
        raise ValueError(refused("image_size", "a side, or (height, width)", describe(size)))
    height, width = (_arguments.integer(side, "image_size", at_least=1) for side in sides)
    return height, width


# Buffer -> LeRobot


def buffer_to_lerobot_dataset(
    buffer: OnlineBuffer, repo_id: str, root: str | os.PathLike[str], *, task: str | Sequence[str]
) -> Any:
    """See `OnlineBuffer.to_lerobot_dataset`."""
    require("lerobot", extra="lerobot", purpose="a LeRobot dataset of a buffer")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    repo_id = _arguments.key(repo_id, "repo_id")
    target = checked_target(root, "root")
    fps = _whole_fps(buffer)
    snapshot = Snapshot(buffer)
    if snapshot.num_frames == 0:
        raise ValueError(refused("buffer", "at least one live frame", "none"))
    features = _features(snapshot)
    tasks = _Tasks(task, snapshot)
    with staging(target) as directory:
        built = directory / "dataset"
        dataset = LeRobotDataset.create(repo_id, fps, features, root=built, use_videos=False)
        with progress(snapshot.num_frames, "exporting", " frames") as bar:
            for frame, is_last in _frames(snapshot, fps):
                values = {key: _shaped(frame[key], features[key]) for key in features}
                dataset.add_frame(values | {"task": tasks.of(frame)})
                if is_last:
                    dataset.save_episode()
                bar.update(1)
        dataset.finalize()
        if target.exists():
            target.rmdir()
        built.rename(target)
    return LeRobotDataset(repo_id, root=target)


def _whole_fps(buffer: OnlineBuffer) -> int:
    fps = buffer.fps
    if fps is None or fps != int(fps):
        raise ValueError(refused("fps of the buffer", "a whole number, as in LeRobot", fps))
    return int(fps)


def _features(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    features: dict[str, dict[str, Any]] = {}
    for key, (dtype, shape) in snapshot.columns.items():
        if key in (*_OWN, _TASK_INDEX):
            continue
        if dtype == "uint8" and len(shape) == 3 and shape[2] == 3:
            names = ["height", "width", "channels"]
            features[key] = {"dtype": "image", "shape": shape, "names": names}
        elif np.dtype(dtype).kind in "biuf" and len(shape) <= 5 and "/" not in key:
            features[key] = {"dtype": dtype, "shape": shape or (1,), "names": None}
        else:
            expected = "real numbers or bools of at most 5 dimensions, and no '/' in their name"
            raise ValueError(refused(f"key {key!r}", expected, f"{dtype} of shape {shape}"))
    return features


class _Tasks:
    """The task of each frame: one for all, or those that `task_index` counts."""

    def __init__(self, task: str | Sequence[str], snapshot: Snapshot) -> None:
        if not isinstance(task, str):
            if not isinstance(task, Sequence) or not all(isinstance(one, str) for one in task):
                raise TypeError(refused("task", "a str, or a list of str", describe(task)))
            if _TASK_INDEX not in snapshot.columns:
                raise ValueError(
                    refused("task", "a str, as there is no task_index", describe(task))
                )
        self._task = task

    def of(self, frame: dict[str, Any]) -> str:
        if isinstance(self._task, str):
            return self._task
        number = int(frame[_TASK_INDEX])
        if not 0 <= number < len(self._task):
            expected = f"at least {number + 1} tasks, as task_index has {number}"
            raise ValueError(refused("task", expected, f"{len(self._task)} of them"))
        return self._task[number]


def _frames(snapshot: Snapshot, fps: int) -> Iterator[tuple[dict[str, Any], bool]]:
    """Each frame, and whether its episode ends with it."""
    lasts = set((np.cumsum(snapshot.lengths) - 1).tolist())
    number, in_episode, first = 0, 0, 0.0
    for batch in snapshot.batches(0, _BYTES_AT_ONCE):
        for row in range(len(batch[OnlineBuffer.TIMESTAMP_KEY])):
            frame = {key: values[row] for key, values in batch.items()}
            seconds = float(frame[OnlineBuffer.TIMESTAMP_KEY])
            in_episode = 0 if number == 0 or number - 1 in lasts else in_episode + 1
            first = seconds if in_episode == 0 else first
            if abs(seconds - first - in_episode / fps) > _TOLERANCE_S:
                expected = f"frames every 1/{fps} s, as in LeRobot"
                got = f"{seconds} s for frame {in_episode} of an episode that begins at {first} s"
                raise ValueError(refused(OnlineBuffer.TIMESTAMP_KEY, expected, got))
            yield frame, number in lasts
            number += 1


def _shaped(value: Array, feature: dict[str, Any]) -> Array:
    shape: tuple[int, ...] = feature["shape"]
    return np.asarray(value).reshape(shape)
