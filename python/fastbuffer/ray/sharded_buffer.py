"""A buffer over many machines, as users see it."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import DataSpec, DeltaTimestamps, describe, refused
from fastbuffer._drawing import draw, random_source
from fastbuffer._tensors import Output, to_tensors
from fastbuffer.online_buffer import Durability, OnlineBuffer, _checked_output, _positions_of
from fastbuffer.ray import placement, routing
from fastbuffer.ray.calls import Shards, ShardUnavailableError
from fastbuffer.ray.identity import Identity
from fastbuffer.ray.loader import ShardedLoader, grouped, shuffled, whole
from fastbuffer.ray.priorities import ShardedPriorities
from fastbuffer.ray.reading import Positions, Reading
from fastbuffer.ray.shard import FewerFramesError, Layout

if TYPE_CHECKING:
    import torch

    from fastbuffer._batches import Batch, Value
    from fastbuffer._tensors import Array


class ShardedBuffer:
    """One buffer whose episodes lie on the disks of many machines.

    Each shard is an `OnlineBuffer` in a Ray actor, pinned to a node. An episode lies in one shard
    as a whole. `sample`, `loader`, weights and a `fastbuffer.PrioritizedSampler` draw from all
    frames of all shards as from one buffer.

    The position of a frame is `shard * shard_capacity` plus its position in that shard, so it does
    not change when other shards grow. Wherever there is one value per frame, it is in the order of
    positions.

    An object of this class can be passed to Ray tasks, actors and Ray Train workers, which then
    talk to the same shards. The shards live until the object that made them is closed, or gone.
    """

    def __init__(
        self,
        num_shards: int,
        write_dir: str | os.PathLike[str],
        data_spec: DataSpec | None = None,
        buffer_capacity: int | None = None,
        fps: float | None = None,
        delta_timestamps: DeltaTimestamps | None = None,
        *,
        tolerance_s: float | None = None,
        output: Output | None = None,
        durability: Durability = "process",
        preallocate: bool = True,
        timeout_s: float = 60.0,
    ) -> None:
        """Start an actor for each shard, on the node that has it; or make a buffer.

        A new buffer's shards go to all nodes that are alive, in turns.

        Args:
            num_shards: The number of shards, always the same for a buffer.
            write_dir: The directory that has a directory for each shard, the same on all nodes. On
                their local disks: not on one that they share.
            data_spec: As for `OnlineBuffer`, like the next three.
            buffer_capacity: The number of frames that all shards together hold, a multiple of
                `num_shards`. Each holds as many.
            fps: Frames per second.
            delta_timestamps: See `OnlineBuffer.set_delta_timestamps`.
            tolerance_s: How far, in seconds, a frame may be from a query before it is padding. None
                for what `OnlineBuffer` has.
            output: What reads return, "torch" or "numpy". By default torch if it is installed.
            durability: As for `OnlineBuffer`, like the next one.
            preallocate: Whether to reserve all disk space at creation.
            timeout_s: How long to wait for a shard, in seconds, before it is an error: also while
                its actor is started again after it was killed, and while other inserts go first.

        Raises:
            ValueError: An argument is not allowed or contradicts what is on the disks, or a shard
                is damaged.
            TypeError: An argument has the wrong type.
            ShardUnavailableError: No node that is alive has one of the shards, or a node does not
                answer.
            OSError: A file cannot be made, opened or reserved.
            RuntimeError: There is no connection to Ray.
            ImportError: `output="torch"` without torch.
        """
        self._closed = True  # until there is something to close
        count = _arguments.integer(num_shards, "num_shards", at_least=1)
        directory = str(Path(_arguments.path(write_dir, "write_dir")).absolute())
        self._output = _checked_output(output)
        self._timeout_s = _arguments.at_least_zero(timeout_s, "timeout_s")
        deltas = None if delta_timestamps is None else _arguments.deltas(delta_timestamps)
        if tolerance_s is not None:
            tolerance_s = _arguments.at_least_zero(tolerance_s, "tolerance_s")
        if data_spec is not None:
            _arguments.fields(data_spec)
        opening = {
            "data_spec": data_spec,
            "buffer_capacity": _shard_capacity(buffer_capacity, count),
            "fps": None if fps is None else _arguments.real(fps, "fps"),
            "delta_timestamps": deltas,
            "durability": _arguments.choice(durability, "durability", "process", "fsync"),
            "preallocate": _arguments.boolean(preallocate, "preallocate"),
        }
        self._shards = self._started(count, directory, (opening, tolerance_s))
        self._is_owner, self._closed = True, False
        try:
            layouts = self._shards.all("layout")
            for shard, layout in enumerate(layouts):
                if layout != layouts[0]:
                    raise ValueError(refused(f"shard {shard}", f"{layouts[0]} as shard 0", layout))
            self._shards.all("claim")
            totals = [state.total for state in self._shards.all("state")]
        except BaseException:
            self.close()
            raise
        self._write_dir = Path(directory)
        self._layout: Layout = layouts[0]
        self._deltas = deltas
        self._begin(totals)

    def _started(self, count: int, directory: str, how: tuple[Any, ...]) -> Shards:
        nodes = placement.alive_nodes()
        disks = placement.disks(directory, nodes, self._timeout_s)
        known = placement.buffer_of(disks, count)
        chosen = placement.assigned(disks, count, known is None)
        name = known or os.urandom(8).hex()

        def arguments(shard: int, path: Path) -> tuple[Any, ...]:
            is_new = not placement.is_claimed(disks, chosen[shard], shard)
            return path, is_new, Identity(name, shard, count), *how

        return Shards(placement.started(directory, chosen, nodes, arguments), self._timeout_s)

    def _begin(self, totals: list[int]) -> None:
        """What each copy of the object has for itself."""
        self._totals = totals
        self._router = routing.Router(totals)
        #: How many frames each shard has, at least.
        self._known: Positions = np.zeros(len(self._shards), np.int64)

    @property
    def num_shards(self) -> int:
        """The number of shards."""
        return len(self._shards)

    @property
    def shard_capacity(self) -> int:
        """The number of frames that each shard holds."""
        return self._layout.capacity

    @property
    def buffer_capacity(self) -> int:
        """The number of frames that all shards together hold."""
        return self.shard_capacity * self.num_shards

    @property
    def write_dir(self) -> Path:
        """The directory that has the shards' directories, on each node."""
        return self._write_dir

    @property
    def data_keys(self) -> list[str]:
        """All keys, sorted: those of the spec and the buffer's own four."""
        return [key for key, _, _ in self._layout.columns]

    @property
    def fps(self) -> float | None:
        """Frames per second, if known."""
        return self._layout.fps

    @property
    def tolerance_s(self) -> float | None:
        """How far, in seconds, a frame may be from a query before it is padding."""
        return self._layout.tolerance_s

    @property
    def delta_timestamps(self) -> dict[str, NDArray[np.float64]] | None:
        """The deltas of each windowed key, in seconds."""
        return None if self._deltas is None else dict(self._deltas)

    @property
    def num_frames(self) -> int:
        """The number of live frames, of all shards.

        Raises:
            ShardUnavailableError: A shard does not answer.
        """
        return int(self._num_frames().sum())

    @property
    def num_episodes(self) -> int:
        """The number of episodes with a live frame, of all shards.

        Raises:
            ShardUnavailableError: A shard does not answer.
        """
        return sum(state.num_episodes for state in self._open().all("state"))

    def __len__(self) -> int:
        """The number of live frames, of all shards."""
        return self.num_frames

    def add_data(self, data: Mapping[str, Any]) -> None:
        """Insert whole episodes, and return once they are committed.

        Each episode goes to the shard that has got the fewest frames. What goes to one shard is
        seen there as a whole, but not at the same time as what goes to another one. A shard that is
        killed meanwhile is asked again once it is back, and inserts nothing twice.

        As the call waits, not more than one insert per calling thread is on its way.

        Args:
            data: As for `OnlineBuffer.add_data`, but the arrays are left as they are: `index` and
                `episode_index` are counted anew in each shard.

        Raises:
            ValueError: As `OnlineBuffer.add_data`. Nothing is inserted.
            TypeError: `data` is no mapping.
            ShardUnavailableError: A shard does not answer. What was to go to it may be in it or
                not; what was to go to others is.
            BufferLockedError: Another process is writing a shard's directory.
            OSError: A shard's directory cannot be written.
        """
        shards = self._open()
        arrays = routing.checked(data, self._layout.columns)
        episodes = routing.episodes_of(arrays)
        chosen = self._router.routed(episodes)
        calls = {}
        for shard in sorted(set(chosen)):
            its = [one for one, where in zip(episodes, chosen, strict=True) if where == shard]
            part = routing.joined_episodes(arrays, its)
            calls[shard] = shards.start(shard, "add", os.urandom(16), part)
        try:
            states = shards.results([*calls.values()])
        except Exception:
            self._router.refused(episodes, chosen)
            raise
        for shard, state in zip(calls, states, strict=True):
            self._router.learned(shard, state.total)

    def get_batch(
        self,
        positions: "Sequence[int] | Array",
        *,
        n_step: int | None = None,
        gamma: float | None = None,
    ) -> "Batch":
        """The items at some positions as one batch.

        Shards are asked at the same time. Ray brings what they answer into shared memory of this
        node, from which each row is copied once, to its place in the batch.

        Args:
            positions: A sequence or one-dimensional array of positions in the whole buffer.
            n_step: As for `OnlineBuffer.get_batch`, like the next one.
            gamma: The discount per step.

        Returns:
            As `OnlineBuffer.get_batch`: a new dict of tensors or arrays.

        Raises:
            IndexError: There is no live frame at a position.
            TypeError: `positions` holds no ints.
            ValueError: `n_step` or `gamma` does not fit.
            TimestampToleranceError: A query inside an episode has no frame within `tolerance_s`.
            ShardUnavailableError: A shard does not answer.
        """
        checked = self._positions(positions)
        return self._finished(self._reading(checked, _steps(n_step, gamma)))

    def sample(
        self,
        batch_size: int,
        *,
        weights: "Value | None" = None,
        seed: int | None = None,
        generator: "np.random.Generator | torch.Generator | None" = None,
        n_step: int | None = None,
        gamma: float | None = None,
    ) -> "Batch":
        """A batch of random items of all shards, drawn with replacement.

        Draws are by what the shards hold at the time of the call: those that were not full when
        last heard of are asked.

        Args:
            batch_size: The number of items.
            weights: How often to draw each live frame, relative to the others: `len(buffer)`
                numbers, of which none is negative. None for uniform draws.
            seed: Makes the draw repeatable on its own.
            generator: Makes a sequence of draws repeatable.
            n_step: As for `OnlineBuffer.get_batch`, like the next one.
            gamma: The discount per step.

        Returns:
            As `get_batch`.

        Raises:
            ValueError: The buffer is empty, `batch_size` is negative, `weights` do not fit or are
                all zero, or arguments exclude each other.
            TypeError: An argument has the wrong type.
            TimestampToleranceError: A query inside an episode has no frame within `tolerance_s`.
            ShardUnavailableError: A shard does not answer.
        """
        size = _arguments.integer(batch_size, "batch_size", at_least=0)
        random = random_source(seed, generator)
        while True:
            num_frames = self._num_frames()
            drawn = draw(int(num_frames.sum()), size, weights, random)
            positions = self._spread(drawn, num_frames)
            reading = self._reading(positions, _steps(n_step, gamma), num_frames)
            try:
                return self._finished(reading)
            except FewerFramesError:
                self._known[:] = 0  # a shard that was full is not any more

    def loader(
        self,
        batch_size: int,
        *,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        generator: "np.random.Generator | torch.Generator | None" = None,
        prefetch: int = 2,
    ) -> ShardedLoader:
        """Batches to iterate over, of which some are on their way while one is used.

        Each epoch covers the frames that are live when it begins, in the order of their positions
        or shuffled.

        Args:
            batch_size: The number of items in a batch.
            shuffle: Whether to draw every frame once, in random order.
            sampler: What to draw instead: an iterable of positions, such as a
                `fastbuffer.PrioritizedSampler`. It is asked `prefetch` batches ahead.
            drop_last: Whether to leave out a last batch that is smaller.
            seed: Makes the order of each epoch the same.
            generator: Makes a sequence of epochs repeatable.
            prefetch: How many batches may be on their way, or have arrived, before they are asked
                for.

        Returns:
            An iterable of what `get_batch` returns.

        Raises:
            ValueError: `batch_size` is less than 1, `prefetch` is negative, or arguments exclude
                each other.
            TypeError: An argument has the wrong type.
        """
        size = _arguments.integer(batch_size, "batch_size", at_least=1)
        ahead = _arguments.integer(prefetch, "prefetch", at_least=0)
        shuffle = _arguments.boolean(shuffle, "shuffle")
        drop_last = _arguments.boolean(drop_last, "drop_last")
        if sampler is None:
            random_source(seed, generator)
            batches = partial(self._epoch, size, shuffle, drop_last, seed, generator)
        elif shuffle or seed is not None or generator is not None:
            got = "one of them with a sampler"
            raise ValueError(refused("shuffle, seed and generator", "none with a sampler", got))
        elif isinstance(sampler, Iterable):
            batches = partial(grouped, sampler, size, drop_last)
        else:
            raise TypeError(refused("sampler", "an iterable of int", describe(sampler)))
        return ShardedLoader(self, self._checked_reading, batches, ahead)

    def _epoch(
        self, size: int, shuffle: bool, drop_last: bool, seed: int | None, generator: Any
    ) -> Iterator[Positions]:
        num_frames = self._num_frames()
        order = np.arange(num_frames.sum())
        if shuffle:
            order = shuffled(len(order), random_source(seed, generator))
        return whole(self._spread(order, num_frames), size, drop_last)

    def get_data_by_key(self, key: str) -> "Value":
        """All live frames of a key, of all shards: for small values, such as rewards.

        Args:
            key: One of `data_keys`.

        Returns:
            An array or tensor of shape `(num_frames, *shape)`, in the order of positions.

        Raises:
            KeyError: There is no such key.
            TypeError: The key is no str.
            ShardUnavailableError: A shard does not answer.
        """
        key = _arguments.key(key, "key")
        return self._converted({key: np.concatenate(self._open().all("column", key))})[key]

    def nearest(self, local_rank: int = 0) -> OnlineBuffer:
        """A shard that lies on the node of this process, opened for reading from its disk.

        What it reads does not go through Ray. It is one shard's part of the buffer: workers that
        are to see all of it are as many as shards.

        Args:
            local_rank: Which of the node's shards, if it has several: taken modulo their number.
                `ray.train.get_context().get_local_rank()` spreads workers over them.

        Returns:
            The shard, with the windows and the output of this buffer.

        Raises:
            ShardUnavailableError: There is no shard on this node.
            ValueError: `local_rank` is negative.
            TypeError: `local_rank` is no int.
            OSError: The shard cannot be opened.
        """
        rank = _arguments.integer(local_rank, "local_rank", at_least=0)
        places, node = self._open().places, placement.here()
        near = [place for place in places if place.node_id == node]
        if not near:
            nodes = ", ".join(sorted({place.node_id for place in places}))
            message = refused("nearest", f"a process on one of the nodes {nodes}", f"one on {node}")
            raise ShardUnavailableError(message)
        directory = near[rank % len(near)].directory
        options: dict[str, Any] = {"mode": "r", "output": self._output}
        buffer = OnlineBuffer(directory, delta_timestamps=self._deltas, **options)
        if self.tolerance_s is not None:
            buffer.tolerance_s = self.tolerance_s
        return buffer

    def flush(self) -> None:
        """Wait until all that was inserted so far is on the disks.

        Raises:
            OSError: A disk refuses.
            ShardUnavailableError: A shard does not answer.
        """
        self._open().all("flush")

    def close(self) -> None:
        """End the shards' actors, if this is the object that started them. Nothing is lost.

        A copy that was passed elsewhere only ends its own use of them.
        """
        if self._closed:
            return
        self._closed = True
        if self._is_owner:
            try:
                self._shards.all("close")  # so that another process can write at once
            except ShardUnavailableError:
                pass  # it has no process that could hold a lock
            finally:
                placement.stopped(self._shards.places)

    def _open(self) -> Shards:
        if self._closed:
            raise ValueError(refused("buffer", "one that is open", "one that was closed"))
        return self._shards

    def _num_frames(self) -> Positions:
        """How many live frames each shard has. One that is full stays so: it is not asked."""
        shards = self._open()
        asked = np.flatnonzero(self._known < self.shard_capacity).tolist()
        states = shards.results([shards.start(shard, "state") for shard in asked])
        for shard, state in zip(asked, states, strict=True):
            self._known[shard] = state.num_frames
        num_frames: Positions = self._known.copy()
        return num_frames

    def _spread(self, dense: Positions, num_frames: Positions) -> Positions:
        """Positions of frames that are given by how many live ones come before them."""
        ends = np.cumsum(num_frames)
        shards = np.searchsorted(ends, dense, side="right")
        result: Positions = dense - (ends - num_frames)[shards] + shards * self.shard_capacity
        return result

    def _positions(self, positions: object) -> Positions:
        """The positions, each of which has a live frame.

        Raises:
            IndexError: One has none.
            TypeError: They are no ints.
        """
        checked = _positions_of(positions)
        shards, within = np.divmod(checked, self.shard_capacity)
        is_outside = (shards < 0) | (shards >= self.num_shards)
        if not is_outside.any() and (within >= self._known[shards]).any():
            is_outside = within >= self._num_frames()[shards]
        if is_outside.any():
            wrong = checked[is_outside][0]
            raise IndexError(
                f"position {wrong}: expected that of a live frame, got none in "
                f"{self.num_shards} shards of {self.shard_capacity}"
            )
        return checked

    def _checked_reading(self, positions: Positions) -> Reading:
        return self._reading(self._positions(positions), {})

    def _reading(
        self, positions: Positions, steps: dict[str, Any], num_frames: Positions | None = None
    ) -> Reading:
        if num_frames is None:
            num_frames = np.zeros(self.num_shards, np.int64)
        return Reading(self._open(), positions, self.shard_capacity, num_frames, steps)

    def _finished(self, reading: Reading) -> "Batch":
        return self._converted(reading.batch())

    def _converted(self, arrays: "dict[str, Array]") -> "Batch":
        return dict(arrays if self._output == "numpy" else to_tensors(arrays))

    def _open_priorities(self, alpha: float) -> ShardedPriorities:
        """What a `PrioritizedSampler` draws by."""
        return ShardedPriorities(self._open(), self.shard_capacity, alpha)

    def __enter__(self) -> "ShardedBuffer":
        """The buffer itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """As `close`."""
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """All but what each copy has for itself."""
        own = {"_router", "_known"}
        state = {name: value for name, value in vars(self).items() if name not in own}
        return state | {"_is_owner": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy that talks to the same actors."""
        vars(self).update(state)
        self._begin(self._totals)

    def __repr__(self) -> str:
        """Where it is and how large, without asking the shards."""
        nodes = len({place.node_id for place in self._shards.places})
        return (
            f"{type(self).__name__}({str(self._write_dir)!r}, num_shards={self.num_shards}, "
            f"nodes={nodes}, buffer_capacity={self.buffer_capacity}, fps={self.fps})"
        )


def _shard_capacity(buffer_capacity: object, num_shards: int) -> int | None:
    if buffer_capacity is None:
        return None
    capacity = _arguments.integer(buffer_capacity, "buffer_capacity", at_least=1)
    if capacity % num_shards:
        expected = f"a multiple of the number of shards, which is {num_shards}"
        raise ValueError(refused("buffer_capacity", expected, capacity))
    return capacity // num_shards


def _steps(n_step: int | None, gamma: float | None) -> dict[str, Any]:
    return {"n_step": n_step, "gamma": gamma}
