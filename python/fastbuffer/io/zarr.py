"""Between buffers and Zarr stores with `data/*` and `meta/episode_ends`.

This is the layout that Diffusion-Policy-style trainers read: every array of `data` has the frames
of all episodes one after the other, and `meta/episode_ends` says how many frames there are up to
the end of each. Both directions stream: chunks are read and written once, in order, as whole ones.
"""

import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import DataSpec, DeltaTimestamps, describe, refused
from fastbuffer._chunks import NUMERIC_CHUNK
from fastbuffer._progress import progress
from fastbuffer._staging import check_replaceable, replace_store, staging
from fastbuffer._tensors import Output
from fastbuffer._zarr import (
    DATA,
    EPISODE_ENDS,
    ArrayReader,
    Layout,
    checked_shard,
    new_store,
    with_fast_codecs,
)
from fastbuffer.io.building import Buffer, build, checked_target
from fastbuffer.io.snapshot import Array, Snapshot
from fastbuffer.online_buffer import OnlineBuffer

#: Frames are handed on in pieces of about this size; an episode is never split on its way in.
BYTES_AT_ONCE = 32 << 20

#: What a store may have of its own, and what follows from the ends of episodes.
_GIVEN = (OnlineBuffer.TIMESTAMP_KEY, OnlineBuffer.FRAME_INDEX_KEY)
_COUNTED = (OnlineBuffer.INDEX_KEY, OnlineBuffer.EPISODE_INDEX_KEY)


# Zarr -> buffer


def buffer_from_zarr(
    cls: type[Buffer],
    zarr_path: str | os.PathLike[str],
    write_dir: str | os.PathLike[str],
    *,
    fps: float | None,
    keys: Sequence[str] | None,
    buffer_capacity: int | None,
    delta_timestamps: DeltaTimestamps | None,
    output: Output | None,
) -> Buffer:
    """See `OnlineBuffer.from_zarr`."""
    target = checked_target(write_dir, "write_dir")
    with _opened(Path(_arguments.path(zarr_path, "zarr_path"))) as root:
        arrays, ends = _arrays(root), _episode_ends(root)
        chosen = _chosen(arrays, keys)
        total = int(ends[-1]) if len(ends) else 0
        own = {key: arrays[key] for key in _GIVEN if key in arrays}
        for key, array in (chosen | own).items():
            _check_array(key, array, total, is_scalar=key in own)
        if fps is None and OnlineBuffer.TIMESTAMP_KEY not in own:
            raise ValueError(refused("fps", "a rate, as the store has no timestamps", None))
        spec: DataSpec = {
            key: {"shape": array.shape[1:], "dtype": array.dtype.newbyteorder("=")}
            for key, array in chosen.items()
        }
        capacity = max(1, total) if buffer_capacity is None else buffer_capacity

        def insert(buffer: OnlineBuffer) -> None:
            _insert(buffer, chosen | own, ends, fps)

        return build(cls, target, spec, capacity, fps, delta_timestamps, output, insert)


@contextmanager
def _opened(path: Path) -> Iterator[zarr.Group]:
    """The root of a store, a directory or a zip file.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is no Zarr group.
    """
    if not path.exists():
        raise FileNotFoundError(refused("zarr_path", "a Zarr store", f"nothing at {path}"))
    is_zip = path.is_file() and zipfile.is_zipfile(path)
    store = zarr.storage.ZipStore(path, mode="r") if is_zip else zarr.storage.LocalStore(path)
    try:
        try:
            root = zarr.open_group(store, mode="r")
        except (OSError, KeyError, ValueError) as error:
            got = f"{path}, which is none ({error})"
            raise ValueError(refused("zarr_path", "a Zarr group", got)) from error
        yield root
    finally:
        store.close()


def _arrays(root: zarr.Group) -> dict[str, Any]:
    """The arrays of `data`, by their paths below it."""
    data = root.get(DATA)
    if not isinstance(data, zarr.Group):
        raise ValueError(refused("zarr_path", f"a store with a group {DATA!r}", root.store_path))
    members = data.members(max_depth=None)
    return {key: array for key, array in members if isinstance(array, zarr.Array)}


def _episode_ends(root: zarr.Group) -> NDArray[np.int64]:
    array = root.get(EPISODE_ENDS)
    if not isinstance(array, zarr.Array):
        expected = f"a store with an array {EPISODE_ENDS!r}"
        raise ValueError(refused("zarr_path", expected, root.store_path))
    ends = np.asarray(array[...])
    if ends.ndim != 1 or ends.dtype.kind not in "iu":
        expected = "one whole number per episode"
        raise ValueError(refused(EPISODE_ENDS, expected, f"{ends.dtype} of shape {ends.shape}"))
    lengths = np.diff(ends.astype(np.int64), prepend=0)
    if (lengths < 1).any():
        episode = int(np.argmax(lengths < 1))
        got = f"{ends[episode]} for episode {episode}"
        raise ValueError(refused(EPISODE_ENDS, "numbers that grow from above 0 on", got))
    return ends.astype(np.int64)


