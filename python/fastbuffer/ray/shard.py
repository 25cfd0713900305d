"""One shard: a buffer on the disk of its node, and what its actor is asked for.

Knows nothing of Ray. Inserts come one at a time; all else may come from several threads meanwhile.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer._arguments import Field, refused
from fastbuffer._core import Priorities
from fastbuffer._tensors import Array
from fastbuffer.online_buffer import OnlineBuffer
from fastbuffer.ray import identity
from fastbuffer.ray.identity import Identity
from fastbuffer.ray.journal import Journal

if TYPE_CHECKING:
    from fastbuffer._batches import Batch

Indices = NDArray[np.int64]
#: Positions within the shard, their weights if the shard were alone, and the `least` of those.
Drawn = tuple[Indices, NDArray[np.float32], float]


class FewerFramesError(Exception):
    """A shard has lost frames that it was overwriting when its process was killed."""


@dataclass(frozen=True)
class State:
    """How full a shard is."""

    num_frames: int
    num_episodes: int
    #: How many frames were ever added.
    total: int


@dataclass(frozen=True)
class Layout:
    """What all shards of a buffer have in common."""

    columns: list[Field]
    capacity: int
    fps: float | None
    tolerance_s: float | None


class Shard:
    """A buffer and the journal of its inserts, opened when they are first needed.

    So an actor that Ray starts again opens them anew, and what is wrong with them is an exception
    of the call that needs them.
    """

    def __init__(
        self,
        directory: Path,
        is_new: bool,
        identity: Identity,
        opening: dict[str, Any],
        tolerance_s: float | None,
    ) -> None:
        """Know where and how to open, without doing it.

        Args:
            directory: The shard's directory.
            is_new: Whether it may say nothing of itself yet.
            identity: What it has to say.
            opening: The arguments of `OnlineBuffer`, without the directory.
            tolerance_s: See `OnlineBuffer.tolerance_s`. None for what follows from `fps`.
        """
        self._directory = directory
        self._is_new = is_new
        self._identity = identity
        self._opening = opening
        self._tolerance_s = tolerance_s
        self._opened: tuple[OnlineBuffer, Journal] | None = None
        self._opening_lock = threading.Lock()
        self._priorities: dict[float, Priorities] = {}
        self._priorities_lock = threading.Lock()

    def layout(self) -> Layout:
        """What it shares with the other shards.

        Raises:
            ValueError, TypeError, OSError: As `OnlineBuffer`.
        """
        buffer = self._buffer
        columns = buffer._core.columns
        return Layout(columns, buffer.buffer_capacity, buffer.fps, buffer.tolerance_s)

    def claim(self) -> None:
        """Let the directory say which shard of which buffer it is.

        Raises:
            OSError: It cannot be written.
        """
        identity.write(self._buffer.write_dir, self._identity)

    def state(self) -> State:
        """How full it is."""
        return _state(self._buffer)

    def add(self, token: bytes, data: dict[str, Array]) -> State:
        """Insert whole episodes, unless the insert with that token was done before.

        Args:
            token: 16 bytes that no other insert has.
            data: As for `OnlineBuffer.add_data`. It is left as it is if its arrays are read-only.

        Returns:
            How full the shard is afterwards.

        Raises:
            ValueError, BufferLockedError, OSError: As `OnlineBuffer.add_data`.
        """
        buffer, journal = self._open()
        if journal.total_after(token) is None:
            total = self.state().total + len(data[buffer.INDEX_KEY])
            journal.note(token, total)
            try:
                buffer.add_data(data)
            except BaseException:
                if self.state().total < total:
                    journal.forget_last()
                raise
        return self.state()

    def read(self, positions: Indices, num_frames: int, steps: dict[str, Any]) -> "Batch":
        """Items by their positions within the shard, as arrays.

        Args:
            positions: An int64 array of shape `(n,)`.
            num_frames: How many live frames there have to be, so that what was drawn is right.
            steps: The arguments `n_step` and `gamma` of `OnlineBuffer.get_batch`.

        Raises:
            FewerFramesError: There are fewer live frames.
            IndexError, ValueError, TimestampToleranceError: As `OnlineBuffer.get_batch`.
        """
        if len(self._buffer) < num_frames:
            raise FewerFramesError(
                refused(str(self._directory), f"{num_frames} live frames", len(self._buffer))
            )
        return self._buffer.get_batch(positions, **steps)

    def column(self, key: str) -> Any:
        """All live frames of a key, in slot order."""
        return self._buffer.get_data_by_key(key)

    def mass(self, alpha: float) -> tuple[float, float]:
        """The sum of `priority ** alpha` of all live frames, and the least above 0, or infinity."""
        return self._priorities_for(alpha).mass()

    def draw(self, alpha: float, seed: int, epoch: int, start: int, count: int) -> Indices | None:
        """Positions within the shard by priority; None if all priorities are 0."""
        priorities = self._priorities_for(alpha)
        with self._priorities_lock:
            if priorities.mass()[0] == 0:
                return None
            return priorities.draw(seed, epoch, start, count)

    def sample(self, alpha: float, seed: int, number: int, count: int, beta: float) -> Drawn | None:
        """Positions by priority, with weights; None if all priorities are 0."""
        priorities = self._priorities_for(alpha)
        with self._priorities_lock:
            total, least = priorities.mass()
            if total == 0:
                return None
            return *priorities.sample(seed, number, count, beta), least

    def update(self, alpha: float, positions: Indices, numbers: NDArray[np.float64]) -> None:
        """Give frames new priorities; see `PrioritizedSampler.update`."""
        priorities = self._priorities_for(alpha)
        with self._priorities_lock:
            priorities.update(positions, numbers)

    def raise_largest(self, alpha: float, priority: float) -> None:
        """Give new frames at least that priority from now on."""
        self._priorities_for(alpha).raise_largest(priority)

    def priorities(self, alpha: float, positions: Indices | None) -> NDArray[np.float64]:
        """The priorities of frames, or of all in slot order."""
        return self._priorities_for(alpha).get(positions)

    def flush(self) -> None:
        """Wait for the disk; see `OnlineBuffer.flush`."""
        self._buffer.flush()

    def close(self) -> None:
        """Give up the right to write."""
        if self._opened is not None:
            self._opened[0].close()

    @property
    def _buffer(self) -> OnlineBuffer:
        return self._open()[0]

    def _open(self) -> tuple[OnlineBuffer, Journal]:
        with self._opening_lock:
            if self._opened is None:
                self._check_identity()
                buffer = OnlineBuffer(self._directory, output="numpy", **self._opening)
                if self._tolerance_s is not None:
                    buffer.tolerance_s = self._tolerance_s
                fsync = self._opening["durability"] == "fsync"
                self._opened = buffer, Journal(self._directory, _state(buffer).total, fsync=fsync)
            return self._opened

    def _check_identity(self) -> None:
        """An empty disk in the shard's place must not pass for the shard."""
        says = identity.read(self._directory)
        if says != self._identity and not (says is None and self._is_new):
            raise ValueError(refused(str(self._directory), str(self._identity), says))

    def _priorities_for(self, alpha: float) -> Priorities:
        buffer = self._buffer
        with self._priorities_lock:
            if alpha not in self._priorities:
                self._priorities[alpha] = Priorities(buffer._core, alpha)
            return self._priorities[alpha]


def _state(buffer: OnlineBuffer) -> State:
    first, _, lengths = buffer._core.live_episodes()
    num_frames = int(lengths.sum())
    return State(num_frames, len(lengths), first + num_frames)
