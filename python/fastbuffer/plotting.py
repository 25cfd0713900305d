"""A picture of what a buffer holds."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer._arguments import refused
from fastbuffer._core import Windows
from fastbuffer._optional import require
from fastbuffer._progress import progress
from fastbuffer._tensors import Array
from fastbuffer.inspection import slot_runs

if TYPE_CHECKING:
    from fastbuffer.online_buffer import OnlineBuffer

Positions = NDArray[np.int64]

#: Ranges are those of at most so many frames, at equal distances.
_MOST_FRAMES = 10_000
_FRAMES_AT_ONCE = 256
_FILM = 8
_SIZE_INCHES = (10, 9)


def plot(buffer: "OnlineBuffer", path: str | os.PathLike[str]) -> None:
    """Draw the slots by episode, the lengths of episodes, the range of each key, and some images.

    Ranges are of all live frames or, of more than 10,000, of as many at equal distances; those of
    complex numbers are of their absolute values. More than 200 episodes are drawn as one. Images
    are those of the first key with uint8 values of shape `(height, width, 3)`, `(3, height, width)`
    or `(height, width)`.

    Args:
        buffer: The buffer, with at least one live frame.
        path: Where the picture goes; the ending says in which format.

    Raises:
        ValueError: The buffer is empty, or no picture has that ending.
        ImportError: matplotlib is not installed.
        OSError: The picture cannot be written.
    """
    require("matplotlib", extra="synthetic", purpose="a picture of a buffer")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(buffer)
    if count == 0:
        raise ValueError(refused("buffer", "at least one live frame", "none"))
    frames = np.unique(np.linspace(0, count - 1, min(count, _MOST_FRAMES)).astype(np.int64))
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    slots, lengths, ranges, film = figure.subplots(4, 1, height_ratios=[1, 2, 3, 2])
    _draw_slots(slots, buffer)
    _draw_lengths(lengths, buffer)
    _draw_ranges(ranges, buffer, frames)
    _draw_film(film, buffer, frames)
    figure.suptitle(f"{buffer.write_dir}: {count:,} frames in {buffer.num_episodes:,} episodes")
    figure.savefig(Path(path), dpi=120)


def _draw_slots(axes: Any, buffer: "OnlineBuffer") -> None:
    for number, start, stop in slot_runs(buffer):
        axes.barh(0, stop - start, left=start, color=f"C{number % 10}")
    axes.set_xlim(0, buffer.buffer_capacity)
    axes.set_yticks([])
    axes.set_xlabel("slots, coloured by episode")


def _draw_lengths(axes: Any, buffer: "OnlineBuffer") -> None:
    _, _, lengths = buffer._core.live_episodes()
    axes.hist(lengths, bins=min(30, len(lengths)))
    axes.set_xlabel("frames of an episode")
    axes.set_ylabel("episodes")


def _draw_ranges(axes: Any, buffer: "OnlineBuffer", frames: Positions) -> None:
    ranges = {key: _Range() for key in buffer.data_keys}
    with progress(len(frames), "reading", "frames") as bar:
        for start in range(0, len(frames), _FRAMES_AT_ONCE):
            batch = _single_frames(buffer, frames[start : start + _FRAMES_AT_ONCE])
            for key, values in batch.items():
                ranges[key].add(values)
            bar.update(len(values))
    rows = [[key, *found.as_text()] for key, found in ranges.items()]
    axes.axis("off")
    axes.set_title(f"ranges, in {len(frames):,} frames")
    axes.table(rows, colLabels=["key", "least", "mean", "most"], loc="center")


class _Range:
    """The least, the mean and the largest of numbers that come bit by bit."""

    def __init__(self) -> None:
        self._least, self._most, self._sum, self._count = np.inf, -np.inf, 0.0, 0

    def add(self, values: Array) -> None:
        numbers = np.abs(values) if values.dtype.kind == "c" else values
        self._least = min(self._least, float(numbers.min()))
        self._most = max(self._most, float(numbers.max()))
        self._sum += float(numbers.sum(dtype=np.float64))
        self._count += numbers.size

    def as_text(self) -> list[str]:
        return [f"{number:.4g}" for number in (self._least, self._sum / self._count, self._most)]


def _single_frames(buffer: "OnlineBuffer", frames: Positions) -> dict[str, Array]:
    """Frames without their windows."""
    return buffer._core.gather(frames, Windows(buffer._core, [], 0.0), 1)


def _draw_film(axes: Any, buffer: "OnlineBuffer", frames: Positions) -> None:
    axes.axis("off")
    shapes = {key: (dtype, tuple(shape)) for key, dtype, shape in buffer._core.columns}
    images = [
        key for key, (dtype, shape) in shapes.items() if dtype == "uint8" and _is_image(shape)
    ]
    if not images:
        return
    chosen = frames[np.linspace(0, len(frames) - 1, min(_FILM, len(frames))).astype(int)]
    strip = _single_frames(buffer, chosen)[images[0]]
    if strip.ndim == 4 and strip.shape[1] == 3 != strip.shape[3]:
        strip = strip.transpose(0, 2, 3, 1)
    axes.imshow(np.concatenate(list(strip), axis=1), cmap="gray", vmin=0, vmax=255)
    axes.set_title(images[0])


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or (len(shape) == 3 and 3 in (shape[0], shape[2]))
