"""Returns over several steps, as part of a batch."""

import numpy as np
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import refused
from fastbuffer._core import Buffer, Windows
from fastbuffer._tensors import Array

REWARD_KEY = "next.reward"
RETURN_KEY = "next.reward_nstep"
DISCOUNT_KEY = "discount"
BOOTSTRAP_PREFIX = "bootstrap."


def checked_steps(n_step: object, gamma: object, out: object) -> tuple[int, float] | None:
    """How many steps at which discount, if that is asked for.

    Raises:
        ValueError: A number is out of range, or arguments exclude or lack each other.
        TypeError: One has the wrong type.
    """
    if n_step is None and gamma is None:
        return None
    if n_step is None or gamma is None:
        got = "only one of them"
        raise ValueError(refused("n_step and gamma", "both or none", got))
    if out is not None:
        raise ValueError(refused("out", "None with n_step", _arguments.describe(out)))
    discount = _arguments.real(gamma, "gamma")
    if not 0 <= discount <= 1:
        raise ValueError(refused("gamma", "from 0 to 1", discount))
    return _arguments.integer(n_step, "n_step", at_least=1), discount


def with_returns(
    core: Buffer,
    positions: NDArray[np.int64],
    windows: Windows,
    threads: int,
    n_step: int,
    gamma: float,
) -> dict[str, Array]:
    """A batch with what follows its items.

    Raises:
        ValueError: The buffer has no reward, or a key that the batch needs for itself.
    """
    gathered = core.gather_nstep(positions, windows, threads, n_step, gamma)
    arrays, rewards, discounts = gathered
    count = len(positions)
    batch = {key: array[:count] for key, array in arrays.items()}
    dtype, shape = next((dtype, shape) for key, dtype, shape in core.columns if key == REWARD_KEY)
    for key, numbers in ((RETURN_KEY, rewards), (DISCOUNT_KEY, discounts)):
        result = numbers.astype(np.float64 if dtype == "float64" else np.float32)
        _add(batch, key, result.reshape(count, *shape))
    for key, array in arrays.items():
        _add(batch, BOOTSTRAP_PREFIX + key, array[count:])
    return batch


def _add(batch: dict[str, Array], key: str, array: Array) -> None:
    if key in batch:
        raise ValueError(refused("n_step", f"None for a buffer with the key {key!r}", "a number"))
    batch[key] = array
