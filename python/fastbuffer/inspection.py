"""What a buffer is and holds: as facts, and as a page of a notebook."""

import html
import math
import re
import sys
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fastbuffer.online_buffer import OnlineBuffer

_LOCK_FILE = "_lock"
_PICTURE_WIDTH = 480
_COLOURS = ("#4878a8", "#8fb4d8")
#: More episodes than that are drawn as one.
_MOST_DRAWN = 200


def facts(buffer: "OnlineBuffer") -> dict[str, Any]:
    """What a buffer is and holds, of JSON's types.

    Args:
        buffer: The buffer.

    Returns:
        `write_dir`; `capacity` and `frames`, in frames; `episodes`; `fps`; `bytes`, those of all
        slots; `bytes_per_second` of recording and `seconds` that the capacity lasts, at that `fps`;
        `schema`, for each key its `dtype`, `shape` and `bytes` per frame; and `writer`, the id of
        the process that may insert now. Without `fps` it and the two that follow from it are None;
        `writer` is None if there is none or the system does not tell.
    """
    schema = {key: _column(dtype, shape) for key, dtype, shape in buffer._core.columns}
    row_bytes: int = sum(entry["bytes"] for entry in schema.values())
    capacity, fps = buffer.buffer_capacity, buffer.fps
    return {
        "write_dir": str(buffer.write_dir),
        "capacity": capacity,
        "frames": buffer.num_frames,
        "episodes": buffer.num_episodes,
        "fps": fps,
        "bytes": capacity * row_bytes,
        "bytes_per_second": None if fps is None else row_bytes * fps,
        "seconds": None if fps is None else capacity / fps,
        "schema": schema,
        "writer": writer_of(buffer.write_dir),
    }


def _column(dtype: str, shape: list[int]) -> dict[str, Any]:
    size = np.dtype(dtype).itemsize * math.prod(shape)
    return {"dtype": dtype, "shape": list(shape), "bytes": size}


def writer_of(write_dir: Path) -> int | None:
    """The id of the process that holds a directory's writer lock, where Linux tells."""
    locks, lock = Path("/proc/locks"), write_dir / _LOCK_FILE
    if sys.platform != "linux" or not lock.exists() or not locks.exists():
        return None
    held = rf"FLOCK +ADVISORY +WRITE +(\d+) +\w+:\w+:{lock.stat().st_ino} "
    found = re.search(held, locks.read_text())
    return None if found is None else int(found[1])


def as_html(buffer: "OnlineBuffer") -> str:
    """A table of the keys, with what is in the buffer and a picture of its slots."""
    known = facts(buffer)
    rows = "".join(
        f"<tr><td>{html.escape(key)}</td><td>{entry['dtype']}</td>"
        f"<td>{tuple(entry['shape'])}</td><td>{entry['bytes']:,}</td></tr>"
        for key, entry in known["schema"].items()
    )
    return (
        f"<div><b>{type(buffer).__name__}</b> {html.escape(known['write_dir'])}<br>"
        f"{known['frames']:,} of {known['capacity']:,} frames in {known['episodes']:,} episodes, "
        f"fps {known['fps']}, {known['bytes']:,} bytes{_picture(buffer)}"
        "<table><tr><th>key</th><th>dtype</th><th>shape</th><th>bytes</th></tr>"
        f"{rows}</table></div>"
    )


def _picture(buffer: "OnlineBuffer") -> str:
    """The slots from left to right, with the live frames, episode by episode."""
    capacity = buffer.buffer_capacity
    bars = "".join(
        f'<rect x="{start * _PICTURE_WIDTH / capacity:.2f}" y="0" height="16" '
        f'width="{(stop - start) * _PICTURE_WIDTH / capacity:.2f}" fill="{_COLOURS[number % 2]}"/>'
        for number, start, stop in slot_runs(buffer)
    )
    return (
        f'<br><svg width="{_PICTURE_WIDTH}" height="16">'
        f'<rect width="{_PICTURE_WIDTH}" height="16" fill="#eeeeee"/>{bars}</svg>'
    )


def slot_runs(buffer: "OnlineBuffer") -> list[tuple[int, int, int]]:
    """Which slots the n-th episode is in: its number, the first slot and the one after the last."""
    capacity = buffer.buffer_capacity
    first, _, lengths = buffer._core.live_episodes()
    sizes = [int(length) for length in lengths]
    if len(sizes) > _MOST_DRAWN:
        sizes = [sum(sizes)]
    runs = []
    ends = accumulate(sizes)
    for number, (end, length) in enumerate(zip(ends, sizes, strict=True)):
        start = (first + end - length) % capacity
        until_end = min(length, capacity - start)
        runs.append((number, start, start + until_end))
        if until_end < length:
            runs.append((number, 0, length - until_end))
    return runs
