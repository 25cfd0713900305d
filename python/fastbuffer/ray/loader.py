"""The loader of a sharded buffer: an epoch in batches, some of them on their way."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from fastbuffer._drawing import Random
from fastbuffer.ray.reading import Positions, Reading
from fastbuffer.samplers.epochs import EpochSampler

if TYPE_CHECKING:
    from fastbuffer._batches import Batch
    from fastbuffer.ray.sharded_buffer import ShardedBuffer


class ShardedLoader:
    """Batches of a buffer; each iteration is an epoch.

    Not more than `prefetch` batches are asked for ahead, so that is what memory is needed for.
    """

    def __init__(
        self,
        buffer: "ShardedBuffer",
        begin: Callable[[Positions], Reading],
        batches: Callable[[], Iterator[Positions]],
        prefetch: int,
    ) -> None:
        """See `ShardedBuffer.loader`."""
        self._buffer = buffer
        self._begin = begin
        self._batches = batches
        self._prefetch = prefetch

    def __iter__(self) -> "Iterator[Batch]":
        """The batches of the next epoch."""
        waiting: deque[Reading] = deque()
        for positions in self._batches():
            waiting.append(self._begin(positions))
            if len(waiting) > self._prefetch:
                yield self._buffer._finished(waiting.popleft())
        while waiting:
            yield self._buffer._finished(waiting.popleft())


def grouped(sampler: Iterable[int], size: int, drop_last: bool) -> Iterator[Positions]:
    """The positions of a sampler, by the batch."""
    if isinstance(sampler, EpochSampler):  # which draws a batch by one question to each shard
        yield from sampler.batches(size, drop_last=drop_last)
        return
    positions = iter(sampler)
    while group := list(islice(positions, size)):
        if len(group) == size or not drop_last:
            yield np.array(group, np.int64)


def shuffled(count: int, random: Random) -> Positions:
    """The numbers below `count` in random order."""
    if isinstance(random, np.random.Generator):
        return random.permutation(count)
    import torch

    return torch.randperm(count, generator=random).numpy()


def whole(order: Positions, size: int, drop_last: bool) -> Iterator[Positions]:
    """An epoch's positions, by the batch."""
    end = len(order) - len(order) % size if drop_last else len(order)
    for start in range(0, end, size):
        yield order[start : start + size]
