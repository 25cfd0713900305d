"""Recording episodes one frame at a time, as a robot's control loop has them."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbuffer._arguments import Field, describe, refused
from fastbuffer._tensors import Array, to_numpy

if TYPE_CHECKING:
    from fastbuffer.online_buffer import OnlineBuffer

_INDEX, _FRAME_INDEX, _EPISODE_INDEX = "index", "frame_index", "episode_index"
_TIMESTAMP = "timestamp"
#: Room for this many frames is made first, and for twice as many whenever that is full.
_FIRST_ROOM = 64


class PendingEpisode:
    """The frames of an episode that is not in a buffer yet."""

    def __init__(self, columns: list[Field], fps: float | None) -> None:
        """Begin without a frame, for a buffer of those columns and that rate."""
        counted = {_INDEX, _FRAME_INDEX, _EPISODE_INDEX, _TIMESTAMP}
        self._columns = [
            _Column(key, tuple(shape), np.dtype(dtype))
            for key, dtype, shape in columns
            if key not in counted
        ]
        self._times = _Column(_TIMESTAMP, (), np.dtype(np.float64))
        self._fps = fps
        self._room = 0
        self._count = 0

    def __len__(self) -> int:
        """The number of frames."""
        return self._count

    def append(self, frame: Mapping[str, Any]) -> None:
        """Add a copy of a frame: see `EpisodeRecorder.add_frame`."""
        if type(frame) is not dict and not isinstance(frame, Mapping):
            raise TypeError(refused("frame", "a dict", describe(frame)))
        at = self._count
        if at == self._room:
            self._grow()
        is_timed = _TIMESTAMP in frame
        if len(frame) != len(self._columns) + is_timed:
            raise ValueError(self._other_keys(frame))
        try:
            for column in self._columns:
                value = frame[column.key]
                if not column.is_known(value):
                    value = column.checked(value)
                column.frames[at] = value
        except KeyError:
            raise ValueError(self._other_keys(frame)) from None
        self._times.frames[at] = self._time(frame[_TIMESTAMP] if is_timed else None)
        self._count += 1

    def data(self) -> dict[str, Array]:
        """All frames, as `OnlineBuffer.add_data` takes them.

        Raises:
            ValueError: There are none.
        """
        if self._count == 0:
            raise ValueError(refused("episode", "at least one frame", "none"))
        columns = [*self._columns, self._times]
        data = {column.key: column.frames[: self._count] for column in columns}
        data[_INDEX] = np.arange(self._count)
        data[_FRAME_INDEX] = np.arange(self._count)
        data[_EPISODE_INDEX] = np.zeros(self._count, np.int64)
        return data

    def clear(self) -> None:
        """Forget them."""
        self._count = 0

    def _time(self, given: object) -> float:
        if given is not None:
            time = float(self._times.checked(given))
            if not math.isfinite(time):
                raise ValueError(refused(f"frame[{_TIMESTAMP!r}]", "finite seconds", time))
            return time
        if self._fps is None:
            expected = f"the key {_TIMESTAMP!r}, as the buffer has no fps"
            raise ValueError(refused("frame", expected, "none"))
        return self._count / self._fps

    def _other_keys(self, frame: Mapping[str, Any]) -> str:
        keys = {column.key for column in self._columns}
        missing, others = keys - set(frame), set(frame) - keys - {_TIMESTAMP}
        got = f"{sorted(missing)} missing, {sorted(others, key=str)} in addition"
        return refused("frame", f"the keys {sorted(keys)}", got)

    def _grow(self) -> None:
        room = max(2 * self._room, _FIRST_ROOM)
        for column in [*self._columns, self._times]:
            column.grow(room)
        self._room = room


class _Column:
    """The values of one key, and what values it takes."""

    __slots__ = ("_dtype", "_known", "_shape", "frames", "key")

    def __init__(self, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.key = key
        self._shape = shape
        self._dtype = dtype
        #: Dtypes of arrays, and types of numbers, that are known to cast.
        self._known: set[object] = set()
        self.frames: Array = np.empty((0, *shape), dtype)

    def is_known(self, value: Any) -> bool:
        """Whether the value is like one that was checked: a check takes longer than a copy."""
        if type(value) is np.ndarray:
            return value.shape == self._shape and value.dtype in self._known
        return type(value) in self._known

    def checked(self, value: object) -> Array:
        """The value as an array that casts to the column's dtype within its kind."""
        array = to_numpy(value, f"frame[{self.key!r}]")
        if array.shape != self._shape or not np.can_cast(array.dtype, self._dtype, "same_kind"):
            got = f"{array.dtype} of shape {array.shape}"
            expected = f"{self._dtype} of shape {self._shape}"
            raise ValueError(refused(f"frame[{self.key!r}]", expected, got))
        self._known.add(array.dtype)
        if isinstance(value, float | bool | np.generic):  # an int can be of any size
            self._known.add(type(value))
        return array

    def grow(self, room: int) -> None:
        """Make room for that many frames."""
        frames = np.empty((room, *self._shape), self._dtype)
        frames[: len(self.frames)] = self.frames
        self.frames = frames


class EpisodeRecorder:
    """Collects the frames of one episode in memory, and inserts them into a buffer as a whole.

    `OnlineBuffer.add_frame` does the same. Where several episodes are recorded at the same time,
    such as by a vectorised environment, each has a recorder.
    """

    def __init__(self, buffer: "OnlineBuffer") -> None:
        """Begin without a frame.

        Args:
            buffer: Where episodes go.

        Raises:
            io.UnsupportedOperation: The buffer was opened with `mode="r"`.
        """
        self._buffer = buffer
        self._pending = buffer._new_episode()

    @property
    def num_frames(self) -> int:
        """How many frames the episode has so far."""
        return len(self._pending)

    def add_frame(self, frame: Mapping[str, Any]) -> None:
        """Add a copy of one frame, or nothing where it is refused.

        Args:
            frame: For each key of the buffer's `data_spec` a value of its shape that casts to its
                dtype within its kind. `timestamp`, in seconds, may be given; otherwise it follows
                from `fps`. `index`, `frame_index` and `episode_index` are filled in.

        Raises:
            ValueError: A key is missing or one too many, a shape or dtype does not fit, a timestamp
                is not finite, or there is neither a timestamp nor `fps`.
            TypeError: `frame` is no mapping.
        """
        self._pending.append(frame)

    def save_episode(self) -> None:
        """Insert the episode, and begin the next one. Where that fails, the frames stay.

        Raises:
            ValueError: The episode has no frames.
            BufferLockedError: Another process is writing the directory.
            OSError: The directory cannot be written.
        """
        self._buffer.add_data(self._pending.data())
        self._pending.clear()

    def discard_episode(self) -> None:
        """Forget the episode, and begin the next one."""
        self._pending.clear()
