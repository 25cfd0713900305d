"""Random positions for `OnlineBuffer.sample`."""

import itertools
import os
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import describe, refused
from fastbuffer._batches import worker_seed
from fastbuffer._tensors import Array, to_numpy

if TYPE_CHECKING:
    import torch

Indices = NDArray[np.int64]
Random: TypeAlias = "np.random.Generator | torch.Generator"


def random_source(seed: int | None, generator: Any) -> Random:
    """The generator that `seed` or `generator` asks for, or this process's own.

    Raises:
        ValueError: Both are given, or the seed is negative.
        TypeError: One has the wrong type.
    """
    if generator is None:
        if seed is None:
            return _own_generator(os.getpid())
        return np.random.default_rng(_arguments.integer(seed, "seed", at_least=0))
    if seed is not None:
        raise ValueError(refused("seed and generator", "at most one of them", "both"))
    if isinstance(generator, np.random.Generator) or hasattr(generator, "initial_seed"):
        return generator  # type: ignore[no-any-return]
    expected = "a numpy.random.Generator or a torch.Generator"
    raise TypeError(refused("generator", expected, describe(generator)))


@lru_cache(maxsize=1)
def _own_generator(pid: int) -> np.random.Generator:
    """One per process, as forked ones must not draw the same; in workers, by the seed of torch."""
    return np.random.default_rng(worker_seed())


def draw(length: int, size: int, weights: object, random: Random) -> Indices:
    """`size` positions below `length`, with replacement.

    Raises:
        ValueError: `length` is 0, or the weights do not fit.
    """
    if length == 0:
        raise ValueError(refused("buffer", "at least one live frame to sample from", "none"))
    if weights is None:
        return _integers(length, size, random)
    return _weighted(_weights(weights, length), _uniforms(size, random))


def take(sampler: Iterable[int], size: int) -> Array:
    """The first `size` positions of a sampler.

    Raises:
        ValueError: It ends before.
        TypeError: It is no iterable.
    """
    if not isinstance(sampler, Iterable):
        raise TypeError(refused("sampler", "an iterable of int", describe(sampler)))
    positions = list(itertools.islice(sampler, size))
    if len(positions) < size:
        raise ValueError(refused("sampler", f"{size} positions", f"only {len(positions)}"))
    return to_numpy(positions, "sampler")


def _integers(length: int, size: int, random: Random) -> Indices:
    if isinstance(random, np.random.Generator):
        return random.integers(length, size=size)
    import torch

    return torch.randint(length, (size,), generator=random).numpy()


def _uniforms(size: int, random: Random) -> NDArray[np.float64]:
    """Numbers from 0 to 1, 1 excluded."""
    if isinstance(random, np.random.Generator):
        return random.random(size)
    import torch

    return torch.rand(size, dtype=torch.float64, generator=random).numpy()


def _weights(weights: object, length: int) -> NDArray[np.float64]:
    array = to_numpy(weights, "weights")
    if array.shape != (length,) or not np.can_cast(array.dtype, np.float64, "same_kind"):
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(refused("weights", f"{length} numbers, one per live frame", got))
    numbers: NDArray[np.float64] = array.astype(np.float64)
    if not (np.isfinite(numbers).all() and (numbers >= 0).all() and numbers.any()):
        worst = numbers[np.argmin(np.where(np.isfinite(numbers), numbers, -np.inf))]
        expected = "finite numbers, none negative and not all 0"
        raise ValueError(refused("weights", expected, worst))
    numbers /= numbers.max()  # so that the sum is finite
    return numbers


def _weighted(weights: NDArray[np.float64], uniforms: NDArray[np.float64]) -> Indices:
    """Positions by the inverse of the weights' cumulative sum."""
    cumulative = np.cumsum(weights)
    positions = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
    # A product that is rounded up to the whole sum would lie beyond the last weight that is not 0.
    last = np.flatnonzero(weights)[-1]
    result: Indices = np.minimum(positions, last)
    return result
