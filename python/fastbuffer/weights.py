"""Sampling weights for training on an offline dataset and an online buffer together."""

from typing import TYPE_CHECKING, Any

from fastbuffer import _sides
from fastbuffer._arguments import refused
from fastbuffer._core import sampler_weights
from fastbuffer._tensors import to_torch, torch_is_installed
from fastbuffer.online_buffer import OnlineBuffer

if TYPE_CHECKING:
    from fastbuffer._batches import Value


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
    offline_drop = _sides.drop(offline_drop_n_last_frames, "offline_drop_n_last_frames")
    online_drop = _sides.drop(online_drop_n_last_frames, "online_drop_n_last_frames")
    online, ratio = _online(online_dataset, online_sampling_ratio)
    length, starts, ends = _sides.offline(offline_dataset, "offline_dataset")
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
    buffer = _sides.online(dataset, "online_dataset")
    return buffer, _sides.share(ratio, "online_sampling_ratio")
