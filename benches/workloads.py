"""The two workloads of the benchmarks, and buffers filled with them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastbuffer import OnlineBuffer

FPS = 50
EPISODE = 250


@dataclass(frozen=True)
class Workload:
    """Columns, windows and how much of them is handled at once."""

    spec: dict
    deltas: dict
    capacity: int
    quick_capacity: int
    batch: int

    def row_bytes(self) -> int:
        """Bytes of one frame, the buffer's own four columns included."""
        sizes = (
            np.prod(f["shape"], dtype=int) * np.dtype(f["dtype"]).itemsize
            for f in all_fields(self.spec).values()
        )
        return int(sum(sizes))


STATE = Workload(
    spec={
        "observation.state": {"shape": (14,), "dtype": np.float32},
        "action": {"shape": (14,), "dtype": np.float32},
        "next.reward": {"shape": (), "dtype": np.float32},
        "next.done": {"shape": (), "dtype": bool},
    },
    deltas={"observation.state": [-1 / FPS, 0.0], "action": [i / FPS for i in range(16)]},
    capacity=1_000_000,
    quick_capacity=20_000,
    batch=256,
)
IMAGES = Workload(
    spec=STATE.spec | {"observation.image": {"shape": (96, 96, 3), "dtype": np.uint8}},
    deltas=STATE.deltas | {"observation.image": [-1 / FPS, 0.0]},
    capacity=50_000,
    quick_capacity=500,
    batch=64,
)


def all_fields(spec):
    """The spec with the buffer's own columns."""
    scalar = {"shape": (), "dtype": np.int64}
    own = dict.fromkeys(("index", "frame_index", "episode_index"), scalar)
    return spec | own | {"timestamp": {"shape": (), "dtype": np.float64}}


def episodes(workload, count, seed=0):
    """`count` episodes as one insert."""
    n = count * EPISODE
    rng = np.random.default_rng(seed)
    frame_index = np.tile(np.arange(EPISODE), count)
    data = {
        "index": np.arange(n),
        "frame_index": frame_index,
        "episode_index": np.repeat(np.arange(count), EPISODE),
        "timestamp": frame_index / FPS,
    }
    for key, field in workload.spec.items():
        shape, dtype = (n, *field["shape"]), np.dtype(field["dtype"])
        if dtype.kind == "f":
            data[key] = rng.standard_normal(shape, dtype)
        else:
            data[key] = rng.integers(0, 2 if dtype.kind == "b" else 256, shape, np.uint8).astype(
                dtype
            )
    return data


def unshifted(data):
    """The same frames with numbers of their own, since an insert shifts them in place."""
    return data | {key: data[key].copy() for key in ("index", "episode_index")}


def fill(buffer, workload, capacity):
    """Insert episodes, a few at a time, until the buffer, ours or a contender, is full."""
    part = max(1, min(200, capacity // EPISODE))
    data = episodes(workload, part)
    for _ in range(0, capacity, part * EPISODE):
        buffer.add_data(unshifted(data))


def filled_buffer(directory, workload, capacity, output="numpy"):
    """A full buffer."""
    buffer = OnlineBuffer(
        Path(directory), workload.spec, capacity, FPS, workload.deltas, output=output
    )
    fill(buffer, workload, capacity)
    return buffer


def sparse_buffer(directory, workload, capacity):
    """A full buffer of zeros with real episodes, made quickly at any capacity.

    Only the columns that tell episodes apart are written; the others are holes in their files.
    """
    directory = Path(directory)
    directory.mkdir(parents=True)
    frames = np.arange(capacity)
    (frames // EPISODE).tofile(directory / "episode_index")
    (frames % EPISODE / FPS).tofile(directory / "timestamp")
    np.ones(capacity, bool).tofile(directory / "_occupancy_mask")
    np.zeros(1, np.int64).tofile(directory / "_next_index")
    for key, field in all_fields(workload.spec).items():
        size = int(np.prod(field["shape"], dtype=int)) * np.dtype(field["dtype"]).itemsize
        with (directory / key).open("ab") as file:
            file.truncate(size * capacity)
    return OnlineBuffer(directory, workload.spec, capacity, FPS, workload.deltas, output="numpy")


def random_batches(length, batch, count=64, seed=1):
    """Indices of some random batches."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, length, batch) for _ in range(count)]
