"""The two sides that draws come from: an offline dataset and a buffer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import describe, refused
from fastbuffer._tensors import to_numpy
from fastbuffer.online_buffer import OnlineBuffer

Bounds = NDArray[np.int64]
_NONE: Bounds = np.empty(0, np.int64)


def drop(value: object, name: str) -> int:
    """How many frames at an end of each episode are not drawn.

    Raises:
        TypeError: It is no int.
        ValueError: It is negative.
    """
    return _arguments.integer(value, name, at_least=0)


def share(ratio: object, name: str) -> float:
    """The online side's share of the draws.

    Raises:
        TypeError: It is no number.
        ValueError: It is not from 0 to 1.
    """
    number = _arguments.real(ratio, name)
    if not 0 <= number <= 1:
        raise ValueError(refused(name, "from 0 to 1", number))
    return number


def online(buffer: object, name: str) -> OnlineBuffer:
    """The buffer.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(buffer, OnlineBuffer):
        raise TypeError(refused(name, "an OnlineBuffer", describe(buffer)))
    return buffer


def offline(dataset: Any, name: str) -> tuple[int, Bounds, Bounds]:
    """The number of frames of a dataset, and where each of its episodes starts and ends.

    Raises:
        TypeError: The dataset has no length, or no episodes.
        ValueError: Its bounds cannot be read.
    """
    if dataset is None:
        return 0, _NONE, _NONE
    if not hasattr(dataset, "__len__"):
        raise TypeError(refused(name, "something with a length", describe(dataset)))
    if hasattr(dataset, "episode_data_index"):
        episodes, names = dataset.episode_data_index, ("from", "to")
    elif hasattr(dataset, "meta") and hasattr(dataset.meta, "episodes"):
        episodes, names = dataset.meta.episodes, ("dataset_from_index", "dataset_to_index")
    else:
        expected = "episode_data_index or meta.episodes with the episodes' bounds"
        raise TypeError(refused(name, expected, describe(dataset)))
    try:
        starts, ends = (_bounds(episodes[key], f"{name}'s {key!r}") for key in names)
    except (KeyError, IndexError, TypeError) as error:
        expected = f"bounds of its episodes under {names[0]!r} and {names[1]!r}"
        raise ValueError(refused(name, expected, describe(episodes))) from error
    if len(starts) != len(ends):
        expected = f"as many {names[0]!r} as {names[1]!r}"
        raise ValueError(refused(name, expected, f"{len(starts)} and {len(ends)}"))
    return len(dataset), starts, ends


def _bounds(values: object, name: str) -> Bounds:
    array = to_numpy(values, name)
    if array.ndim != 1 or (array.size and not np.can_cast(array.dtype, np.int64, "same_kind")):
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(refused(name, "a list of int", got))
    return array.astype(np.int64)
