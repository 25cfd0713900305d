"""Epochs of positions, and the base of all samplers, which draw one after the other."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import refused
from fastbuffer._tensors import torch_is_installed

if TYPE_CHECKING:
    from torch.utils.data import Sampler

    _Base = Sampler[int]
elif torch_is_installed():
    from torch.utils.data import Sampler as _Base
else:
    _Base = object

Positions = NDArray[np.int64]
#: The positions from the `start`-th to the `stop`-th of an epoch, without those that are gone.
Draw = Callable[[int, int], Positions]
#: What an epoch that is gone on with has to know of its beginning.
Beginning = dict[str, int]

_LARGEST_SEED = 2**64 - 1


@dataclass
class Epoch:
    """An epoch, and how far it is."""

    number: int
    draw: Draw
    #: Its `length`, and what else is to be known.
    beginning: Beginning
    #: How many positions may be drawn before they are asked for, if none of them can be gone then.
    ahead: int = 1
    position: int = 0

    def take(self, count: int) -> Positions:
        """The next positions; fewer than `count` at the end of the epoch."""
        drawn = self._draw(count)
        while len(drawn) < count and self.position < self.beginning["length"]:
            drawn = np.concatenate([drawn, self._draw(count - len(drawn))])
        return drawn

    def _draw(self, count: int) -> Positions:
        start = self.position
        self.position = min(start + count, self.beginning["length"])
        return self.draw(start, self.position)

    def one_by_one(self) -> Iterator[int]:
        """The rest of the epoch."""
        while len(drawn := self.take(self.ahead)):
            self.position -= len(drawn)
            for position in drawn.tolist():
                self.position += 1
                yield position

    def in_batches(self, size: int, drop_last: bool) -> Iterator[Positions]:
        """The rest of the epoch, `size` positions at a time."""
        while len(drawn := self.take(size)):
            if len(drawn) == size or not drop_last:
                yield drawn


class EpochSampler(_Base):
    """Epochs of positions, of which each can be repeated, and gone on with from any place."""

    #: The keys of a `Beginning`.
    _BEGINNING: tuple[str, ...] = ("length",)

    def __init__(self, seed: int) -> None:
        """Begin before epoch 0.

        Args:
            seed: What is drawn follows from it and the epoch.
        """
        name = "seed"
        self._seed = _arguments.integer(seed, name, at_least=0, at_most=_LARGEST_SEED)
        self._next_epoch = 0
        self._epoch: Epoch | None = None
        self._resumed = False

    @abstractmethod
    def _begin(self, number: int, beginning: Beginning | None) -> Epoch:
        """An epoch that begins now, or one that began as `beginning` says."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of positions in an epoch."""

    def __iter__(self) -> Iterator[int]:
        """The positions of the next epoch, one by one."""
        return self._begun().one_by_one()

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
        self._epoch = None

    def state_dict(self) -> dict[str, int]:
        """Where the sampler is: the epoch, how many of its positions were drawn, and how it began.

        In a DataLoader with workers, batches are drawn some time before they are seen.
        """
        if self._epoch is None:
            return {"epoch": self._next_epoch, "position": 0}
        epoch = self._epoch
        return {"epoch": epoch.number, "position": epoch.position, **epoch.beginning}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a `state_dict`: the next iteration draws what is left of that epoch.

        Raises:
            ValueError: The state is none of such a sampler, or lies beyond the epoch.
            TypeError: Part of it is no int.
        """
        if not isinstance(state, dict) or not {"epoch", "position"} <= set(state):
            got = _arguments.describe(state)
            raise ValueError(refused("state", "the keys epoch and position", got))
        numbers = {
            key: _arguments.integer(value, f"state[{key!r}]", at_least=0, at_most=2**64 - 1)
            for key, value in state.items()
        }
        number, position = numbers.pop("epoch"), numbers.pop("position")
        if not numbers:  # it had not begun
            _arguments.integer(position, "state['position']", at_least=0, at_most=0)
            self.set_epoch(number)
            return
        if numbers.keys() != set(self._BEGINNING):
            expected = f"the keys epoch and position with {', '.join(self._BEGINNING)}"
            raise ValueError(refused("state", expected, [*state]))
        epoch = self._begin(number, numbers)
        length = epoch.beginning["length"]
        name = "state['position']"
        epoch.position = _arguments.integer(position, name, at_least=0, at_most=length)
        self._epoch, self._resumed = epoch, True

    def _begun(self) -> Epoch:
        """The epoch to be drawn now: the next one, or what is left of a resumed one."""
        if self._epoch is None or not self._resumed:
            self._epoch = self._begin(self._next_epoch, None)
        self._resumed = False
        self._next_epoch = self._epoch.number + 1
        return self._epoch


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
        return self._sampler._begun().in_batches(self._size, self._drop_last)
