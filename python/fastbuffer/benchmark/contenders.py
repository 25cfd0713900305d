"""The same work in plain NumPy: as the buffer that fastbuffer replaces does it, and at its best."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer.benchmark.workloads import EPISODE, FPS, Columns, Workload, all_fields


class PerItemNumpyBuffer:
    """The NumPy implementation that fastbuffer replaces: its bookkeeping, one item at a time."""

    def __init__(self, directory: Path, workload: Workload, capacity: int) -> None:
        """Make the files of an empty one."""
        directory.mkdir(parents=True)

        def column(key: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
            return np.memmap(directory / key, dtype, "w+", shape=shape)

        self.columns = {
            key: column(key, field["dtype"], (capacity, *field["shape"]))
            for key, field in all_fields(workload.spec).items()
        }
        self.occupied = column("_occupancy_mask", bool, (capacity,))
        self.next_index = column("_next_index", np.int64, ())
        self.capacity = capacity
        self.tolerance = 1 / FPS - 1e-4
        self.deltas = {key: np.array(value) for key, value in workload.deltas.items()}

    def add_data(self, data: Columns) -> None:
        """Insert frames with shifted numbers, in two parts where they wrap."""
        n = len(data["index"])
        start = int(self.next_index)
        if np.count_nonzero(self.occupied) > 0:
            for key in ("index", "episode_index"):
                data[key] += self.columns[key][start - 1] + 1
        until_end = min(n, self.capacity - start)
        for key, column in self.columns.items():
            column[start : start + until_end] = data[key][:until_end]
            self.occupied[start : start + until_end] = True
            if until_end < n:
                column[: n - until_end] = data[key][until_end:]
                self.occupied[: n - until_end] = True
        self.next_index[...] = (start + n) % self.capacity

    def __getitem__(self, i: int) -> Columns:
        """The frame in slot `i`, with its windows."""
        item: Columns = {key: column[i] for key, column in self.columns.items()}
        same_episode = self.columns["episode_index"] == item["episode_index"]
        slots = np.flatnonzero(same_episode & self.occupied)
        times = self.columns["timestamp"][slots]
        for key, deltas in self.deltas.items():
            distances = np.abs(item["timestamp"] + deltas[:, None] - times)
            nearest = distances.argmin(axis=1)
            is_pad = distances[np.arange(len(deltas)), nearest] > self.tolerance
            item[key] = self.columns[key][slots[nearest]]
            item[f"{key}_is_pad"] = is_pad
        return item


class VectorisedNumpyReader:
    """Batches of windows by fancy indexing: as fast as NumPy gets with everything known before.

    The bounds of every frame's episode and the deltas as whole numbers of frames are computed once,
    and the buffer neither grows nor wraps meanwhile.
    """

    def __init__(self, columns: Columns, workload: Workload) -> None:
        """Look up what each frame's episode is."""
        frames = np.arange(len(columns["index"]))
        self.columns = {key: np.asarray(column) for key, column in columns.items()}
        self.first = frames // EPISODE * EPISODE
        self.last = self.first + EPISODE - 1
        self.offsets = {
            key: np.rint(np.array(deltas) * FPS).astype(np.int64)
            for key, deltas in workload.deltas.items()
        }

    def batch(self, indices: NDArray[np.int64]) -> Columns:
        """Each column's rows, windows clamped to their episodes, and pad masks."""
        first, last = self.first[indices][:, None], self.last[indices][:, None]
        batch = {}
        for key, column in self.columns.items():
            rows = indices
            if key in self.offsets:
                wanted = indices[:, None] + self.offsets[key]
                rows = np.clip(wanted, first, last)
                batch[f"{key}_is_pad"] = rows != wanted
            batch[key] = self.rows(column, rows)
        return batch

    def rows(self, column: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
        """The rows of a column."""
        return column[rows]


class TakingNumpyReader(VectorisedNumpyReader):
    """The same with `take`, which copies rows faster than an index does."""

    def rows(self, column: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
        """The rows of a column."""
        return column.take(rows, axis=0)
