"""Drawing the frames of a buffer by priorities that training changes."""

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import refused
from fastbuffer._tensors import to_numpy
from fastbuffer.samplers.epochs import Beginning, Epoch, EpochSampler, Positions

if TYPE_CHECKING:
    from fastbuffer._batches import Batch, Value
    from fastbuffer._tensors import Array

_SAMPLED = "sampled"


class Priorities(Protocol):
    """The priorities of a buffer's frames, as the core has them."""

    def draw(self, seed: int, epoch: int, start: int, count: int) -> Positions:
        """The draws `start..start + count` of an epoch."""

    def sample(
        self, seed: int, number: int, count: int, beta: float
    ) -> tuple[Positions, NDArray[np.float32]]:
        """`count` draws of their own for each `number`, with importance weights."""

    def update(self, indices: Positions, priorities: NDArray[np.float64]) -> None:
        """Give frames new priorities."""

    def get(self, indices: Positions | None) -> NDArray[np.float64]:
        """The priorities of some frames, or of all."""


class Prioritized(Protocol):
    """A buffer whose frames have priorities: an `OnlineBuffer`, or a sharded one."""

    def __len__(self) -> int:
        """The number of live frames."""

    def _open_priorities(self, alpha: float) -> Priorities: ...

    def _positions(self, index: object) -> Positions: ...

    def _converted(self, arrays: "dict[str, Array]") -> "Batch": ...


