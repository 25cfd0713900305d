"""Zarr stores in the layout of imitation learning: `data/*`, and `meta/episode_ends`.

Arrays are written from their first frame to their last by whole shards, or by several whole chunks
where there are none, so nothing is ever read back or written twice.
"""

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

from fastbuffer._arguments import refused

DATA = "data"
EPISODE_ENDS = "meta/episode_ends"
#: Chunks without shards are written together up to about this size.
BYTES_PER_WRITE = 1 << 20

_MARKS = ("zarr.json", ".zgroup", ".zarray")


class Layout(NamedTuple):
    """How an array is stored: the shape and dtype of one frame, and frames per chunk and shard."""

    shape: tuple[int, ...]
    dtype: Any
    chunk: int
    shard: int | None
    is_compressed: bool = True


class WriteBehind:
    """Writes on a thread of its own, at most one write behind, so that the caller can go on."""

    def __init__(self) -> None:
        """Start with nothing to do."""
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None

    def write(self, array: Any, start: int, rows: NDArray[Any]) -> None:
        """Write rows, which nobody may change any more."""
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
        self._array = group.create_array(
            key,
            shape=(length, *inner),
            chunks=(layout.chunk, *inner),
            shards=None if layout.shard is None else (layout.shard, *inner),
            dtype=layout.dtype,
            compressors=[compressor()] if layout.is_compressed else None,
        )
        self._behind = behind
        self._rows = layout.shard or _rows_per_write(layout)
        self._block = np.empty((min(self._rows, length), *inner), layout.dtype)
        self._filled = 0
        self._written = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Write the next frames."""
        while len(rows):
            fitting = min(len(rows), len(self._block) - self._filled)
            self._block[self._filled : self._filled + fitting] = rows[:fitting]
            self._filled += fitting
            rows = rows[fitting:]
            if self._filled == len(self._block):
                self._write()

    def finish(self) -> None:
        """Write what is left."""
        if self._filled:
            self._write()

    def _write(self) -> None:
        self._behind.write(self._array, self._written, self._block[: self._filled])
        self._written += self._filled
        self._filled = 0
        self._block = np.empty_like(self._block)


def compressor() -> BloscCodec:
    """The codec of compressed arrays."""
    return BloscCodec(cname="lz4", clevel=5, shuffle="noshuffle")


@contextlib.contextmanager
def fast_codecs() -> Iterator[None]:
    """Arrays that are made or opened meanwhile use the faster codecs of zarrs, if installed."""
    if importlib.util.find_spec("zarrs") is None:
        yield
        return
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        yield


def write_episode_ends(root: zarr.Group, ends: NDArray[np.int64]) -> None:
    """Write how many frames there are up to the end of each episode."""
    array = root.create_array(
        EPISODE_ENDS,
        shape=ends.shape,
        chunks=(max(1, len(ends)),),
        dtype=np.int64,
        compressors=None,
    )
    array[...] = ends


def check_replaceable(target: Path, name: str) -> None:
    """Refuse to replace anything but a Zarr store.

    Raises:
        FileExistsError: Something else is there.
    """
    if not target.exists() or any((target / mark).is_file() for mark in _MARKS):
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    raise FileExistsError(refused(name, "nothing, or a Zarr store to replace", target))


def _write(array: Any, start: int, rows: NDArray[Any]) -> None:
    try:
        array[start : start + len(rows)] = rows
    except RuntimeError as error:  # which zarrs makes of what the system refuses
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        path = str(array.store_path).removeprefix("file://")
        raise OSError(int(number[1]), os.strerror(int(number[1])), path) from error


def _rows_per_write(layout: Layout) -> int:
    chunk_bytes = layout.chunk * int(np.prod(layout.shape)) * np.dtype(layout.dtype).itemsize
    return layout.chunk * max(1, int(BYTES_PER_WRITE // max(1, chunk_bytes)))
