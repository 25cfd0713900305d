"""What fastbuffer is measured against: the same work in plain NumPy."""

from pathlib import Path

import numpy as np


class PerItemNumpyBuffer:
    """The behaviour of the NumPy implementation: one item at a time, by a scan of all slots."""

    def __init__(self, directory, spec, capacity, fps, delta_timestamps):
        own = {key: {"shape": (), "dtype": np.int64} for key in ("index", "frame_index")}
        own["episode_index"] = {"shape": (), "dtype": np.int64}
        own["timestamp"] = {"shape": (), "dtype": np.float64}
        Path(directory).mkdir(parents=True)
        self.columns = {
            key: np.memmap(
                Path(directory) / key, field["dtype"], "w+", shape=(capacity, *field["shape"])
            )
            for key, field in (spec | own).items()
        }
        self.occupied = np.memmap(
            Path(directory) / "_occupancy_mask", bool, "w+", shape=(capacity,)
        )
        self.next_index = 0
        self.capacity = capacity
        self.tolerance = 1 / fps - 1e-4
        self.deltas = {key: np.array(value) for key, value in delta_timestamps.items()}

    def add_data(self, data):
        """Insert frames with shifted numbers, in two parts where they wrap."""
        if self.occupied.any():
            for key in ("index", "episode_index"):
                data[key] += self.columns[key][self.next_index - 1] + 1
        n = len(data["index"])
        until_end = min(n, self.capacity - self.next_index)
        for key, column in self.columns.items():
            column[self.next_index : self.next_index + until_end] = data[key][:until_end]
            column[: n - until_end] = data[key][until_end:]
        self.occupied[self.next_index : self.next_index + until_end] = True
        self.occupied[: n - until_end] = True
        self.next_index = (self.next_index + n) % self.capacity

    def __getitem__(self, i):
        item = {key: column[i] for key, column in self.columns.items()}
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


def per_episode_weights(episode_index, drop_n_last_frames):
    """Uniform weights over all but the last frames of each episode, by one mask per episode."""
    weights = np.zeros(len(episode_index), np.float32)
    for episode in np.unique(episode_index):
        frames = np.flatnonzero(episode_index == episode)
        weights[frames[: len(frames) - drop_n_last_frames]] = 1
    return weights / weights.sum()
