"""What OnlineBuffer must do, said as plainly as NumPy allows and with no regard for speed.

The model keeps every frame ever added in one list, so a frame's place in that list is its
sequence number. The live frames are the last `capacity` of the list, and frame s lives in slot
`s % capacity`. Windows are found by looking at every frame of the episode.
"""

import numpy as np

COLUMNS = {
    "index": ((), np.dtype(np.int64)),
    "frame_index": ((), np.dtype(np.int64)),
    "episode_index": ((), np.dtype(np.int64)),
    "timestamp": ((), np.dtype(np.float64)),
}


class BrokenTimestampsError(Exception):
    """Raised where the buffer must raise TimestampToleranceError."""


class Model:
    """The buffer, as a list of frames; a frame maps each key to an array."""

    def __init__(self, data_spec, capacity, fps=None, deltas=None):
        spec = {key: (tuple(f["shape"]), np.dtype(f["dtype"])) for key, f in data_spec.items()}
        self.columns = spec | COLUMNS
        self.capacity = capacity
        self.frames = []
        self.open(fps, deltas)

    def open(self, fps, deltas=None):
        """What holds for one opening of the directory only."""
        self.deltas = deltas or {}
        self.tolerance_s = None if fps is None else 1 / fps - 1e-4

    # Writing

    def add_data(self, data):
        """Append frames, with `index` and `episode_index` shifted to continue the newest ones."""
        for key in self.columns:
            require(key in data, f"{key} is missing")
        arrays = {key: np.asarray(data[key]) for key in self.columns}
        lengths = {len(array) for array in arrays.values()}
        require(len(lengths) == 1, "lengths differ")
        if lengths == {0}:
            return
        for key, (shape, dtype) in self.columns.items():
            require(arrays[key].shape[1:] == shape, f"{key} has the wrong shape")
            require(np.can_cast(arrays[key].dtype, dtype, "same_kind"), f"{key}: wrong dtype")
            arrays[key] = arrays[key].astype(dtype)
        for key in ("index", "episode_index"):
            require(arrays[key][0] == 0, f"{key} does not start at 0")
        require((np.diff(arrays["episode_index"]) >= 0).all(), "an episode is not contiguous")
        require(np.isfinite(arrays["timestamp"]).all(), "a timestamp is not finite")

        if self.frames:
            for key in ("index", "episode_index"):
                arrays[key] += self.frames[-1][key] + 1
        for row in range(lengths.pop()):
            self.frames.append({key: array[row, ...] for key, array in arrays.items()})

    # Reading

    @property
    def live(self):
        """The live frames, oldest first."""
        return self.frames[-self.capacity :]

    @property
    def numbers(self):
        """The sequence numbers of the live frames, in slot order."""
        oldest = max(0, len(self.frames) - self.capacity)
        return sorted(range(oldest, len(self.frames)), key=lambda s: s % self.capacity)

    @property
    def slots(self):
        """The live frames, in slot order."""
        return [self.frames[s] for s in self.numbers]

    @property
    def num_frames(self):
        return len(self.live)

    @property
    def num_episodes(self):
        return len({int(frame["episode_index"]) for frame in self.live})

    def get_data_by_key(self, key):
        return self._stack(key, self.slots)

    def item(self, i):
        """The i-th live frame in slot order, with its windows."""
        if not -self.num_frames <= i < self.num_frames:
            raise IndexError(i)
        frame = self.slots[i]
        item = dict(frame)
        for key in self.deltas:
            item[key], item[f"{key}_is_pad"] = self._window(key, frame)
        return item

    def batch(self, indices):
        """The items at `indices`, stacked."""
        items = [self.item(i) for i in indices]
        return {
            key: np.array([item[key] for item in items], dtype).reshape(len(items), *shape)
            for key, (shape, dtype) in self._item_layout().items()
        }

    def broken_episodes(self, indices):
        """The episodes among those of `indices` for which a window cannot be given."""
        return {int(self.slots[i]["episode_index"]) for i in indices if self._is_broken(i)}

    def _is_broken(self, i):
        try:
            self.item(i)
        except BrokenTimestampsError:
            return True
        return False

    def _window(self, key, frame):
        """The frames of `frame`'s episode nearest to each query time, and which of them pad."""
        episode = [f for f in self.live if f["episode_index"] == frame["episode_index"]]
        times = self._stack("timestamp", episode)
        chosen, is_pad = [], []
        for delta in self.deltas[key]:
            with np.errstate(over="ignore"):
                query = frame["timestamp"] + np.float64(delta)
                distances = np.abs(query - times)
            nearest = int(np.argmin(distances))  # the earliest one on a tie
            pad = distances[nearest] > self.tolerance_s
            if pad and times[0] <= query <= times[-1]:
                raise BrokenTimestampsError(f"no frame near {query}")
            chosen.append(episode[nearest])
            is_pad.append(pad)
        return self._stack(key, chosen), np.array(is_pad, dtype=bool)

    def _item_layout(self):
        """Shape and dtype of everything in an item."""
        layout = dict(self.columns)
        for key, deltas in self.deltas.items():
            shape, dtype = self.columns[key]
            layout[key] = ((len(deltas), *shape), dtype)
            layout[f"{key}_is_pad"] = ((len(deltas),), np.dtype(bool))
        return layout

    def _stack(self, key, frames):
        shape, dtype = self.columns[key]
        return np.array([frame[key] for frame in frames], dtype).reshape(len(frames), *shape)

    # Sampling

    def kept(self, drop):
        """Per live slot: is the frame not among the last `drop` of its episode?"""
        episodes = [int(frame["episode_index"]) for frame in self.frames]
        frames_after = [episodes[s + 1 :].count(episodes[s]) for s in self.numbers]
        return np.array(frames_after, dtype=np.int64) >= drop


def require(condition, message):
    if not condition:
        raise ValueError(message)


def kept_of_lengths(lengths, drop):
    """Per frame of consecutive episodes: is it not among the last `drop` of its episode?"""
    return np.array([frame < n - drop for n in lengths for frame in range(n)], dtype=bool)


def sampler_weights(offline_kept, online_kept, ratio):
    """The weight of every frame, given which frames of either side are kept."""
    kept = np.concatenate([offline_kept, online_kept])
    if not kept.any():
        return np.full(len(kept), 1 / len(kept))
    if not offline_kept.any():
        ratio = 1
    elif not online_kept.any():
        ratio = 0
    sides = [(offline_kept, 1 - ratio), (online_kept, ratio)]
    return np.concatenate([share * side / max(1, side.sum()) for side, share in sides])
