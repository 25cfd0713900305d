"""Images of the agent in its world, drawn by OpenCV.

Within an episode only what is new is drawn: each image is a copy of the world with the trail so
far, to which one segment is added per frame, and the agent on top.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer._optional import require
from fastbuffer.synthetic.tasks import Box, Positions, Task

Images = NDArray[np.uint8]
Pixel = tuple[int, int]

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
        self._radius = max(2, int(0.047 * image_size))
        self._square = max(4, int(0.094 * image_size))
        self._shows_mode = task.shows_mode
        self._world = np.full((image_size, image_size, 3), BACKGROUND, np.uint8)
        for box in task.obstacles:
            self._fill(self._world, box)

    def draw(self, positions: Positions, mode: int) -> Images:
        """Draw one episode.

        Args:
            positions: Where the agent is, of shape (T, 2).
            mode: The episode's mode.

        Returns:
            The images, of shape (T, S, S, 3).
        """
        images = np.empty((len(positions), *self._world.shape), np.uint8)
        cv2 = self._cv2
        pixels = self._pixels(positions)
        world = self._world.copy()
        if self._shows_mode:
            corner = (2 + self._square,) * 2
        for t, image in enumerate(images):
            if t > 0:
                cv2.line(world, pixels[t - 1], pixels[t], TRAIL_COLOR)
            image[...] = world
            cv2.circle(image, pixels[t], self._radius, AGENT_COLOR, cv2.FILLED)
            if self._shows_mode:
                cv2.rectangle(image, (2, 2), corner, MODE_COLORS[mode], cv2.FILLED)
        return images

    def _fill(self, image: Images, box: Box) -> None:
        corners = np.array([(box.x0, box.y1), (box.x1, box.y0)])
        self._cv2.rectangle(image, *self._pixels(corners), OBSTACLE_COLOR, self._cv2.FILLED)

    def _pixels(self, positions: NDArray[np.floating[Any]]) -> list[Pixel]:
        """Column and row of each position."""
        last = self._size - 1
        scaled = np.stack([positions[:, 0], 1 - positions[:, 1]], axis=1) * last
        return [tuple(pixel) for pixel in np.clip(scaled, 0, last).astype(int).tolist()]
