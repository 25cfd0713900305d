"""The buffer as users see it."""

import logging
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import DataSpec, DeltaTimestamps, refused
from fastbuffer._batches import EmptyBatch, arrays_of, in_worker, shared_batch, split
from fastbuffer._chunks import IMAGE_CHUNK
from fastbuffer._core import (
    Buffer,
    Priorities,
    Windows,
    after_fork_in_child,
    after_fork_in_parent,
    before_fork,
)
from fastbuffer._drawing import draw, random_source, take
from fastbuffer._nstep import checked_steps, with_returns
from fastbuffer._optional import require
from fastbuffer._tensors import Array, Output, to_numpy, to_tensors, torch_is_installed
from fastbuffer.inspection import as_html
from fastbuffer.recording import PendingEpisode
from fastbuffer.verification import Finding, verify

if TYPE_CHECKING:
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from torch.utils.data import DataLoader, Dataset
    from typing_extensions import Self

    from fastbuffer._batches import Batch, Item, Value

    _Base = Dataset[Item]
elif torch_is_installed():
    from torch.utils.data import Dataset as _Base
else:
    _Base = object


Mode = Literal["a", "r"]
Durability = Literal["process", "fsync"]

_logger = logging.getLogger("fastbuffer")

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=before_fork,
        after_in_parent=after_fork_in_parent,
        after_in_child=after_fork_in_child,
    )


