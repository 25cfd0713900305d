"""The tasks: what their world looks like, and the path of each mode through it.

Coordinates are (x, y) in the unit square, y up. The arithmetic is fixed to the bit, in float32
where it says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.float32]

CIRCLE_CENTERS = ((0.5, 0.3), (0.5, 0.7))
CIRCLE_RADIUS = 0.2
RADIAL_REACH = 0.4


class Box(NamedTuple):
    """An obstacle: an axis-aligned rectangle."""

    x0: float
    y0: float
    x1: float
    y1: float

    @classmethod
    def around(cls, center: tuple[float, float], half_width: float, half_height: float) -> "Box":
        """The box of that size around a centre."""
        x, y = center
        return cls(x - half_width, y - half_height, x + half_width, y + half_height)


@dataclass(frozen=True)
class Task:
    """One task for episodes of one length.

    Attributes:
        name: What it is called.
        paths: For each mode its path, float32 of shape (T, 2).
        mode_names: What each mode is called.
        obstacles: What stands in the world.
        avoids_obstacles: Whether an episode whose noise leads it into an obstacle is drawn again.
        shows_mode: Whether images and context tell the mode.
    """

    name: str
    paths: tuple[Positions, ...]
    mode_names: tuple[str, ...]
    obstacles: tuple[Box, ...]
    avoids_obstacles: bool = False
    shows_mode: bool = False

    @property
    def num_modes(self) -> int:
        """The number of modes."""
        return len(self.paths)

    def is_hit_by(self, positions: Positions) -> bool:
        """Whether any of the positions lies in an obstacle."""
        x, y = positions.T
        inside = ((b.x0 <= x) & (x <= b.x1) & (b.y0 <= y) & (y <= b.y1) for b in self.obstacles)
        return any(hits.any() for hits in inside)


class Parameters(NamedTuple):
    """What a task is made of."""

    num_modes: int
    num_styles: int
    length: int
    noise_std: float


def circle(parameters: Parameters) -> Task:
    """Two clockwise loops that meet in the middle: the lower and the upper one."""
    return Task(
        name="circle",
        paths=(_loop(0, parameters.length), _loop(1, parameters.length)),
        mode_names=("lower", "upper"),
        obstacles=tuple(Box.around(center, 0.08, 0.05) for center in CIRCLE_CENTERS),
    )


def conditional_circle(parameters: Parameters) -> Task:
    """As circle, with the loop to take told by the context and by a coloured square."""
    base = circle(parameters)
    return Task(
        name="conditional_circle",
        paths=base.paths,
        mode_names=base.mode_names,
        obstacles=base.obstacles,
        shows_mode=True,
    )


def sequential_decision(parameters: Parameters) -> Task:
    """A way up that passes two obstacles, each on the left or on the right."""
    turns = [(first, second) for first in "LR" for second in "LR"]
    side = {"L": -1, "R": 1}

    def path(first: str, second: str) -> Positions:
        x = 0.5 + side[first] * 0.25
        end = x + side[second] * 0.15
        corners = [(0.5, 0), (0.5, 0.4), (x, 0.45), (x, 0.7), (end, 0.75), (end, 1)]
        return _along(corners, parameters.length)

    centers = [(0.5, 0.55), (0.25, 0.88), (0.75, 0.88)]
    return Task(
        name="sequential_decision",
        paths=tuple(path(*turn) for turn in turns),
        mode_names=tuple("".join(turn) for turn in turns),
        obstacles=tuple(Box.around(center, 0.06, 0.05) for center in centers),
    )


def radial(parameters: Parameters) -> Task:
    """From the middle outwards in one of several directions, with obstacles between them."""
    count = parameters.num_modes

    def point(direction: float, radius: float) -> tuple[float, float]:
        angle = 2 * np.pi * direction / count
        return float(0.5 + radius * np.cos(angle)), float(0.5 + radius * np.sin(angle))

    half_side = float((0.2 * np.sin(np.pi / count) - 3 * parameters.noise_std) / np.sqrt(2))
    centers = [point(k + 0.5, 0.2) for k in range(count)] if half_side > 0 else []
    ends = [point(k, RADIAL_REACH) for k in range(count)]
    return Task(
        name="radial",
        paths=tuple(_along([(0.5, 0.5), end], parameters.length) for end in ends),
        mode_names=tuple(f"{360 * k / count:.3g}°" for k in range(count)),
        obstacles=tuple(Box.around(center, half_side, half_side) for center in centers),
        avoids_obstacles=True,
    )


def corridor_navigation(parameters: Parameters) -> Task:
    """From left to right through one of the gaps in a wall, in one of several styles."""
    gaps, styles = parameters.num_modes, parameters.num_styles
    gap_height = 1 / (2 * (gaps + 1))
    heights = [(gap + 1) / (gaps + 1) for gap in range(gaps)]

    def path(height: float, style: int) -> Positions:
        corners = [(0.05, 0.5), (0.48, height), (0.52, height), (0.95, 0.5)]
        positions = _along(corners, parameters.length)
        if styles > 1:
            u = np.linspace(0, 1, parameters.length).astype(np.float32)
            amplitude = gap_height / (4 * styles)
            swing = amplitude * np.sin(2 * (style + 1) * np.pi * u) * 4 * u * (1 - u)
            positions[:, 1] += swing
        return positions

    walls = [
        Box(0.48, low + gap_height / 2, 0.52, high - gap_height / 2)
        for low, high in pairwise(heights)
    ]
    pairs = [(gap, style) for gap in range(gaps) for style in range(styles)]
    names = [f"gap {gap}" + f", style {style}" * (styles > 1) for gap, style in pairs]
    return Task(
        name="corridor_navigation",
        paths=tuple(path(heights[gap], style) for gap, style in pairs),
        mode_names=tuple(names),
        obstacles=tuple(walls),
        avoids_obstacles=True,
    )


TASKS: dict[str, Callable[[Parameters], Task]] = {
    make.__name__: make
    for make in (circle, conditional_circle, sequential_decision, radial, corridor_navigation)
}


def _loop(mode: int, length: int) -> Positions:
    """Once around a circle, from its point in the middle of the world."""
    angles = np.linspace(0, 2 * np.pi, length, endpoint=False).astype(np.float32)
    radii = CIRCLE_RADIUS * (1 if mode == 0 else -1)
    wide = angles.astype(np.float64)
    center = np.array(CIRCLE_CENTERS[mode], np.float32).astype(np.float64)
    loop = center + radii * np.stack([np.sin(wide), np.cos(wide)], axis=1)
    return loop.astype(np.float32)


def _along(corners: list[tuple[float, float]], length: int) -> Positions:
    """Points at equal distances along a line through corners."""
    points = np.array(corners, dtype=np.float32)
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    passed = np.concatenate([np.zeros(1), np.cumsum(steps)])  # summed in float32, used in float64
    at = np.linspace(0, passed[-1], length)
    line = np.stack([np.interp(at, passed, points[:, axis]) for axis in (0, 1)], axis=1)
    rounded: Positions = line.astype(np.float32)
    return rounded
