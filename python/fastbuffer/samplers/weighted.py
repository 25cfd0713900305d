"""Drawing by any weights."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import refused
from fastbuffer._core import AliasTable, draw_without_replacement
from fastbuffer._tensors import to_numpy
from fastbuffer.samplers.epochs import Beginning, Epoch, EpochSampler, Positions

Weights: TypeAlias = "NDArray[np.float32] | NDArray[np.float64]"

#: How many positions are drawn at once where they are asked for one by one.
_AHEAD = 4096


class WeightedSampler(EpochSampler):
    """Draws positions by weight, as often as asked for, from any number of them.

    With replacement each draw takes the same short time, by a table that is built once (A. J.
    Walker, 1977, "An efficient method for generating discrete random variables with general
    distributions"). Without, one pass over the weights draws an epoch (P. Efraimidis and P.
    Spirakis, 2006, "Weighted random sampling with a reservoir").
    """

    def __init__(
        self, weights: Any, num_samples: int, replacement: bool = True, seed: int = 0
    ) -> None:
        """Build the table.

        Args:
            weights: How often to draw each position, relative to the others: a sequence, array or
                tensor of numbers, of which none is negative and not all are 0.
            num_samples: The number of positions in an epoch.
            replacement: Whether a position may be drawn again within an epoch.
            seed: See `EpochSampler`.

        Raises:
            ValueError: The weights cannot be drawn by, or without replacement there are fewer
                weights above 0 than samples.
            TypeError: An argument has the wrong type.
        """
        super().__init__(seed)
        numbers = _weights(weights)
        self._num_samples = _arguments.integer(num_samples, "num_samples", at_least=0)
        if _arguments.boolean(replacement, "replacement"):
            self._table = AliasTable(numbers)
            self._weights: Weights | None = None
        else:
            self._weights = numbers.copy()  # which the caller may change
            self._drawn = 0, self._draw_whole(self._weights, 0)

    def __len__(self) -> int:
        """The number of positions in an epoch."""
        return self._num_samples

    def _begin(self, number: int, beginning: Beginning | None) -> Epoch:
        def draw(start: int, stop: int) -> Positions:
            if self._weights is None:
                return self._table.draw(self._seed, number, start, stop - start)
            if self._drawn[0] != number:
                self._drawn = number, self._draw_whole(self._weights, number)
            part: Positions = self._drawn[1][start:stop].copy()
            return part

        return Epoch(number, draw, {"length": self._num_samples}, ahead=_AHEAD)

    def _draw_whole(self, weights: Weights, epoch: int) -> Positions:
        """An epoch without replacement."""
        return draw_without_replacement(weights, self._num_samples, self._seed, epoch)


def _weights(values: Any) -> Weights:
    """The weights as a contiguous array of floats, copied only if they are none."""
    array = to_numpy(values, "weights")
    if array.ndim != 1 or not np.can_cast(array.dtype, np.float64, "same_kind"):
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(refused("weights", "a list of numbers", got))
    dtype = np.float32 if array.dtype == np.float32 else np.float64
    numbers: Weights = np.ascontiguousarray(array, dtype)
    return numbers