class OnlineBuffer(_Base):
    """A circular buffer of episodes on disk that is read as windows around its frames.

    Whole episodes go in with `add_data` and overwrite the oldest frames once the buffer is full.
    `buffer[i]` is the frame in the i-th live slot; with `delta_timestamps` it comes with the past
    and future frames of its episode. One process writes a directory at a time; any number of
    others read it meanwhile and see each insert whole.

    With torch installed this is a `torch.utils.data.Dataset` and returns tensors. Nothing that it
    returns shares memory with the stored data.
    """

    NEXT_INDEX_KEY = "_next_index"
    OCCUPANCY_MASK_KEY = "_occupancy_mask"
    INDEX_KEY = "index"
    FRAME_INDEX_KEY = "frame_index"
    EPISODE_INDEX_KEY = "episode_index"
    TIMESTAMP_KEY = "timestamp"
    IS_PAD_POSTFIX = "_is_pad"

    def __init__(
        self,
        write_dir: str | os.PathLike[str],
        data_spec: DataSpec | None = None,
        buffer_capacity: int | None = None,
        fps: float | None = None,
        delta_timestamps: DeltaTimestamps | None = None,
        *,
        output: Output | None = None,
        mode: Mode = "a",
        durability: Durability = "process",
        preallocate: bool = True,
    ) -> None:
        """Open the buffer in a directory, or create one there.

        Args:
            write_dir: The directory; made if it does not exist. If it holds a buffer, the other
                arguments may be left out and must not contradict it. If it holds the memory-mapped
                files of the NumPy implementation, those become the buffer.
            data_spec: For each key, the `shape` (without the frame dimension) and `dtype` of one
                frame's value. The keys `index`, `frame_index`, `episode_index` (int64) and
                `timestamp` (float64, seconds) are added.
            buffer_capacity: The number of frames that the buffer holds.
            fps: Frames per second, below 10,000. Needed for `delta_timestamps`.
            delta_timestamps: See `set_delta_timestamps`.
            output: What reads return, "torch" or "numpy". By default torch if it is installed.
            mode: "a" to read and insert, and to make the buffer if there is none; "r" to only read
                one that exists, for which read permission is enough and nothing is changed.
            durability: What an insert that has returned survives: "process" is the end of the
                process, however it comes; "fsync" is also a power failure, at the price of
                waiting for the disk in each insert.
            preallocate: Reserve all disk space at creation, so that a full disk is an error then.
                False makes sparse files.

        Raises:
            ValueError: An argument is not allowed or contradicts the directory, or the directory
                is damaged.
            TypeError: An argument has the wrong type.
            FileNotFoundError: `mode="r"`, and there is no buffer.
            OSError: A file cannot be made, opened or reserved.
            ImportError: `output="torch"` without torch.
        """
        self._output = _checked_output(output)
        self._mode = _arguments.choice(mode, "mode", "a", "r")
        self._durability = _arguments.choice(durability, "durability", "process", "fsync")
        deltas = None if delta_timestamps is None else _arguments.deltas(delta_timestamps)
        capacity, name = buffer_capacity, "buffer_capacity"
        self._core = Buffer(
            _arguments.path(write_dir, "write_dir"),
            None if data_spec is None else _arguments.fields(data_spec),
            None if capacity is None else _arguments.integer(capacity, name, at_least=1),
            None if fps is None else _arguments.real(fps, "fps"),
            [] if deltas is None else list(deltas.items()),
            _arguments.boolean(preallocate, "preallocate"),
            self._mode == "r",
            self._durability == "fsync",
        )
        self._tell_recovery()
        self._keys = [key for key, _, _ in self._core.columns]
        self._pending: PendingEpisode | None = None
        self._tolerance_s = None if self.fps is None else 1 / self.fps - 1e-4
        self._set_deltas(deltas)

    @property
    def write_dir(self) -> Path:
        """The buffer's directory."""
        return Path(self._core.write_dir)

    @property
    def buffer_capacity(self) -> int:
        """The number of frames that the buffer holds when it is full."""
        return self._core.buffer_capacity

    @property
    def data_keys(self) -> list[str]:
        """All keys, sorted: those of the spec and the buffer's own four."""
        return list(self._keys)

    @property
    def fps(self) -> float | None:
        """Frames per second, if known."""
        return self._core.fps

    @property
    def num_frames(self) -> int:
        """The number of live frames."""
        return self._core.num_frames

    @property
    def num_episodes(self) -> int:
        """The number of episodes with a live frame."""
        return self._core.num_episodes

    @property
    def tolerance_s(self) -> float | None:
        """How far, in seconds, a frame may be from a query before it is padding.

        `1 / fps - 1e-4` unless set; None without `fps`. Infinity pads nothing.
        """
        return self._tolerance_s

    @tolerance_s.setter
    def tolerance_s(self, value: float) -> None:
        self._tolerance_s = _arguments.at_least_zero(value, "tolerance_s")
        self._set_deltas(self._deltas)

    @property
    def delta_timestamps(self) -> dict[str, NDArray[np.float64]] | None:
        """The deltas of each windowed key, in seconds, as read-only arrays."""
        return None if self._deltas is None else dict(self._deltas)

    def set_delta_timestamps(self, value: DeltaTimestamps | None) -> None:
        """Choose the frames that come with an item.

        For a key with D deltas an item holds D frames of its episode, one for each query
        `timestamp + delta`, and under `<key>_is_pad` D bools. Each query takes the live frame of
        the episode whose timestamp is nearest, the earliest on a tie. Where it is further than
        `tolerance_s` from the query, the frame is padding.

        Args:
            value: For each key, its deltas in seconds. None for single frames.

        Raises:
            ValueError: The buffer has no `fps`, a key is unknown or its mask's name is taken, or
                deltas are not finite or not one-dimensional.
            TypeError: A part has the wrong type.
        """
        self._set_deltas(None if value is None else _arguments.deltas(value))

    def _set_deltas(self, deltas: dict[str, NDArray[np.float64]] | None) -> None:
        pairs = [] if deltas is None else list(deltas.items())
        # Without windows the tolerance has no effect.
        tolerance_s = 0.0 if self._tolerance_s is None else self._tolerance_s
        self._windows = Windows(self._core, pairs, tolerance_s)
        self._deltas = deltas

    def add_data(self, data: Mapping[str, Any]) -> None:
        """Insert whole episodes, all of them or, where an argument is refused, nothing.

        `index` and `episode_index` start at 0 and are shifted to continue from the newest frame,
        in the buffer and also in the caller's arrays (writeable NumPy arrays whose dtype can hold
        the new values; others are left alone). Of more frames than the buffer holds, the newest
        stay.

        Args:
            data: For each of `data_keys` an array (NumPy, torch or array-like) of shape
                `(n, *shape)` that casts to the key's dtype within its kind. Other keys are ignored.

        Raises:
            ValueError: A key is missing, lengths differ, a shape or dtype does not fit, the first
                index or episode_index is not 0, episodes are not contiguous and in order, or a
                timestamp is not finite.
            TypeError: `data` is no mapping.
            BufferLockedError: Another process is writing the directory.
            io.UnsupportedOperation: The buffer was opened with `mode="r"`.
            OSError: The directory cannot be written, or its disk is full. With
                `durability="fsync"` also that the disk refused what was written: then the frames
                may be in the buffer or not, and frames that they were to overwrite may be gone.
        """
        if not isinstance(data, Mapping) and not hasattr(data, "keys"):
            raise TypeError(refused("data", "a dict of arrays", _arguments.describe(data)))
        arrays = {key: _column(data[key], key) for key in self._keys if key in data}
        index_shift, episode_shift = self._core.append(arrays)
        self._tell_recovery()
        index, episode_index = data[self.INDEX_KEY], data[self.EPISODE_INDEX_KEY]
        if not _share_memory(index, episode_index):  # else one array cannot have both
            _shift_in_place(index, index_shift)
            _shift_in_place(episode_index, episode_shift)

    def add_frame(self, frame: Mapping[str, Any]) -> None:
        """Add a copy of one frame to the episode that is being recorded.

        The episode is in memory until `save_episode`; if the process ends before, it is lost, and
        nothing else. `fastbuffer.EpisodeRecorder` records several at the same time.

        Args:
            frame: For each key of `data_spec` a value of its shape that casts to its dtype within
                its kind. `timestamp`, in seconds, may be given; otherwise it follows from `fps`.
                `index`, `frame_index` and `episode_index` are filled in.

        Raises:
            ValueError: A key is missing or one too many, a shape or dtype does not fit, a timestamp
                is not finite, or there is neither a timestamp nor `fps`. The frame is left out.
            TypeError: `frame` is no mapping.
            io.UnsupportedOperation: The buffer was opened with `mode="r"`.
        """
        if self._pending is None:
            self._pending = self._new_episode()
        self._pending.append(frame)

    def save_episode(self) -> None:
        """Insert the recorded episode, and begin the next one. Where that fails, the frames stay.

        Raises:
            ValueError: The episode has no frames.
            BufferLockedError: Another process is writing the directory.
            OSError: The directory cannot be written.
        """
        pending = self._new_episode() if self._pending is None else self._pending
        self.add_data(pending.data())
        pending.clear()

    def discard_episode(self) -> None:
        """Forget the recorded episode, and begin the next one."""
        self._pending = None

    def _new_episode(self) -> PendingEpisode:
        self._core.check_writable()
        return PendingEpisode(self._core.columns, self.fps)

    def get_data_by_key(self, key: str) -> "Value":
        """All live frames of a key.

        Args:
            key: One of `data_keys`.

        Returns:
            An array or tensor of shape `(num_frames, *shape)`, in slot order.

        Raises:
            KeyError: There is no such key.
            TypeError: The key is no str.
        """
        key = _arguments.key(key, "key")
        return self._converted({key: self._core.column(key)})[key]

    def __len__(self) -> int:
        """The number of live frames."""
        return self._core.num_frames

    def __getitem__(self, index: "SupportsIndex | slice | Sequence[int] | Array") -> "Item":
        """One item, or a batch of items.

        Args:
            index: A position among the live frames in slot order, or from their end if negative;
                or a slice, sequence or one-dimensional array of such.

        Returns:
            For each of `data_keys` the frame's value (scalars are 0-d), or its window where
            `delta_timestamps` has the key; and each window's pad mask. A batch has a leading
            dimension.

        Raises:
            IndexError: An index is out of range.
            TypeError: `index` holds no ints.
            TimestampToleranceError: A query inside an episode has no frame within `tolerance_s`.
        """
        position = _single(index)
        if position is None:
            return self.get_batch(index)  # type: ignore[arg-type]
        return self._converted(self._core.item(position, self._windows))

    def __getitems__(self, indices: "Sequence[int] | Array") -> "list[Item]":
        """The items at `indices`, read as one batch: what a DataLoader collates.

        Args:
            indices: As for `get_batch`.

        Returns:
            For each index, `buffer[index]`.

        Raises:
            IndexError, TypeError, TimestampToleranceError: As for `get_batch`.
        """
        return split(self.get_batch(indices))

    def get_batch(
        self,
        indices: "slice | Sequence[int] | Array",
        *,
        n_step: int | None = None,
        gamma: float | None = None,
        out: "Batch | None" = None,
    ) -> "Batch":
        """The items at `indices` as one batch, each row copied once.

        Args:
            indices: Positions among the live frames in slot order, or from their end if negative:
                a slice, a sequence or a one-dimensional array.
            n_step: Over how many steps to add up rewards, for targets `next.reward_nstep + discount
                * value(bootstrap frame)` (R. S. Sutton, 1988, "Learning to predict by the methods
                of temporal differences"). The buffer needs the key `next.reward`.
            gamma: The discount per step, from 0 to 1. Only together with `n_step`.
            out: Where the batch goes, as `empty_batch` makes it. Nothing is allocated then. Not
                together with `n_step`.

        Returns:
            What `buffer[i]` returns for one of them, each value with a leading dimension of one
            per index: `out`, or a new dict of tensors or arrays. With `n_step` also:

            - `next.reward_nstep`: the discounted sum of `next.reward` over the steps, of its shape;
              float64 if that is, else float32.
            - `bootstrap.<key>`, for each key: the value at the frame `n_step` frames later.
            - `discount`: `gamma ** n_step`.

            Where `next.terminated` or, without such a key, `next.done` is set, that frame's reward
            is the last one, and the discount is 0. Where an episode ends without, its last frame is
            the bootstrap frame, as there is none that its reward led to; the sum ends before it,
            and the discount is that of as many steps.

        Raises:
            IndexError: An index is out of range.
            TypeError: `indices` holds no ints, or `out` is no dict.
            ValueError: `out` has other keys than the batch, or a tensor or array in it has another
                shape or dtype, is not contiguous, not writeable, not in the memory of the CPU, or
                overlaps another one; or `n_step` or `gamma` is out of range, lacks the other, or
                does not fit the buffer's keys.
            TimestampToleranceError: A query inside an episode has no frame within `tolerance_s`.
        """
        positions = self._positions(indices)
        steps = checked_steps(n_step, gamma, out)
        if steps is not None:
            how = (self._windows, self._threads(), *steps)
            return self._converted(with_returns(self._core, positions, *how))
        if out is not None:
            arrays = arrays_of(out)
            self._core.gather(positions, self._windows, self._threads(), arrays)
            return out
        if self._output == "torch" and in_worker():
            batch, arrays = shared_batch(self._windows.empty(len(positions)))
            self._core.gather(positions, self._windows, 1, arrays)
            return batch
        return self._converted(self._core.gather(positions, self._windows, self._threads()))

    def empty_batch(self, batch_size: int, *, pin_memory: bool = False) -> "Batch":
        """Tensors or arrays for a batch, to be passed to `get_batch` as `out` again and again.

        Args:
            batch_size: The number of items.
            pin_memory: Whether to allocate tensors in pinned memory, from which a copy to a GPU
                need not wait. Only for torch output, and only where there is an accelerator.

        Returns:
            A dict as `get_batch` returns it, with undefined content. It fits until
            `delta_timestamps` changes.

        Raises:
            ValueError: `batch_size` is negative, or `pin_memory` is used with NumPy output.
            TypeError: `batch_size` is no int.
        """
        size = _arguments.integer(batch_size, "batch_size", at_least=0)
        if pin_memory and self._output == "numpy":
            raise ValueError(refused("pin_memory", 'False for output="numpy"', pin_memory))
        arrays = self._windows.empty(size)
        if pin_memory:
            return {key: tensor.pin_memory() for key, tensor in to_tensors(arrays).items()}
        if self._output == "torch":
            return EmptyBatch(arrays)
        return dict(arrays)

    def sample(
        self,
        batch_size: int,
        *,
        weights: "Value | None" = None,
        sampler: "Iterable[int] | None" = None,
        seed: int | None = None,
        generator: "np.random.Generator | torch.Generator | None" = None,
        n_step: int | None = None,
        gamma: float | None = None,
        out: "Batch | None" = None,
    ) -> "Batch":
        """A batch of random items, drawn with replacement and uniformly unless it is said how.

        Args:
            batch_size: The number of items.
            weights: How often to draw each live frame, in slot order, relative to the others:
                `len(buffer)` numbers, of which none is negative. Each call reads them all.
            sampler: What to draw instead: an iterable of positions, such as a sampler of
                `torch.utils.data`. Its first `batch_size` ones are taken, so an iterator goes on
                with each call where the last one stopped.
            seed: Makes the draw repeatable on its own.
            generator: Makes a sequence of draws repeatable. Without one, each process draws
                differently, and in a worker of a DataLoader by the seed that torch gave that.
            n_step: As for `get_batch`.
            gamma: As for `get_batch`.
            out: As for `get_batch`.

        Returns:
            As `get_batch`.

        Raises:
            ValueError: The buffer is empty, `batch_size` is negative, `weights` do not fit or are
                all zero, the sampler ends early, arguments exclude each other, or `n_step`, `gamma`
                or `out` does not fit.
            IndexError: The sampler's position is out of range.
            TypeError: An argument has the wrong type.
            TimestampToleranceError: A query inside an episode has no frame within `tolerance_s`.
        """
        size = _arguments.integer(batch_size, "batch_size", at_least=0)
        if sampler is None:
            random = random_source(seed, generator)
            indices = draw(len(self), size, weights, random)
        elif weights is None and seed is None and generator is None:
            indices = take(sampler, size)
        else:
            got = "one of them with a sampler"
            raise ValueError(refused("weights, seed and generator", "none with a sampler", got))
        return self.get_batch(indices, n_step=n_step, gamma=gamma, out=out)

    def loader(
        self,
        batch_size: int,
        *,
        shuffle: bool = False,
        sampler: "Iterable[int] | None" = None,
        drop_last: bool = False,
        **options: Any,
    ) -> "DataLoader[Batch]":
        """A torch DataLoader of batches, each read by one call as `get_batch` does.

        It yields what `DataLoader(buffer, batch_size, ...)` does, without handling single items.
        Each epoch covers the frames that are live when it begins. Without shuffling they come in
        slot order.

        Args:
            batch_size: The number of items in a batch.
            shuffle: Whether to draw every frame once, in random order.
            sampler: What to draw instead: any iterable of positions, such as a sampler of
                `torch.utils.data`.
            drop_last: Whether to leave out a last batch that is smaller.
            **options: Other arguments of `torch.utils.data.DataLoader`, such as `num_workers`,
                `pin_memory` and `generator`. A `collate_fn` is given the whole batch.

        Returns:
            The DataLoader.

        Raises:
            ValueError: `batch_size` is less than 1, both `shuffle` and `sampler` are given, or
                torch refuses an option.
            TypeError: An argument has the wrong type.
            ImportError: torch is not installed.
        """
        require("torch", extra="torch", purpose="OnlineBuffer.loader")
        from fastbuffer._loader import loader

        size = _arguments.integer(batch_size, "batch_size", at_least=1)
        shuffle = _arguments.boolean(shuffle, "shuffle")
        drop_last = _arguments.boolean(drop_last, "drop_last")
        return loader(self, size, shuffle, sampler, drop_last, options)

    def _positions(self, index: object) -> NDArray[np.int64]:
        if isinstance(index, slice):
            return np.arange(*index.indices(len(self)), dtype=np.int64)
        return _positions_of(index)

    def _threads(self) -> int:
        return 1 if in_worker() else self._core.num_threads

    def _converted(self, arrays: dict[str, Array]) -> "Item":
        return dict(arrays if self._output == "numpy" else to_tensors(arrays))

    def _open_priorities(self, alpha: float) -> Priorities:
        """What a `PrioritizedSampler` draws by."""
        return Priorities(self._core, alpha)

    def flush(self) -> None:
        """Wait until all that was inserted so far, by whichever process, is on the disk.

        Raises:
            OSError: The disk refuses.
        """
        self._core.flush()

    @classmethod
    def from_zarr(
        cls,
        zarr_path: str | os.PathLike[str],
        write_dir: str | os.PathLike[str],
        *,
        fps: float | None,
        keys: Sequence[str] | None = None,
        buffer_capacity: int | None = None,
        delta_timestamps: DeltaTimestamps | None = None,
        output: Output | None = None,
    ) -> "Self":
        """Make a buffer of a Zarr store with the arrays `data/*` and `meta/episode_ends`.

        Frames get the timestamps of an array `data/timestamp`, or those that follow from `fps`, and
        likewise their `frame_index`. Arrays `index` and `episode_index` are left out: the buffer
        counts by itself. Frames past the last episode's end are left out, too. The store is read
        once, chunk by chunk; the buffer is there once it is complete.

        Args:
            zarr_path: The store: a directory or a zip file, of format 2 or 3.
            write_dir: The buffer's directory, new or empty.
            fps: Frames per second. None for a store with timestamps and a buffer without windows.
            keys: The arrays to take, by their paths below `data`. None for all.
            buffer_capacity: The number of frames that the buffer holds. None for as many as there
                are. Of more frames than that the newest stay.
            delta_timestamps: See `set_delta_timestamps`.
            output: What reads return, "torch" or "numpy".

        Returns:
            The buffer, opened.

        Raises:
            FileNotFoundError: There is no store.
            FileExistsError: `write_dir` has something in it.
            ValueError: The store has another layout, an array is too short or of a dtype that
                buffers do not have, or another argument is not allowed.
            TypeError: An argument has the wrong type.
            OSError: Something cannot be read or written.
        """
        from fastbuffer.io.zarr import buffer_from_zarr

        return buffer_from_zarr(
            cls,
            zarr_path,
            write_dir,
            fps=fps,
            keys=keys,
            buffer_capacity=buffer_capacity,
            delta_timestamps=delta_timestamps,
            output=_checked_output(output),
        )

    def to_zarr(
        self,
        path: str | os.PathLike[str],
        *,
        image_frames_per_shard: int | None = 256,
        image_chunk: int = IMAGE_CHUNK,
        partial: Literal["keep", "drop"] = "keep",
    ) -> None:
        """Write the live episodes, in the order in which they were added, as a Zarr v3 store.

        The store has `data/<key>` for each key but `index` and `episode_index`, which follow from
        `meta/episode_ends`. `from_zarr` reads it, and whatever reads that layout by zarr-python 3.
        A store that is there is replaced once the new one is complete.

        Args:
            path: The store's directory.
            image_frames_per_shard: Frames per shard of values with two dimensions or more, a
                multiple of `image_chunk`. None for chunks without shards.
            image_chunk: Frames per chunk of these. Other values have 256.
            partial: What becomes of an oldest episode that has lost frames, which shows in a first
                `frame_index` that is not 0: "keep" or "drop" it.

        Raises:
            ValueError: An argument is not allowed, or a key cannot be a name in a store.
            TypeError: An argument has the wrong type.
            FileExistsError: Something else than a Zarr store is there.
            RuntimeError: Frames were overwritten before they were written to the store.
            OSError: The store cannot be written.
        """
        from fastbuffer.io.zarr import buffer_to_zarr

        buffer_to_zarr(
            self,
            path,
            image_frames_per_shard=image_frames_per_shard,
            image_chunk=image_chunk,
            partial=partial,
        )

    @classmethod
    def from_lerobot_dataset(
        cls,
        dataset: "LeRobotDataset",
        write_dir: str | os.PathLike[str],
        *,
        buffer_capacity: int | None = None,
        keys: Sequence[str] | None = None,
        delta_timestamps: DeltaTimestamps | None = None,
        image_size: int | tuple[int, int] | None = None,
        output: Output | None = None,
    ) -> "Self":
        """Make a buffer of the episodes that a LeRobot dataset has, or of the subset it was given.

        Items have the values of the dataset's items, windows and masks included, but for these:
        images and the frames of videos are uint8 of shape `(height, width, channels)` and
        timestamps are float64, which `fastbuffer.io.lerobot.as_lerobot` converts; `index` and
        `episode_index` count from 0; there are no strings: `task_index` says which of
        `dataset.meta.tasks` a frame has.

        Args:
            dataset: A `LeRobotDataset`, complete on this machine. Its `image_transforms` are left
                out.
            write_dir: The buffer's directory, new or empty.
            buffer_capacity: The number of frames that the buffer holds. None for as many as there
                are. Of more frames than that the newest stay.
            keys: The features to take. None for all of numbers, bools, images and videos.
            delta_timestamps: See `set_delta_timestamps`. None for those of the dataset.
            image_size: The side of square images, or their height and width, in pixels, to which
                they are resized. None to keep them as they are.
            output: What reads return, "torch" or "numpy".

        Returns:
            The buffer, opened.

        Raises:
            FileExistsError: `write_dir` has something in it.
            ValueError: A feature is unknown or of a kind that buffers do not have, or another
                argument is not allowed.
            TypeError: An argument has the wrong type.
            OSError: Something cannot be read or written.
            ImportError: lerobot is not installed.
        """
        from fastbuffer.io.lerobot import buffer_from_lerobot_dataset

        return buffer_from_lerobot_dataset(
            cls,
            dataset,
            write_dir,
            buffer_capacity=buffer_capacity,
            keys=keys,
            delta_timestamps=delta_timestamps,
            image_size=image_size,
            output=_checked_output(output),
        )

    def to_lerobot_dataset(
        self, repo_id: str, root: str | os.PathLike[str], *, task: str | Sequence[str]
    ) -> "LeRobotDataset":
        """Write the live episodes, in the order in which they were added, as a LeRobot dataset.

        Keys of uint8 and shape `(height, width, 3)` become images, all others numbers. Frames are
        counted anew in each episode, as LeRobot does; an oldest episode that has lost frames begins
        with the first that is left. Nothing goes to the hub.

        Args:
            repo_id: The dataset's name, as `user/name`.
            root: The dataset's directory, new or empty.
            task: What the robot was told, the same for all frames; or the names of the tasks that
                a key `task_index` counts.

        Returns:
            The dataset, loaded.

        Raises:
            ValueError: The buffer is empty, its `fps` is no whole number, timestamps are not
                `1 / fps` apart, LeRobot does not have a key's kind, or a task is missing.
            TypeError: An argument has the wrong type.
            FileExistsError: `root` has something in it.
            RuntimeError: Frames were overwritten before they were written to the dataset.
            OSError: The dataset cannot be written.
            ImportError: lerobot is not installed.
        """
        from fastbuffer.io.lerobot import buffer_to_lerobot_dataset

        return buffer_to_lerobot_dataset(self, repo_id, root, task=task)

    def verify(self) -> list[Finding]:
        """Check the buffer's files against each other, as `fastbuffer verify` does.

        Returns:
            What is wrong; nothing if the buffer is sound.

        Raises:
            OSError: The directory cannot be read.
            RuntimeError: It was changed all the time.
        """
        return verify(self.write_dir)

    def close(self) -> None:
        """Give up the right to write, if this object has it. Reading goes on as before.

        Other objects of this process that have inserted keep it.

        Raises:
            OSError: With `durability="fsync"`, the disk refuses.
        """
        self._core.close()

    def _tell_recovery(self) -> None:
        recovery = self._core.take_recovery()
        if recovery is not None:
            _logger.warning(
                "%s: an insert was cut off: the frames that it was writing, from slot %d on and "
                "%d in number, and those that were there before, are gone; %d frames are live",
                *(self.write_dir, *recovery),
            )

    def __enter__(self) -> "OnlineBuffer":
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

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by directory, not by content."""
        opening = {
            "write_dir": str(self.write_dir),
            "fps": self.fps,
            "delta_timestamps": self._deltas,
            "output": self._output,
            "mode": self._mode,
            "durability": self._durability,
        }
        others = {name: value for name, value in vars(self).items() if name not in _OWN_ATTRIBUTES}
        return _reopened, (type(self), opening, self._tolerance_s), others or None

    def _repr_html_(self) -> str:
        """The schema, how full the buffer is, and a picture of its slots, for a notebook."""
        return as_html(self)

    def __repr__(self) -> str:
        """The directory, how full it is, and the schema."""
        schema = ", ".join(
            f"{key}: {dtype}{list(shape) if shape else ''}"
            for key, dtype, shape in self._core.columns
        )
        return (
            f"{type(self).__name__}({str(self.write_dir)!r}, num_frames={self.num_frames}, "
            f"num_episodes={self.num_episodes}, buffer_capacity={self.buffer_capacity}, "
            f"fps={self.fps}, schema={{{schema}}})"
        )


_OWN_ATTRIBUTES = {
    *("_output", "_mode", "_durability", "_core", "_keys", "_pending"),
    *("_tolerance_s", "_deltas", "_windows"),
}


def _reopened(
    cls: type[OnlineBuffer], opening: dict[str, Any], tolerance_s: float | None
) -> OnlineBuffer:
    buffer = cls.__new__(cls)
    OnlineBuffer.__init__(buffer, **opening)  # a subclass may begin otherwise
    if tolerance_s is not None:
        buffer.tolerance_s = tolerance_s
    return buffer


def _checked_output(output: Output | None) -> Output:
    if output is not None:
        _arguments.choice(output, "output", "torch", "numpy")
    if output == "torch":
        require("torch", extra="torch", purpose='OnlineBuffer(output="torch")')
    if output is None:
        return "torch" if torch_is_installed() else "numpy"
    return output


def _column(values: Any, key: str) -> Array:
    if type(values) is np.ndarray:
        return values
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(refused(f"data[{key!r}]", "an array without masked values", "masked ones"))
    return to_numpy(values, f"data[{key!r}]")


def _share_memory(a: object, b: object) -> bool:
    both = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    return both and np.may_share_memory(a, b)


def _shift_in_place(values: object, shift: int) -> None:
    """Add `shift` to the caller's array if it is one that can take it."""
    if not isinstance(values, np.ndarray) or not values.flags.writeable or shift == 0:
        return
    if values.dtype == np.int64:
        values += shift  # the core has stored the sums in this type
    elif values.dtype.kind in "iu":
        limits = np.iinfo(values.dtype)
        if limits.min <= int(values.min()) + shift and int(values.max()) + shift <= limits.max:
            # Cast first: unsigned arrays take no negative shift, but wrap to the same result.
            values += np.asarray(shift).astype(values.dtype)


