"""The live frames of a buffer in insertion order, as what is exported reads them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer._core import Windows
from fastbuffer.online_buffer import OnlineBuffer

Array = NDArray[Any]


class Snapshot:
    """The frames that are live now, as long as nobody overwrites them."""

    def __init__(self, buffer: OnlineBuffer) -> None:
        """Take note of what is live."""
        self._core = buffer._core
        self._threads = self._core.num_threads
        self._state = self._core.live_episodes()
        self._plain = Windows(self._core, [], 0.0)
        self.lengths = self._state[2].astype(np.int64)
        self.num_frames = int(self.lengths.sum())
        #: The dtype and shape of each key.
        self.columns = {key: (dtype, tuple(shape)) for key, dtype, shape in self._core.columns}

    def partial_frames(self) -> int:
        """How many frames the oldest episode has, if it has lost some."""
        first, position, _ = self._state
        if first == 0 or self.num_frames == 0:
            return 0
        oldest = self._core.item(position, self._plain)
        return int(self.lengths[0]) if oldest[OnlineBuffer.FRAME_INDEX_KEY] != 0 else 0

    def _is_in_place(self) -> bool:
        """Whether all frames are where they were: new ones may have come after them."""
        first, position, lengths = self._core.live_episodes()
        # With the oldest frame in front, more frames only come behind.
        return (first, position) == self._state[:2] and (
            position == 0 or int(lengths.sum()) == self.num_frames
        )

    def batches(self, start: int, bytes_at_once: int) -> Iterator[dict[str, Array]]:
        """All columns of the frames from the `start`-th on, some frames at a time.

        Raises:
            RuntimeError: Somebody overwrites them meanwhile.
        """
        row_bytes = sum(
            int(np.prod(shape)) * np.dtype(dtype).itemsize for dtype, shape in self.columns.values()
        )
        step = max(1, bytes_at_once // row_bytes)
        position = self._state[1]
        for first in range(start, self.num_frames, step):
            frames = np.arange(first, min(first + step, self.num_frames))
            batch = self._core.gather(
                (frames + position) % self.num_frames, self._plain, self._threads
            )
            if not self._is_in_place():
                raise RuntimeError("frames were overwritten while they were exported")
            yield batch
