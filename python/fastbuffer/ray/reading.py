"""Batches from several shards, joined in the order in which they were asked for."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer._tensors import Array
from fastbuffer.ray.calls import Shards

Positions = NDArray[np.int64]
#: Some rows of a batch.
Rows = NDArray[np.intp]


def split(shards_of: Positions) -> list[tuple[int, Rows]]:
    """For each shard that occurs, its number and where it occurs, in order."""
    order = np.argsort(shards_of, kind="stable")
    numbers, starts = np.unique(shards_of[order], return_index=True)
    rows = np.split(order, starts[1:])
    return [(int(number), part) for number, part in zip(numbers, rows, strict=False)]


def joined(
    size: int, dtype: Any, parts: list[tuple[Rows, Array]], shape: tuple[int, ...] = ()
) -> Array:
    """One array of the rows that the parts have, each copied once."""
    whole = np.empty((size, *shape), dtype)
    for rows, part in parts:
        whole[rows] = part
    return whole


class Reading:
    """A batch that the shards have been asked for."""

    def __init__(
        self,
        shards: Shards,
        positions: Positions,
        capacity: int,
        num_frames: Positions,
        steps: dict[str, Any],
    ) -> None:
        """Ask.

        Args:
            shards: The shards.
            positions: Positions in the whole buffer, of which each is one of a shard.
            capacity: The capacity of a shard.
            num_frames: How many frames each shard has to have.
            steps: The arguments `n_step` and `gamma` of `OnlineBuffer.get_batch`.
        """
        self._shards = shards
        self._size = len(positions)
        # A batch of nothing still has keys and dtypes, which any shard knows.
        shards_and_rows = split(positions // capacity) or [(0, np.empty(0, np.intp))]
        self._rows = [rows for _, rows in shards_and_rows]
        self._calls = [
            shards.start(k, "read", positions[rows] % capacity, int(num_frames[k]), steps)
            for k, rows in shards_and_rows
        ]

    def batch(self) -> dict[str, Array]:
        """The batch, in new memory.

        Raises:
            FewerFramesError: A shard has fewer frames than it has to.
            ShardUnavailableError: A shard does not answer.
            ValueError, TimestampToleranceError: As `OnlineBuffer.get_batch`.
        """
        batches = self._shards.results(self._calls)
        return {
            key: joined(
                self._size,
                first.dtype,
                [*zip(self._rows, (batch[key] for batch in batches), strict=True)],
                first.shape[1:],
            )
            for key, first in batches[0].items()
        }
