"""Images of the agent in its world, drawn by OpenCV.

Within an episode only what is new is drawn: each image is a copy of the world with the trail so
far, to which one segment is added per frame. The agent, which looks the same everywhere, is drawn
once and stamped into all images.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer._optional import require
from fastbuffer.synthetic.tasks import Box, Positions, Task

Images = NDArray[np.uint8]
Pixel = list[int]

BACKGROUND = 240
OBSTACLE_COLOR = (80, 80, 80)
TRAIL_COLOR = (180, 180, 180)
AGENT_COLOR = (66, 133, 244)
MODE_COLORS = ((0, 0, 255), (255, 0, 0))


class Renderer:
    """Draws the episodes of a task."""

    def __init__(self, task: Task, image_size: int) -> None:
        """Draw the world, which is the same in all images.

        Raises:
            ImportError: OpenCV is not installed.
        """
        self._cv2: Any = require("cv2", extra="synthetic", purpose="drawing images")
        self._size = image_size
        self._disc = self._disc_offsets()
        self._square = max(4, int(0.094 * image_size))
        self._shows_mode = task.shows_mode
        self._world = np.full((image_size, image_size, 3), BACKGROUND, np.uint8)
        for box in task.obstacles:
            self._fill(self._world, box)

    def draw(self, positions: Positions, mode: int, images: Images) -> None:
        """Draw one episode.

        Args:
            positions: Where the agent is, of shape (T, 2).
            mode: The episode's mode.
            images: Where its images go, of shape (T, S, S, 3).
        """
        pixels = self._pixels(positions)
        world, line = self._world.copy(), self._cv2.line
        images[0] = world
        for t in range(1, len(images)):
            line(world, pixels[t - 1], pixels[t], TRAIL_COLOR)
            images[t] = world
        self._stamp_agent(images, np.array(pixels))
        if self._shows_mode:
            square = slice(2, 2 + self._square + 1)
            images[:, square, square] = MODE_COLORS[mode]

    def _stamp_agent(self, images: Images, pixels: NDArray[np.int64]) -> None:
        """Put the disc into all images at once, as far as it lies inside."""
        columns, rows = (pixels[:, axis, None] + self._disc[axis] for axis in (0, 1))
        frames = np.broadcast_to(np.arange(len(images))[:, None], rows.shape)
        both = np.stack([rows, columns])
        if both.min() < 0 or both.max() >= self._size:
            inside = ((both >= 0) & (both < self._size)).all(axis=0)
            frames, rows, columns = frames[inside], rows[inside], columns[inside]
        images[frames, rows, columns] = AGENT_COLOR

    def _disc_offsets(self) -> NDArray[np.int64]:
        """The columns and rows of the agent's pixels from its own, as OpenCV draws them."""
        radius = max(2, int(0.047 * self._size))
        blank = np.zeros((2 * radius + 1,) * 2, np.uint8)
        self._cv2.circle(blank, (radius, radius), radius, 1, self._cv2.FILLED)
        rows, columns = np.nonzero(blank)
        return np.stack([columns, rows]) - radius

    def _fill(self, image: Images, box: Box) -> None:
        corners = np.array([(box.x0, box.y1), (box.x1, box.y0)])
        self._cv2.rectangle(image, *self._pixels(corners), OBSTACLE_COLOR, self._cv2.FILLED)

    def _pixels(self, positions: NDArray[np.floating[Any]]) -> list[Pixel]:
        """Column and row of each position."""
        last = self._size - 1
        scaled = np.stack([positions[:, 0], 1 - positions[:, 1]], axis=1) * last
        pixels: list[Pixel] = np.clip(scaled, 0, last).astype(int).tolist()
        return pixels
