"""Samplers: in which order frames are drawn. They work as samplers of torch, and without it.

Iterating over a sampler is one epoch of positions; `batches` groups them. What is drawn follows
from the seed and the number of the epoch alone, on every platform.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import refused
from fastbuffer._core import AliasTable, draw_without_replacement
from fastbuffer._tensors import to_numpy, torch_is_installed

if TYPE_CHECKING:
    from torch.utils.data import Sampler

    _Base = Sampler[int]
elif torch_is_installed():
    from torch.utils.data import Sampler as _Base
else:
    _Base = object

Positions = NDArray[np.int64]
Weights: TypeAlias = "NDArray[np.float32] | NDArray[np.float64]"

_AT_ONCE = 4096
_LARGEST_SEED = 2**64 - 1


class EpochSampler(_Base):
    """Epochs of positions, of which each can be repeated, and gone on with from any place."""

    def __init__(self, seed: int) -> None:
        """Begin with epoch 0.

        Args:
            seed: What is drawn follows from it and the epoch.
        """
        name = "seed"
        self._seed = _arguments.integer(seed, name, at_least=0, at_most=_LARGEST_SEED)
        self._epoch = 0
        self._next_epoch = 0
        self._position = 0
        self._resumed = False

    @abstractmethod
    def _draw(self, epoch: int, start: int, stop: int) -> Positions:
        """The positions drawn from the `start`-th to the `stop`-th of an epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of positions in an epoch."""

    def __iter__(self) -> Iterator[int]:
        """The positions of the next epoch, one by one."""
        for positions in self._pieces(_AT_ONCE):
            for position in positions.tolist():
                self._position += 1
                yield position

    def batches(self, batch_size: int, *, drop_last: bool = False) -> "Batches":
        """The same positions in batches: what a DataLoader takes as its `batch_sampler`.

        Args:
            batch_size: Positions per batch.
            drop_last: Whether to leave out a last batch with fewer.

        Returns:
            An iterable of int64 arrays of shape `(batch_size,)`, with a length.
        """
        size = _arguments.integer(batch_size, "batch_size", at_least=1)
        return Batches(self, size, _arguments.boolean(drop_last, "drop_last"))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration draws; otherwise that is one more each time."""
        self._next_epoch = _arguments.integer(epoch, "epoch", at_least=0)
        self._resumed = False

    def state_dict(self) -> dict[str, int]:
        """Where the sampler is: the epoch, and how many of its positions were drawn."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a `state_dict`: the next iteration draws what is left of that epoch.

        Raises:
            ValueError: The state is none of a sampler, or lies beyond the epoch.
        """
        if not isinstance(state, dict) or set(state) != {"epoch", "position"}:
            got = _arguments.describe(state)
            raise ValueError(refused("state", "the keys epoch and position", got))
        epoch = _arguments.integer(state["epoch"], "state['epoch']", at_least=0)
        position = _arguments.integer(
            state["position"], "state['position']", at_least=0, at_most=len(self)
        )
        self._epoch, self._position, self._resumed = epoch, position, True

    def _pieces(self, size: int) -> Iterator[Positions]:
        """What is left of the epoch that begins or is gone on with."""
        if self._resumed:
            self._resumed = False
        else:
            self._epoch, self._position = self._next_epoch, 0
        self._next_epoch = self._epoch + 1
        epoch, start, total = self._epoch, self._position, len(self)
        while start < total:
            stop = min(start + size, total)
            yield self._draw(epoch, start, stop)
            start = stop


class Batches:
    """An epoch of a sampler in batches."""

    def __init__(self, sampler: EpochSampler, size: int, drop_last: bool) -> None:
        """See `EpochSampler.batches`."""
        self._sampler = sampler
        self._size = size
        self._drop_last = drop_last

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        total = len(self._sampler)
        return total // self._size if self._drop_last else -(-total // self._size)

    def __iter__(self) -> Iterator[Positions]:
        """The batches of the next epoch."""
        for positions in self._sampler._pieces(self._size):
            if self._drop_last and len(positions) < self._size:
                return
            self._sampler._position += len(positions)
            yield positions


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

    def _draw(self, epoch: int, start: int, stop: int) -> Positions:
        if self._weights is None:
            return self._table.draw(self._seed, epoch, start, stop - start)
        if self._drawn[0] != epoch:
            self._drawn = epoch, self._draw_whole(self._weights, epoch)
        part: Positions = self._drawn[1][start:stop].copy()
        return part

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
