"""Zarr stores in the layout of imitation learning: `data/*`, and `meta/episode_ends`.

Arrays are written from their first frame to their last by several whole shards at a time, or chunks
where there are none, so nothing is ever read back or written twice.
"""

import contextlib
import importlib.util
import math
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

from fastbuffer import _arguments
from fastbuffer._arguments import refused

DATA = "data"
EPISODE_ENDS = "meta/episode_ends"
#: Shards or chunks are read and written together up to about this size.
BYTES_AT_ONCE = 16 << 20
#: More than that is no chunk or shard: each is handled in memory as a whole.
MOST_BYTES = 1 << 31

_CONFIG = threading.Lock()


class Layout(NamedTuple):
    """How an array is stored: the shape and dtype of one frame, and frames per chunk and shard."""

    shape: tuple[int, ...]
    dtype: Any
    chunk: int
    shard: int | None
    is_compressed: bool = True


class ArrayReader:
    """Reads rows of one array, whose ranges only move on: each chunk is read once."""

    def __init__(self, array: Any) -> None:
        """Begin at the first frame."""
        self.row_bytes = math.prod(array.shape[1:]) * array.dtype.itemsize
        self._array = array
        shard = (array.shards or array.chunks)[0]
        is_small = shard * self.row_bytes <= BYTES_AT_ONCE
        unit = shard if is_small else array.chunks[0]
        self._rows = _rows_at_once(unit, self.row_bytes, BYTES_AT_ONCE)
        self._start = 0
        self._block: NDArray[Any] = array[:0]

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """The rows from `start`, not before any given so far, to `stop`."""
        out = np.empty((stop - start, *self._array.shape[1:]), self._array.dtype)
        while start < stop:
            if start >= self._start + len(self._block):
                self._start = start - start % self._rows
                self._block = self._read(self._start, self._start + self._rows)
            part = self._block[start - self._start :][: stop - start]
            out[len(out) - (stop - start) :][: len(part)] = part
            start += len(part)
        return out

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        try:
            rows: NDArray[Any] = self._array[start:stop]
        except RuntimeError as error:  # which codecs make of what they cannot read
            raise OSError(f"{self._array.store_path}: frames {start} to {stop}: {error}") from error
        return rows


class WriteBehind:
    """Writes on a thread of its own, at most one write behind, so that the caller can go on."""

    def __init__(self) -> None:
        """Start with nothing to do."""
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None

    def write(self, array: Any, start: int, rows: NDArray[Any]) -> None:
        """Write rows, which nobody may change until the next write has been given."""
        self.wait()
        self._pending = self._executor.submit(_write, array, start, rows)

    def wait(self) -> None:
        """Wait for what was given before, and raise what it raised."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def __enter__(self) -> "WriteBehind":
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for all writes; raise what one of them raised, unless something else went wrong."""
        try:
            if kind is None:
                self.wait()
        finally:
            self._executor.shutdown()