def _single(index: object) -> int | None:
    """The index as an int, if it is one.

    Raises:
        IndexError: It is out of range for any buffer.
    """
    if isinstance(index, int):
        return _within_int64(index)
    if isinstance(index, slice | Sequence) or getattr(index, "ndim", 0) != 0:
        return None
    try:
        number = operator.index(index)  # type: ignore[arg-type]
    except TypeError:
        return None
    is_mask = "bool" in str(getattr(index, "dtype", ""))  # which torch takes for a number
    return None if is_mask else _within_int64(number)


def _within_int64(index: int) -> int:
    if not -(2**63) <= index < 2**63:
        raise IndexError(f"index {index} is out of range for any buffer")
    return index


def _positions_of(index: object) -> NDArray[np.int64]:
    """The positions in a sequence or array."""
    if type(index) is np.ndarray and index.dtype == np.int64 and index.ndim == 1:
        return index
    expected = "a slice or a one-dimensional sequence of int"
    if isinstance(index, str | bytes) or not hasattr(index, "__len__"):
        raise TypeError(refused("index", expected, _arguments.describe(index)))
    array = to_numpy(index, "index")
    if array.dtype == np.object_ and array.ndim == 1 and all(isinstance(i, int) for i in array):
        array = np.array([_within_int64(i) for i in array])
    if array.ndim == 1 and array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        hint = "; np.flatnonzero makes indices of a mask" if array.dtype == np.bool_ else ""
        got = f"{array.dtype} of shape {array.shape}{hint}"
        raise TypeError(refused("index", expected, got))
    if array.dtype == np.uint64:
        _within_int64(int(array.max()))
    return array.astype(np.int64)
