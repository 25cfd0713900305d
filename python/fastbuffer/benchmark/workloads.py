"""What is measured: two kinds of buffers, the episodes that fill them, and random positions."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fastbuffer import OnlineBuffer
from fastbuffer._arguments import DataSpec, FieldSpec

FPS = 50
EPISODE = 250

Columns = dict[str, NDArray[Any]]


class CanAdd(Protocol):
    """A buffer, ours or a contender."""

    def add_data(self, data: Columns) -> None:
        """Insert whole episodes."""


@dataclass(frozen=True)
class Workload:
    """Columns, windows and how much of them is handled at once."""

    spec: DataSpec
    deltas: dict[str, list[float]]
    capacity: int
    quick_capacity: int
    batch: int

    def row_bytes(self) -> int:
        """Bytes of one frame, the buffer's own four columns included."""
        return sum(map(field_bytes, all_fields(self.spec).values()))


_STATE_SPEC: DataSpec = {
    "observation.state": {"shape": (14,), "dtype": np.float32},
    "action": {"shape": (14,), "dtype": np.float32},
    "next.reward": {"shape": (), "dtype": np.float32},
    "next.done": {"shape": (), "dtype": bool},
}

STATE = Workload(
    spec=_STATE_SPEC,
    deltas={"observation.state": [-1 / FPS, 0.0], "action": [i / FPS for i in range(16)]},
    capacity=1_000_000,
    quick_capacity=20_000,
    batch=256,
)
IMAGES = Workload(
    spec={**_STATE_SPEC, "observation.image": {"shape": (96, 96, 3), "dtype": np.uint8}},
    deltas={**STATE.deltas, "observation.image": [-1 / FPS, 0.0]},
    capacity=50_000,
    quick_capacity=500,
    batch=64,
)


def all_fields(spec: DataSpec) -> DataSpec:
    """The spec with the buffer's own columns."""
    scalar: FieldSpec = {"shape": (), "dtype": np.int64}
    own = dict.fromkeys(("index", "frame_index", "episode_index"), scalar)
    return {**spec, **own, "timestamp": {"shape": (), "dtype": np.float64}}


def field_bytes(field: FieldSpec) -> int:
    """Bytes of a field in one frame."""
    return math.prod(field["shape"]) * np.dtype(field["dtype"]).itemsize


def episodes(workload: Workload, count: int, seed: int = 0) -> Columns:
    """`count` episodes as one insert."""
    n = count * EPISODE
    rng = np.random.default_rng(seed)
    frame_index = np.tile(np.arange(EPISODE), count)
    data: Columns = {
        "index": np.arange(n),
        "frame_index": frame_index,
        "episode_index": np.repeat(np.arange(count), EPISODE),
        "timestamp": frame_index / FPS,
    }
    for key, field in workload.spec.items():
        shape, dtype = (n, *field["shape"]), np.dtype(field["dtype"])
        if dtype.kind == "f":
            data[key] = rng.standard_normal(shape).astype(dtype)
        else:
            bound = 2 if dtype.kind == "b" else 256
            data[key] = rng.integers(0, bound, shape, np.uint8).astype(dtype)
    return data


def unshifted(data: Columns) -> Columns:
    """The same frames with numbers of their own, since an insert shifts them in place."""
    return data | {key: data[key].copy() for key in ("index", "episode_index")}


def fill(buffer: CanAdd, workload: Workload, capacity: int) -> None:
    """Insert episodes, a few at a time, until the buffer, ours or a contender, is full."""
    part = max(1, min(200, capacity // EPISODE))
    data = episodes(workload, part)
    for _ in range(0, capacity, part * EPISODE):
        buffer.add_data(unshifted(data))


def filled_buffer(
    directory: Path, workload: Workload, capacity: int, output: Literal["torch", "numpy"] = "numpy"
) -> OnlineBuffer:
    """A full buffer."""
    buffer = OnlineBuffer(directory, workload.spec, capacity, FPS, workload.deltas, output=output)
    fill(buffer, workload, capacity)
    return buffer


def memmaps(directory: Path, workload: Workload) -> Columns:
    """The columns of a buffer as NumPy maps them."""
    return {
        key: np.memmap(directory / key, field["dtype"], "r").reshape(-1, *field["shape"])
        for key, field in all_fields(workload.spec).items()
    }


def random_batches(length: int, batch: int, count: int = 64) -> list[NDArray[np.int64]]:
    """Indices of some random batches."""
    rng = np.random.default_rng(1)
    return [rng.integers(0, length, batch) for _ in range(count)]
