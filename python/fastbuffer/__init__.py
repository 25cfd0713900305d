"""A circular, memory-mapped episode buffer for robot learning.

Names load on first use, so that importing the package brings in neither torch nor zarr.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fastbuffer.errors import BufferLockedError, TimestampToleranceError

if TYPE_CHECKING:
    from fastbuffer.online_buffer import OnlineBuffer
    from fastbuffer.recording import EpisodeRecorder
    from fastbuffer.samplers import (
        EpisodeSampler,
        MixedSampler,
        PrioritizedSampler,
        WeightedSampler,
    )
    from fastbuffer.synthetic.dataset import create_replay_buffer_from_synthetic
    from fastbuffer.synthetic.schema import SyntheticSchema
    from fastbuffer.weights import compute_sampler_weights

__all__ = [
    "BufferLockedError",
    "EpisodeRecorder",
    "EpisodeSampler",
    "MixedSampler",
    "OnlineBuffer",
    "PrioritizedSampler",
    "SyntheticSchema",
    "TimestampToleranceError",
    "WeightedSampler",
    "compute_sampler_weights",
    "create_replay_buffer_from_synthetic",
]

_HOMES = {
    "EpisodeRecorder": "fastbuffer.recording",
    "EpisodeSampler": "fastbuffer.samplers",
    "MixedSampler": "fastbuffer.samplers",
    "OnlineBuffer": "fastbuffer.online_buffer",
    "PrioritizedSampler": "fastbuffer.samplers",
    "SyntheticSchema": "fastbuffer.synthetic.schema",
    "WeightedSampler": "fastbuffer.samplers",
    "compute_sampler_weights": "fastbuffer.weights",
    "create_replay_buffer_from_synthetic": "fastbuffer.synthetic.dataset",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("fastbuffer")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
