"""A circular, memory-mapped episode buffer for robot learning.

Names load on first use, so that importing the package brings in neither torch nor zarr.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fastbuffer.errors import BufferLockedError, TimestampToleranceError

if TYPE_CHECKING:
    from fastbuffer.online_buffer import OnlineBuffer
    from fastbuffer.weights import compute_sampler_weights

__all__ = [
    "BufferLockedError",
    "OnlineBuffer",
    "TimestampToleranceError",
    "compute_sampler_weights",
]

_HOMES = {
    "OnlineBuffer": "fastbuffer.online_buffer",
    "compute_sampler_weights": "fastbuffer.weights",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
