"""A picture of all trajectories of a dataset, drawn as they come: none of them is kept."""

from pathlib import Path
from typing import Any, cast

import numpy as np

from fastbuffer._optional import require
from fastbuffer.synthetic.tasks import Box, Positions, Task

MOST_IN_LEGEND = 16
LINES_AT_ONCE = 256
MARGIN = 0.03


class TrajectoryPicture:
    """Trajectories over the layout of their task, coloured by mode."""

    def __init__(self, task: Task, num_episodes: int) -> None:
        """Draw the layout.

        Raises:
            ImportError: matplotlib is not installed.
        """
        for module in ("matplotlib", "matplotlib.backends.backend_agg", "matplotlib.collections"):
            require(module, extra="synthetic", purpose="the picture of trajectories")
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._colors = mode_colors(task.num_modes)
        self._alpha = float(np.clip(60 / num_episodes, 0.08, 0.8))
        figure = Figure(figsize=(8.5, 7), dpi=120)
        self._canvas = cast(Any, FigureCanvasAgg(figure))
        self._axes = figure.add_axes((0.08, 0.08, 0.7, 0.84))
        draw_layout(self._axes, task)
        self._axes.set_title(f"{task.name}: {num_episodes} episodes, {task.num_modes} modes")
        self._legend = self._add_key(figure, task)
        self._canvas.draw()
        self._waiting: list[tuple[int, Positions]] = []

    def add(self, mode: int, positions: Positions) -> None:
        """Draw one episode."""
        self._waiting.append((mode, positions))
        if len(self._waiting) == LINES_AT_ONCE:
            self._draw_waiting()

    def save(self, path: Path) -> None:
        """Write the picture as PNG."""
        from matplotlib.image import imsave

        self._draw_waiting()
        if self._legend is not None:
            self._axes.draw_artist(self._legend)
        imsave(path, np.asarray(self._canvas.buffer_rgba()), format="png")

    def _draw_waiting(self) -> None:
        from matplotlib.collections import LineCollection

        lines = LineCollection(
            [positions for _, positions in self._waiting],
            colors=[self._colors[mode] for mode, _ in self._waiting],
            alpha=self._alpha,
            linewidths=0.9,
        )
        self._axes.add_collection(lines, autolim=False)
        self._axes.draw_artist(lines)
        lines.remove()
        self._waiting = []

    def _add_key(self, figure: Any, task: Task) -> Any:
        """Say which colour is which mode; a legend is drawn at the end, over the trajectories."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import BoundaryNorm, ListedColormap
        from matplotlib.lines import Line2D

        if task.num_modes > MOST_IN_LEGEND:
            norm = BoundaryNorm(np.arange(task.num_modes + 1) - 0.5, task.num_modes)
            mapping = ScalarMappable(norm, ListedColormap(self._colors))
            bar_axes = figure.add_axes((0.83, 0.08, 0.03, 0.84))
            step = max(1, task.num_modes // 16)
            ticks = np.arange(0, task.num_modes, step)
            figure.colorbar(mapping, cax=bar_axes, ticks=ticks).set_label("mode")
            return None
        handles = [
            Line2D([], [], color=color, label=name)
            for color, name in zip(self._colors, task.mode_names, strict=True)
        ]
        legend = self._axes.legend(
            handles=handles, title="mode", loc="upper left", bbox_to_anchor=(1.02, 1)
        )
        legend.set_animated(True)
        return legend


def draw_layout(axes: Any, task: Task) -> None:
    """Draw the world of a task: the unit square and its obstacles, at equal scales."""
    axes.set_aspect("equal")
    axes.set_xlim(-MARGIN, 1 + MARGIN)
    axes.set_ylim(-MARGIN, 1 + MARGIN)
    axes.set_xlabel("x")
    axes.set_ylabel("y")
    for box in task.obstacles:
        axes.add_patch(_rectangle(box))


def mode_colors(num_modes: int) -> list[Any]:
    """A colour for each mode."""
    import matplotlib as mpl

    # But for the grey one, which obstacles have.
    distinct = [mpl.colormaps["tab10"](k) for k in range(10) if k != 7]
    if num_modes <= len(distinct):
        return distinct[:num_modes]
    return list(mpl.colormaps["turbo"](np.linspace(0.05, 0.95, num_modes)))


def _rectangle(box: Box) -> Any:
    from matplotlib.patches import Rectangle

    size = (box.x1 - box.x0, box.y1 - box.y0)
    return Rectangle((box.x0, box.y0), *size, facecolor="0.35", edgecolor="none")
