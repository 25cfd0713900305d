"""Draw the pictures of concepts.md, from real buffers: `python docs/drawings/draw.py`."""

import tempfile
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle, Wedge

from fastbuffer import OnlineBuffer

matplotlib.use("svg")
# So that the same pictures are the same bytes.
matplotlib.rcParams |= {"svg.hashsalt": "fastbuffer", "svg.fonttype": "none", "font.size": 11}
from matplotlib import pyplot  # noqa: E402 - after the backend is chosen

FPS = 10
CAPACITY = 16
LENGTHS = (6, 5, 4, 6)  # the last episode wraps around and overwrites most of the first one
COLOURS = {0: "tab:gray", 1: "tab:blue", 2: "tab:green", 3: "tab:orange"}


def episode(length: int) -> dict[str, np.ndarray]:
    """An episode whose one column numbers its frames."""
    frames = np.arange(length)
    return {
        "index": frames.copy(),
        "frame_index": frames,
        "episode_index": np.zeros(length, np.int64),
        "timestamp": frames / FPS,
        "action": frames,
    }


def ring(directory: Path) -> OnlineBuffer:
    """A buffer that has gone round once."""
    spec = {"action": {"shape": (), "dtype": np.int64}}
    buffer = OnlineBuffer(directory, spec, CAPACITY, FPS, output="numpy")
    for length in LENGTHS:
        buffer.add_data(episode(length))
    return buffer


def draw_ring(axes: Axes, buffer: OnlineBuffer) -> None:
    """The slots in a circle, each with its number, coloured by episode."""
    numbers, frames = buffer.get_data_by_key("index"), buffer.get_data_by_key("episode_index")
    step = 360 / buffer.buffer_capacity
    newest = int(numbers.argmax())
    for slot, (number, of) in enumerate(zip(numbers, frames, strict=True)):
        top = 90 - slot * step
        colour = COLOURS[int(of)]
        axes.add_patch(Wedge((0, 0), 1, top - step, top, width=0.35, facecolor=colour, ec="white"))
        middle = np.deg2rad(top - step / 2)
        place = np.array([np.cos(middle), np.sin(middle)])
        axes.text(*place * 0.825, str(number), color="white", ha="center", va="center")
        axes.text(*place * 0.57, str(slot), size=8, ha="center", va="center", color="dimgray")
    edge = np.deg2rad(90 - (newest + 1) * step)
    place = np.array([np.cos(edge), np.sin(edge)])
    axes.annotate(
        "the next frame goes here,\nover the oldest one",
        place * 1.02,
        (1.35, -0.5),
        arrowprops={"arrowstyle": "->"},
        ha="left",
        va="center",
    )
    for of, colour in COLOURS.items():
        count = int((frames == of).sum())
        text = f"episode {of}: {count} of {LENGTHS[of]} frames"
        axes.text(1.35, 0.8 - 0.18 * of, text, color=colour, va="center")
    axes.text(0, 0, "slots", size=8, ha="center", va="center", color="dimgray")
    axes.set(xlim=(-1.1, 2.9), ylim=(-1.1, 1.1), aspect="equal")
    axes.axis("off")


def draw_window(axes: Axes, buffer: OnlineBuffer) -> None:
    """An item near the end of its episode, and where each of its deltas points."""
    deltas = [-0.1, 0.0, 0.1, 0.2, 0.3]
    buffer.set_delta_timestamps({"action": deltas})
    frames = buffer.get_data_by_key("episode_index")
    times = buffer.get_data_by_key("timestamp")
    position = int(np.flatnonzero((frames == 2) & np.isclose(times, 0.2))[0])
    item = buffer[position]
    for frame in range(LENGTHS[2]):
        box = Rectangle((frame - 0.45, 0), 0.9, 0.5, facecolor=COLOURS[2])
        axes.add_patch(box)
        axes.text(frame, 0.25, f"{frame / FPS:.1f} s", color="white", ha="center", va="center")
    axes.text(-0.6, 0.25, "episode 2", color=COLOURS[2], ha="right", va="center")
    pads = item["action_is_pad"]
    for place, (delta, taken, pad) in enumerate(zip(deltas, item["action"], pads, strict=True)):
        x = int(item["action"][1]) - 1 + place
        colour = "tab:red" if pad else "black"
        y = -1.0
        axes.text(x, y, f"{delta:+.1f}", color=colour, ha="center", va="top")
        axes.annotate(
            "",
            (int(taken) + (0.12 * (x - taken) if pad else 0), -0.03),
            (x, y + 0.03),
            arrowprops={"arrowstyle": "->", "color": colour},
        )
        axes.text(x, y - 0.3, f"{bool(pad)}", color=colour, ha="center", va="top", size=9)
    axes.text(-0.6, -1.0, "delta (s)", ha="right", va="top")
    axes.text(-0.6, -1.3, "action_is_pad", ha="right", va="top", size=9)
    axes.annotate(
        "the item: buffer[i]",
        (int(item["action"][1]), 0.52),
        (int(item["action"][1]), 0.85),
        arrowprops={"arrowstyle": "->"},
        ha="center",
    )
    axes.set(xlim=(-2.4, 5.6), ylim=(-1.6, 1.1))
    axes.axis("off")


def main(directory: Path) -> None:
    """Write both pictures."""
    with tempfile.TemporaryDirectory() as place:
        buffer = ring(Path(place) / "buffer")
        for name, draw, size in [("ring", draw_ring, (7, 3.8)), ("window", draw_window, (7, 2.4))]:
            figure, axes = pyplot.subplots(figsize=size, layout="constrained")
            draw(axes, buffer)
            figure.savefig(directory / f"{name}.svg", metadata={"Date": None, "Creator": None})
            pyplot.close(figure)


if __name__ == "__main__":
    main(Path(__file__).parent)