class PrioritizedSampler(EpochSampler):
    """Draws the live frames of a buffer, with replacement, in proportion to `priority ** alpha`.

    This is the proportional variant of T. Schaul et al., 2016, "Prioritized Experience Replay". The
    sums that are drawn by do not drift, however often priorities change.

    Priorities belong to the buffer: they are kept in its directory, in the file `_priorities`, and
    all samplers of a directory, in whatever process, change and see the same ones; what one of them
    changes makes each of the others read all of them anew. New frames get
    the largest priority ever given, at first 1; a frame that is overwritten loses its own. They
    survive the end of the process as frames do, but nobody waits for the disk to have them.

        indices, weights = sampler.sample(256)
        batch = buffer.get_batch(indices)
        errors = ...
        sampler.update(indices, abs(errors) + 1e-6)
    """

    def __init__(
        self,
        buffer: Prioritized,
        alpha: float = 0.6,
        beta: float = 0.4,
        seed: int = 0,
        *,
        num_samples: int | None = None,
    ) -> None:
        """Begin before epoch 0. The buffer may still be empty.

        Args:
            buffer: The `OnlineBuffer`, opened with `mode="a"`; or a `fastbuffer.ray.ShardedBuffer`,
                where draws of an epoch depend on how they are grouped into batches.
            alpha: How much priorities count, at least 0: with 0 all above 0 are alike. Powers are
                kept from 1e-300 or so to 1e200.
            beta: See `beta`.
            seed: See `EpochSampler`. `sample` has draws of its own.
            num_samples: The number of positions in an epoch. None for as many as there are live
                frames when it begins.

        Raises:
            ValueError: A number is out of range, or `_priorities` is damaged.
            TypeError: An argument has the wrong type.
            io.UnsupportedOperation: The buffer was opened with `mode="r"`.
            OSError: `_priorities` cannot be made, opened or reserved.
        """
        super().__init__(seed)
        if not hasattr(buffer, "_open_priorities"):
            raise TypeError(refused("buffer", "an OnlineBuffer", _arguments.describe(buffer)))
        self._buffer = buffer
        self._alpha = _arguments.at_least_zero(alpha, "alpha")
        if self._alpha == np.inf:
            raise ValueError(refused("alpha", "a finite number", alpha))
        self.beta = beta
        if num_samples is not None:
            num_samples = _arguments.integer(num_samples, "num_samples", at_least=0)
        self._num_samples = num_samples
        self._sampled = 0
        self._priorities = buffer._open_priorities(self._alpha)

    @property
    def alpha(self) -> float:
        """How much priorities count."""
        return self._alpha

    @property
    def beta(self) -> float:
        """How much the weights of `sample` make up for unequal draws: from 0, not at all, to 1.

        It may be set at any time, and usually grows to 1 during training.

        Raises:
            ValueError: It is set to a number that is not from 0 to 1.
            TypeError: It is set to something else.
        """
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        number = _arguments.real(value, "beta")
        if not 0 <= number <= 1:
            raise ValueError(refused("beta", "from 0 to 1", number))
        self._beta = number

    def sample(self, batch_size: int) -> "tuple[Positions, Value]":
        """Draw positions, with their importance weights.

        Args:
            batch_size: The number of draws, each by itself.

        Returns:
            The positions as an int64 array of shape `(batch_size,)`, for `OnlineBuffer.get_batch`
            and `update`; and a float32 tensor or array, as the buffer returns them, of the weights
            `(priority ** alpha / least) ** -beta`, in which `least` is the least `priority **
            alpha` above 0 of all live frames. So a frame that is drawn least has the weight 1.

        Raises:
            ValueError: The buffer is empty, all priorities are 0, or `batch_size` is negative.
            TypeError: `batch_size` is no int.
        """
        size = _arguments.integer(batch_size, "batch_size", at_least=0)
        drawn = self._priorities.sample(self._seed, self._sampled, size, self._beta)
        self._sampled += size
        positions, weights = drawn
        return positions, self._buffer._converted({"weights": weights})["weights"]

    def update(self, indices: "Value | list[int]", priorities: "Value | list[float]") -> None:
        """Give frames new priorities: all of them or, where an argument is refused, none.

        Args:
            indices: Positions among the live frames, as `sample` returns them. Of one that is there
                twice the last counts. Each frame that `sample` draws awaits one update: if it is
                overwritten before, that update is left out, so that what was learned of it does
                not go to the frame in its place.
            priorities: For each a number, at least 0, of which 0 means never.

        Raises:
            ValueError: A priority is negative, infinite or NaN, or there are more or fewer of them
                than indices.
            IndexError: An index is out of range.
            TypeError: `indices` holds no ints.
        """
        positions = self._buffer._positions(indices)
        numbers = _numbers(priorities, len(positions))
        self._priorities.update(positions, numbers)

    def priorities(self, indices: "Value | list[int] | None" = None) -> NDArray[np.float64]:
        """The priorities of frames, as `update` was given them.

        Args:
            indices: As for `OnlineBuffer.get_batch`. None for all live frames, in slot order.

        Returns:
            A float64 array of one for each.

        Raises:
            IndexError: An index is out of range.
            TypeError: `indices` holds no ints.
        """
        return self._priorities.get(None if indices is None else self._buffer._positions(indices))

    def state_dict(self) -> dict[str, int]:
        """See `EpochSampler`; also how many positions `sample` has drawn. Without priorities."""
        return {**super().state_dict(), _SAMPLED: self._sampled}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """See `EpochSampler`."""
        if not isinstance(state, dict) or _SAMPLED not in state:
            got = _arguments.describe(state)
            raise ValueError(refused("state", f"the key {_SAMPLED}", got))
        rest = dict(state)
        sampled = _arguments.integer(rest.pop(_SAMPLED), f"state[{_SAMPLED!r}]", at_least=0)
        super().load_state_dict(rest)
        self._sampled = sampled

    def __len__(self) -> int:
        """The number of positions in an epoch that would begin now."""
        return len(self._buffer) if self._num_samples is None else self._num_samples

    def _begin(self, number: int, beginning: Beginning | None) -> Epoch:
        if beginning is None:
            # Without any frame, the first draw says so.
            beginning = {"length": max(len(self), 1) if self._num_samples is None else len(self)}
        return Epoch(number, partial(self._draw, number), beginning)

    def _draw(self, number: int, start: int, stop: int) -> Positions:
        return self._priorities.draw(self._seed, number, start, stop - start)


def _numbers(priorities: Any, count: int) -> NDArray[np.float64]:
    array = to_numpy(priorities, "priorities")
    if array.shape != (count,) or not np.can_cast(array.dtype, np.float64, "same_kind"):
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(refused("priorities", f"{count} numbers, one per index", got))
    return array.astype(np.float64, copy=False)