def _chosen(arrays: dict[str, Any], keys: Sequence[str] | None) -> dict[str, Any]:
    """The arrays to import, without those that the buffer has by itself."""
    others = {key: array for key, array in arrays.items() if key not in _GIVEN + _COUNTED}
    if keys is None:
        return others
    if isinstance(keys, str) or not isinstance(keys, Sequence | set | frozenset):
        raise TypeError(refused("keys", "a list of str", describe(keys)))
    for key in keys:
        if not isinstance(key, str) or key not in arrays:
            raise ValueError(refused("keys", f"some of {sorted(others)}", describe(key)))
    return {key: others[key] for key in keys if key in others}


def _check_array(key: str, array: Any, total: int, *, is_scalar: bool) -> None:
    name = f"{DATA}/{key}"
    if array.ndim < 1 or array.shape[0] < total:
        expected = f"at least the {total} frames of {EPISODE_ENDS}"
        raise ValueError(refused(name, expected, f"shape {array.shape}"))
    if is_scalar and array.shape[1:] not in ((), (1,)):
        raise ValueError(refused(name, "one value per frame", f"shape {array.shape}"))
    if array.dtype.kind not in "biufc":
        expected = "numbers or bools; leave it out with keys="
        raise ValueError(refused(name, expected, array.dtype))


def _insert(
    buffer: OnlineBuffer, arrays: dict[str, Any], ends: NDArray[np.int64], fps: float | None
) -> None:
    readers = {key: ArrayReader(with_fast_codecs(array)) for key, array in arrays.items()}
    starts = np.concatenate([[0], ends[:-1]])
    row_bytes = sum(reader.row_bytes for reader in readers.values())
    with progress(len(ends), "importing", " episodes") as bar:
        for first, last in _groups(ends, max(1, BYTES_AT_ONCE // max(1, row_bytes))):
            lengths = ends[first:last] - starts[first:last]
            start, stop = int(starts[first]), int(ends[last - 1])
            data = {key: reader.rows(start, stop) for key, reader in readers.items()}
            buffer.add_data(_completed(data, lengths, fps))
            bar.update(last - first)


def _groups(ends: NDArray[np.int64], frames: int) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive episodes with about so many frames."""
    first = 0
    while first < len(ends):
        start = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, start + frames, side="right")))
        yield first, last
        first = last


def _completed(
    data: dict[str, Array], lengths: NDArray[np.int64], fps: float | None
) -> dict[str, Array]:
    """The data of whole episodes with the columns that every buffer has."""
    total = int(lengths.sum())
    counted = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    own = {key: data[key].reshape(total) for key in _GIVEN if key in data}
    own.setdefault(OnlineBuffer.FRAME_INDEX_KEY, counted)
    if OnlineBuffer.TIMESTAMP_KEY not in own and fps is not None:
        own[OnlineBuffer.TIMESTAMP_KEY] = counted / fps
    own[OnlineBuffer.INDEX_KEY] = np.arange(total)
    own[OnlineBuffer.EPISODE_INDEX_KEY] = np.repeat(np.arange(len(lengths)), lengths)
    return data | own


# Buffer -> Zarr


def buffer_to_zarr(
    buffer: OnlineBuffer,
    path: str | os.PathLike[str],
    *,
    image_frames_per_shard: int | None,
    image_chunk: int,
    partial: str,
) -> None:
    """See `OnlineBuffer.to_zarr`."""
    chunk = _arguments.integer(image_chunk, "image_chunk", at_least=1)
    shard = checked_shard(image_frames_per_shard, chunk)
    keeps_partial = _arguments.choice(partial, "partial", "keep", "drop") == "keep"
    target = Path(os.path.realpath(_arguments.path(path, "path")))
    check_replaceable(target, "path")
    snapshot = Snapshot(buffer)
    layouts = _layouts(snapshot, chunk, shard)
    for key in layouts:
        _check_name(key, set(layouts))
    dropped = 0 if keeps_partial else snapshot.partial_frames()
    lengths = snapshot.lengths[1:] if dropped else snapshot.lengths
    with staging(target) as directory:
        store = directory / "store"
        with (
            new_store(store, layouts, np.cumsum(lengths)) as writers,
            progress(snapshot.num_frames - dropped, "exporting", " frames") as bar,
        ):
            for batch in snapshot.batches(dropped, BYTES_AT_ONCE):
                for key, writer in writers.items():
                    writer.append(batch[key])
                bar.update(len(batch[OnlineBuffer.TIMESTAMP_KEY]))
        replace_store(store, target)


def _layouts(snapshot: Snapshot, image_chunk: int, image_shard: int | None) -> dict[str, Layout]:
    """How each array is stored: what has rows and columns of its own is an image."""
    return {
        key: Layout(shape, dtype, image_chunk, image_shard)
        if len(shape) >= 2
        else Layout(shape, dtype, NUMERIC_CHUNK, None)
        for key, (dtype, shape) in snapshot.columns.items()
        if key not in _COUNTED
    }


def _check_name(key: str, keys: set[str]) -> None:
    """Refuse keys that name no array of a store, or one within another.

    Raises:
        ValueError: The key is such a one.
    """
    parts = key.split("/")
    is_reserved = any(part in ("", ".", "..", "zarr.json") or part[:2] == "__" for part in parts)
    above = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    if is_reserved or "\\" in key or above & keys:
        expected = "keys that can name the arrays of a Zarr store side by side"
        raise ValueError(refused("data_keys", expected, repr(key)))
