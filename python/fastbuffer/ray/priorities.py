"""Priorities of frames in many shards, with the methods of one buffer's."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer._arguments import refused
from fastbuffer._drawing import draw
from fastbuffer.ray.calls import Shards
from fastbuffer.ray.reading import Positions, Rows, joined, split

_SEEDS = 2**64
#: The shards' seeds are this far apart: the golden ratio, as in splitmix64.
_STEP = 0x9E3779B97F4A7C15


class ShardedPriorities:
    """Draws first a shard, in proportion to the sum of its frames' powers, then a frame of it.

    The sums are asked for at each draw, as other clients change them too.
    """

    def __init__(self, shards: Shards, capacity: int, alpha: float) -> None:
        """Know the shards.

        Args:
            shards: The shards.
            capacity: The capacity of one.
            alpha: The exponent of priorities.
        """
        self._shards = shards
        self._capacity = capacity
        self._alpha = alpha
        #: What new frames of all shards get, at least.
        self._largest = 1.0

    def draw(self, seed: int, epoch: int, start: int, count: int) -> Positions:
        """The draws `start..start + count` of an epoch, which depend on how they are grouped."""
        rows, answers, _ = self._drawn("draw", seed, (epoch, start), count, ())
        return self._joined(count, rows, answers)

    def sample(
        self, seed: int, number: int, count: int, beta: float
    ) -> tuple[Positions, NDArray[np.float32]]:
        """`count` draws of their own for each `number`, with importance weights."""
        rows, answers, least = self._drawn("sample", seed, (number,), count, (beta,))
        least = min([least, *(own for _, _, own in answers)])
        # The weight of a frame compares it with the least of its shard; here with the least of all.
        weights = [weights * (own / least) ** -beta for _, weights, own in answers]
        positions = self._joined(count, rows, [positions for positions, _, _ in answers])
        return positions, joined(count, np.float32, [*zip(rows.values(), weights, strict=True)])

    def update(self, indices: Positions, priorities: NDArray[np.float64]) -> None:
        """Give frames new priorities: all of them or, if one cannot be, none.

        Raises:
            ValueError: A priority is negative, infinite or NaN.
        """
        wrong = np.flatnonzero(~(np.isfinite(priorities) & (priorities >= 0)))
        if len(wrong):
            got = f"{priorities[wrong[0]]} at position {wrong[0]}"
            raise ValueError(refused("priorities", "finite numbers, none negative", got))
        if not len(priorities):
            return
        largest = float(priorities.max())
        if largest > self._largest:  # new frames get it wherever they go
            self._shards.all("raise_largest", self._alpha, largest)
            self._largest = largest
        calls = [
            self._shards.start(
                shard, "update", self._alpha, indices[rows] % self._capacity, priorities[rows]
            )
            for shard, rows in split(indices // self._capacity)
        ]
        self._shards.results(calls)

    def get(self, indices: Positions | None) -> NDArray[np.float64]:
        """The priorities of the frames at some positions, or of all in their order."""
        if indices is None:
            everything = self._shards.all("priorities", self._alpha, None)
            return np.concatenate(everything)
        rows = dict(split(indices // self._capacity))
        calls = [
            self._shards.start(shard, "priorities", self._alpha, indices[where] % self._capacity)
            for shard, where in rows.items()
        ]
        answers = self._shards.results(calls)
        return joined(len(indices), np.float64, [*zip(rows.values(), answers, strict=True)])

    def _drawn(
        self, method: str, seed: int, stream: tuple[int, ...], count: int, more: tuple[float, ...]
    ) -> tuple[dict[int, Rows], list[Any], float]:
        """Choose a shard for each draw, and let the shards draw.

        Args:
            method: The method of `Shard` that draws.
            seed: The sampler's seed.
            stream: What tells these draws from others of that seed.
            count: The number of draws.
            more: The last arguments of the method.

        Returns:
            Which of the draws each shard has, what those shards have drawn, and the least power
            above 0 of all shards.

        Raises:
            ValueError: There is nothing to draw.
        """
        while True:
            masses = self._shards.all("mass", self._alpha)
            sums = np.array([total for total, _ in masses])
            if count:
                self._check(sums)
            random = np.random.default_rng([seed, *stream])
            rows = dict(split(draw(len(sums), count, sums, random))) if count else {}
            calls = [
                self._shards.start(shard, method, self._alpha, own_seed, *stream, len(where), *more)
                for shard, where in rows.items()
                for own_seed in [(seed + shard * _STEP) % _SEEDS]
            ]
            answers = self._shards.results(calls)
            if all(answer is not None for answer in answers):
                return rows, answers, min(least for _, least in masses)
            # Another client has just set all priorities of a shard to 0.

    def _check(self, sums: NDArray[np.float64]) -> None:
        if sums.any():
            return
        if any(state.num_frames for state in self._shards.all("state")):
            expected = "one above 0 among those of live frames"
            raise ValueError(refused("priorities", expected, "only zeros"))
        raise ValueError(refused("buffer", "at least one live frame to draw", "none"))

    def _joined(self, count: int, rows: dict[int, Rows], positions: list[Positions]) -> Positions:
        """Positions in the whole buffer, of those within the shards."""
        parts = zip(rows.items(), positions, strict=True)
        whole = [(where, within + shard * self._capacity) for (shard, where), within in parts]
        return joined(count, np.int64, whole)