class ArrayWriter:
    """Writes one array from its start to its end."""

    def __init__(
        self, group: zarr.Group, key: str, length: int, layout: Layout, behind: WriteBehind
    ) -> None:
        """Make the array, of `length` frames."""
        inner = layout.shape
        row_bytes = math.prod(inner) * np.dtype(layout.dtype).itemsize
        unit = layout.shard or layout.chunk
        if unit * row_bytes > MOST_BYTES:
            expected = f"at most {MOST_BYTES // max(1, row_bytes)} frames per chunk or shard"
            raise ValueError(refused(f"{DATA}/{key}", expected, unit))
        with fast_codecs():
            self._array = group.create_array(
                key,
                shape=(length, *inner),
                chunks=(layout.chunk, *inner),
                shards=None if layout.shard is None else (layout.shard, *inner),
                dtype=layout.dtype,
                compressors=[compressor()] if layout.is_compressed else None,
            )
        self._behind = behind
        # Arrays of small rows need no large blocks, which would grow with the number of frames.
        limit = BYTES_AT_ONCE if layout.shard else BYTES_AT_ONCE >> 5
        # One is filled while the other may still be written.
        shape = (min(_rows_at_once(unit, row_bytes, limit), length), *inner)
        self._block, self._other = np.empty(shape, layout.dtype), np.empty(shape, layout.dtype)
        self._filled = 0
        self._written = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Write the next frames."""
        while len(rows):
            fitting = min(len(rows), len(self._block) - self._filled)
            self._block[self._filled : self._filled + fitting] = rows[:fitting]
            rows = rows[fitting:]
            self._advance(fitting)

    def fill(self, count: int, draw: Callable[[NDArray[Any]], None]) -> None:
        """Let `draw` make the next frames, where they are written from if they fit there."""
        room = self._block[self._filled : self._filled + count]
        if len(room) < count:
            rows = np.empty((count, *self._block.shape[1:]), self._block.dtype)
            draw(rows)
            self.append(rows)
            return
        draw(room)
        self._advance(count)

    def finish(self) -> None:
        """Write what is left."""
        if self._filled:
            self._write()

    def _advance(self, count: int) -> None:
        self._filled += count
        if self._filled == len(self._block):
            self._write()

    def _write(self) -> None:
        self._behind.write(self._array, self._written, self._block[: self._filled])
        self._written += self._filled
        self._filled = 0
        self._block, self._other = self._other, self._block


@contextlib.contextmanager
def new_store(
    path: Path, layouts: dict[str, Layout], ends: NDArray[np.int64]
) -> Iterator[dict[str, ArrayWriter]]:
    """A store of episodes that end there, and the writers of its arrays, finished at the end."""
    length = int(ends[-1]) if len(ends) else 0
    with WriteBehind() as behind:
        root = zarr.create_group(path, zarr_format=3)
        data = root.create_group(DATA)
        writers = {
            key: ArrayWriter(data, key, length, layout, behind) for key, layout in layouts.items()
        }
        yield writers
        for writer in writers.values():
            writer.finish()
        _write_episode_ends(root, ends)


def compressor() -> BloscCodec:
    """The codec of compressed arrays."""
    return BloscCodec(cname="lz4", clevel=5, shuffle="noshuffle")


@contextlib.contextmanager
def fast_codecs() -> Iterator[None]:
    """Arrays that are made or opened meanwhile use the faster codecs of zarrs, if installed."""
    if importlib.util.find_spec("zarrs") is None:
        yield
        return
    # An array keeps the codecs that it begins with; others must not begin with them meanwhile.
    with _CONFIG, zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        yield


def with_fast_codecs(array: Any) -> Any:
    """The same array, read with the faster codecs if these can do it."""
    is_plain = array.dtype.isnative and array.metadata.zarr_format == 3
    if not (is_plain and isinstance(array.store, zarr.storage.LocalStore)):
        return array
    with fast_codecs(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*unsupported by ZarrsCodecPipeline")
        return zarr.open_array(array.store_path, mode="r")


def _write_episode_ends(root: zarr.Group, ends: NDArray[np.int64]) -> None:
    """Write how many frames there are up to the end of each episode."""
    array = root.create_array(
        EPISODE_ENDS,
        shape=ends.shape,
        chunks=(max(1, len(ends)),),
        dtype=np.int64,
        compressors=None,
    )
    array[...] = ends


def checked_shard(value: object, chunk: int) -> int | None:
    """`image_frames_per_shard` for images of so many frames per chunk.

    Raises:
        ValueError: It is no positive multiple of that.
        TypeError: It is no int.
    """
    name = "image_frames_per_shard"
    if value is None:
        return None
    shard = _arguments.integer(value, name, at_least=-(2**63))
    if shard < 1 or shard % chunk:
        raise ValueError(refused(name, f"a positive multiple of {chunk}, the chunk length", shard))
    return shard


def _write(array: Any, start: int, rows: NDArray[Any]) -> None:
    try:
        array[start : start + len(rows)] = rows
    except RuntimeError as error:  # which zarrs makes of what the system refuses
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        path = str(array.store_path).removeprefix("file://")
        raise OSError(int(number[1]), os.strerror(int(number[1])), path) from error


def _rows_at_once(unit: int, row_bytes: int, limit: int) -> int:
    """The rows of as many units, a shard or chunk each, as `limit` bytes hold, or of one."""
    return unit * max(1, limit // max(1, unit * row_bytes))
