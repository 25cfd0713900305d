"""Between NumPy arrays and what the caller has or wants: torch tensors and array-likes."""

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]
Output = Literal["torch", "numpy"]


def torch_is_installed() -> bool:
    """Whether torch can be imported. Imports it."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return False
    return True


def to_torch(array: Array, key: str) -> "torch.Tensor":
    """The array as a tensor over the same memory.

    Raises:
        TypeError: This torch has no such dtype.
    """
    return to_tensors({key: array})[key]


def to_tensors(arrays: dict[str, Array]) -> "dict[str, torch.Tensor]":
    """The arrays as tensors over the same memory.

    Raises:
        TypeError: This torch has no dtype of one of them.
    """
    import torch

    tensors = {}
    try:
        for key, array in arrays.items():
            tensors[key] = torch.from_numpy(array)
    except TypeError as error:
        raise TypeError(
            f"{key!r}: torch {torch.__version__} has no dtype for {array.dtype}; "
            'open the buffer with output="numpy"'
        ) from error
    return tensors


def to_numpy(value: Any, name: str) -> Array:
    """The value as a plain array, without copying where that is possible.

    Raises:
        ValueError: The value is no rectangular array; the message begins with `name`.
    """
    try:
        if hasattr(value, "resolve_conj"):  # a tensor
            value = value.detach().cpu().resolve_conj().resolve_neg()
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{name}: expected an array, got {type(value).__name__}: {error}"
        ) from error
