"""Which shard an episode goes to."""

import threading
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from fastbuffer._arguments import Field, describe, refused
from fastbuffer._tensors import Array
from fastbuffer.online_buffer import OnlineBuffer, _column

_INDEX, _EPISODE = OnlineBuffer.INDEX_KEY, OnlineBuffer.EPISODE_INDEX_KEY


def checked(data: object, columns: list[Field]) -> dict[str, Array]:
    """The arrays of all columns: what a shard would refuse is refused before any shard has a part.

    Raises:
        ValueError: A key is missing, lengths differ, a shape or dtype does not fit, the first index
            or episode_index is not 0, episodes are not in order, or a timestamp is not finite.
        TypeError: `data` is no mapping.
    """
    if not isinstance(data, Mapping):
        raise TypeError(refused("data", "a dict of arrays", describe(data)))
    missing = [key for key, _, _ in columns if key not in data]
    if missing:
        raise ValueError(refused("data", f"the keys {[key for key, _, _ in columns]}", [*data]))
    arrays = {key: _column(data[key], key) for key, _, _ in columns}
    count = len(arrays[_INDEX]) if arrays[_INDEX].ndim else 0
    for key, dtype, shape in columns:
        array = arrays[key]
        if array.shape != (count, *shape) or not np.can_cast(array.dtype, dtype, "same_kind"):
            expected = f"{dtype} of shape {(count, *shape)}"
            got = f"{array.dtype} of shape {array.shape}"
            raise ValueError(refused(f"data[{key!r}]", expected, got))
    for key in (_INDEX, _EPISODE):
        if count and arrays[key][0] != 0:
            raise ValueError(refused(f"data[{key!r}]", "0 for the first frame", arrays[key][0]))
    episodes = arrays[_EPISODE]
    back = np.flatnonzero(episodes[1:] < episodes[:-1])
    if len(back):
        expected = "whole episodes in order, so that no value is less than the one before"
        got = f"{episodes[back[0] + 1]} after {episodes[back[0]]} at frame {back[0] + 1}"
        raise ValueError(refused(f"data[{_EPISODE!r}]", expected, got))
    times = arrays[OnlineBuffer.TIMESTAMP_KEY]
    broken = np.flatnonzero(~np.isfinite(times))
    if len(broken):
        got = f"{times[broken[0]]} at frame {broken[0]}"
        raise ValueError(refused(f"data[{OnlineBuffer.TIMESTAMP_KEY!r}]", "finite seconds", got))
    return arrays


def episodes_of(data: dict[str, Array]) -> list[slice]:
    """The frames of each episode."""
    numbers = data[_EPISODE].astype(np.int64)
    starts = [*np.flatnonzero(np.diff(numbers, prepend=-1)), len(numbers)]
    return [slice(*bounds) for bounds in pairwise(starts)]


def joined_episodes(data: dict[str, Array], episodes: list[slice]) -> dict[str, Array]:
    """Some episodes of `data`, counted from 0, without a copy where it is only one."""
    lengths = [episode.stop - episode.start for episode in episodes]
    counted = {
        _INDEX: np.arange(sum(lengths)),
        _EPISODE: np.repeat(np.arange(len(lengths)), lengths),
    }
    if len(episodes) == 1:
        return {key: array[episodes[0]] for key, array in data.items()} | counted
    others = {key: array for key, array in data.items() if key not in counted}
    return {
        key: np.concatenate([array[episode] for episode in episodes])
        for key, array in others.items()
    } | counted


class Router:
    """Sends each episode to the shard that was given the fewest frames, as far as is known.

    So shards fill at the same pace, and what they evict is what is oldest in the whole buffer, but
    for about an episode per shard.
    """

    def __init__(self, totals: list[int]) -> None:
        """Begin.

        Args:
            totals: How many frames were ever added to each shard.
        """
        self._loads = np.array(totals, np.int64)
        # Of shards with as many, clients that begin at the same time do not all take the same one.
        self._order = np.random.default_rng().permutation(len(totals))
        self._lock = threading.Lock()

    def routed(self, episodes: list[slice]) -> list[int]:
        """The shard for each of some episodes."""
        with self._lock:
            return [self._next(episode.stop - episode.start) for episode in episodes]

    def learned(self, shard: int, total: int) -> None:
        """A shard has said how many frames were ever added to it, by all clients."""
        with self._lock:
            self._loads[shard] = max(self._loads[shard], total)

    def refused(self, episodes: list[slice], shards: list[int]) -> None:
        """Episodes that were to go to some shards may not have got there."""
        with self._lock:
            for episode, shard in zip(episodes, shards, strict=True):
                self._loads[shard] -= episode.stop - episode.start

    def _next(self, length: int) -> int:
        shard = int(self._order[np.argmin(self._loads[self._order])])
        self._loads[shard] += length
        return shard
