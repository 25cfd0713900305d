"""Sampling weights for training on an offline dataset and an online buffer together."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer import _arguments
from fastbuffer._arguments import describe, refused
from fastbuffer._core import sampler_weights
from fastbuffer._tensors import to_numpy, to_torch, torch_is_installed
from fastbuffer.online_buffer import OnlineBuffer

if TYPE_CHECKING:
    from fastbuffer._batches import Value

Bounds = NDArray[np.int64]
_NONE: Bounds = np.empty(0, np.int64)


def compute_sampler_weights(
    offline_dataset: Any,
    offline_drop_n_last_frames: int = 0,
    online_dataset: OnlineBuffer | None = None,
    online_sampling_ratio: float | None = None,
    online_drop_n_last_frames: int = 0,
) -> "Value":
    """Weights for drawing frames of `ConcatDataset([offline_dataset, online_dataset])`.

    Within a side, all frames weigh the same, except for the last n of each episode, which weigh 0.
    The sides share `1 - online_sampling_ratio` and `online_sampling_ratio`. A side with no frame
    left gives its share to the other; if none is left anywhere, all frames weigh the same.

    Args:
        offline_dataset: Anything with `__len__` and its episodes' bounds, either
            `episode_data_index["from"]` and `["to"]` or
            `meta.episodes["dataset_from_index"]` and `["dataset_to_index"]`. None for no offline
            side.
        offline_drop_n_last_frames: How many frames at the end of each offline episode are not
            drawn.
        online_dataset: The buffer.
        online_sampling_ratio: The online side's share, from 0 to 1. Given if and only if
            `online_dataset` is.
        online_drop_n_last_frames: As `offline_drop_n_last_frames`, for the buffer's episodes, in
            insertion order also where they wrap around its end.

    Returns:
        float32, one weight per frame of the offline dataset, then of the buffer in slot order;
        their sum is 1. A torch tensor if torch is installed, else a NumPy array.

    Raises:
        ValueError: A ratio or a number of frames is out of range, only one of `online_dataset` and
            `online_sampling_ratio` is given, both sides are empty, or an episode lies outside the
            offline dataset.
        TypeError: An argument has the wrong type.
    """
    offline_drop = _drop(offline_drop_n_last_frames, "offline_drop_n_last_frames")
    online_drop = _drop(online_drop_n_last_frames, "online_drop_n_last_frames")
    online, ratio = _online(online_dataset, online_sampling_ratio)
    length, starts, ends = _offline(offline_dataset)
    weights = sampler_weights(
        length,
        starts,
        ends,
        offline_drop,
        None if online is None else online._core,
        ratio,
        online_drop,
    )
    return to_torch(weights, "weights") if torch_is_installed() else weights


def _drop(value: object, name: str) -> int:
    return _arguments.integer(value, name, at_least=0)


def _online(dataset: object, ratio: object) -> tuple[OnlineBuffer | None, float]:
    if (dataset is None) != (ratio is None):
        raise ValueError(
            refused(
                "online_dataset and online_sampling_ratio",
                "both or neither",
                "only online_sampling_ratio" if dataset is None else "only online_dataset",
            )
        )
    if dataset is None:
        return None, 0.0
    if not isinstance(dataset, OnlineBuffer):
        raise TypeError(refused("online_dataset", "an OnlineBuffer", describe(dataset)))
    share = _arguments.real(ratio, "online_sampling_ratio")
    if not 0 <= share <= 1:
        raise ValueError(refused("online_sampling_ratio", "from 0 to 1", share))
    return dataset, share


def _offline(dataset: Any) -> tuple[int, Bounds, Bounds]:
    """The number of frames, and where each episode starts and ends."""
    if dataset is None:
        return 0, _NONE, _NONE
    if not hasattr(dataset, "__len__"):
        raise TypeError(refused("offline_dataset", "something with a length", describe(dataset)))
    if hasattr(dataset, "episode_data_index"):
        episodes, names = dataset.episode_data_index, ("from", "to")
    elif hasattr(dataset, "meta") and hasattr(dataset.meta, "episodes"):
        episodes, names = dataset.meta.episodes, ("dataset_from_index", "dataset_to_index")
    else:
        expected = "episode_data_index or meta.episodes with the episodes' bounds"
        raise TypeError(refused("offline_dataset", expected, describe(dataset)))
    try:
        starts, ends = (_bounds(episodes[name], name) for name in names)
    except (KeyError, IndexError, TypeError) as error:
        expected = f"bounds of its episodes under {names[0]!r} and {names[1]!r}"
        raise ValueError(refused("offline_dataset", expected, describe(episodes))) from error
    if len(starts) != len(ends):
        expected = f"as many {names[0]!r} as {names[1]!r}"
        raise ValueError(refused("offline_dataset", expected, f"{len(starts)} and {len(ends)}"))
    return len(dataset), starts, ends


def _bounds(values: object, name: str) -> Bounds:
    array = to_numpy(values, f"offline_dataset's {name!r}")
    if array.ndim != 1 or (array.size and not np.can_cast(array.dtype, np.int64, "same_kind")):
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(refused(f"offline_dataset's {name!r}", "a list of int", got))
    return array.astype(np.int64)
