"""The DataLoader behind `OnlineBuffer.loader`. Needs torch."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler

from fastbuffer._arguments import describe, refused
from fastbuffer._batches import packed
from fastbuffer._tensors import Array

if TYPE_CHECKING:
    from fastbuffer._batches import Batch
    from fastbuffer.online_buffer import OnlineBuffer


def loader(
    buffer: "OnlineBuffer",
    batch_size: int,
    shuffle: bool,
    sampler: Iterable[int] | None,
    drop_last: bool,
    options: dict[str, Any],
) -> "DataLoader[Batch]":
    """See `OnlineBuffer.loader`."""
    if shuffle and sampler is not None:
        raise ValueError(refused("shuffle", "False with a sampler", shuffle))
    if sampler is not None and not isinstance(sampler, Iterable):
        raise TypeError(refused("sampler", "an iterable of int", describe(sampler)))
    batches: Any
    if sampler is None:
        batches = _Batches(buffer, batch_size, shuffle, drop_last, options.get("generator"))
    else:
        batches = BatchSampler(sampler, batch_size, drop_last)
    options["collate_fn"] = _Collate(options.pop("collate_fn", None))
    return DataLoader(buffer, batch_size=None, sampler=batches, **options)


class _Batches(Sampler[Array]):
    """Arrays of positions that cover the live frames once, in order or shuffled."""

    def __init__(
        self,
        buffer: "OnlineBuffer",
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        generator: torch.Generator | None,
    ) -> None:
        self._buffer = buffer
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._generator = generator

    def __iter__(self) -> Iterator[Array]:
        order = self._order(len(self._buffer))
        for start in range(0, self._end(len(order)), self._batch_size):
            yield order[start : start + self._batch_size]

    def __len__(self) -> int:
        end = self._end(len(self._buffer))
        return -(-end // self._batch_size)

    def _order(self, length: int) -> Array:
        if not self._shuffle:
            return torch.arange(length).numpy()
        return torch.randperm(length, generator=self._generator).numpy()

    def _end(self, length: int) -> int:
        return length - length % self._batch_size if self._drop_last else length


class _Collate:
    """Applies the user's function, if any, and makes a worker's batch ready to be sent."""

    def __init__(self, function: Callable[[Any], Any] | None) -> None:
        self._function = function

    def __call__(self, batch: Any) -> Any:
        return packed(batch if self._function is None else self._function(batch))
