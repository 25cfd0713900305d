"""Batches: dicts of what the core fills, and how they get from one process to another."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbuffer._arguments import describe, refused
from fastbuffer._tensors import Array, to_tensors, torch_is_installed

if TYPE_CHECKING:
    from typing import TypeAlias

    import torch

    Value: TypeAlias = "torch.Tensor | Array"
    Item: TypeAlias = dict[str, Value]
    Batch: TypeAlias = dict[str, Value]

if torch_is_installed():
    from torch.utils.data import get_worker_info
else:

    def get_worker_info() -> None:
        """Without torch there are no DataLoader workers."""


_ALIGNMENT = 64


def in_worker() -> bool:
    """Whether this process is a worker of a torch DataLoader."""
    return get_worker_info() is not None


def worker_seed() -> int | None:
    """What torch seeds this process with, if it is a worker of a DataLoader."""
    worker = get_worker_info()
    return None if worker is None else worker.seed


def split(batch: "Batch") -> "list[Item]":
    """The items of a batch, as views of it."""
    count = len(next(iter(batch.values())))
    return [{key: value[i, ...] for key, value in batch.items()} for i in range(count)]


class EmptyBatch(dict[str, Any]):
    """Tensors over the memory of arrays, which are found again while the tensors are as made."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        super().__init__(to_tensors(arrays))
        self._arrays = arrays
        self._made = self._layout()

    def _layout(self) -> list[tuple[Any, ...]]:
        return [
            (
                *(key, t.data_ptr(), t.dtype, t.shape, t.stride()),
                *(t.requires_grad, t.is_conj(), t.is_neg()),
            )
            for key, t in self.items()
        ]

    def arrays(self) -> dict[str, Array] | None:
        """The arrays, or None if something else was put in place of a tensor or its memory."""
        try:
            return self._arrays if self._layout() == self._made else None
        except (AttributeError, RuntimeError):
            return None


def arrays_of(out: "Batch") -> dict[str, Any]:
    """The arrays of a batch, and for its tensors arrays over the same memory.

    Raises:
        TypeError: `out` is no dict.
        ValueError: A tensor in it is none of plain CPU memory.
    """
    if isinstance(out, EmptyBatch) and (arrays := out.arrays()) is not None:
        return arrays
    if not isinstance(out, dict):
        raise TypeError(refused("out", "a dict as empty_batch makes it", describe(out)))
    return {key: _array_of(key, value) for key, value in out.items()}


def _array_of(key: str, value: Any) -> Any:
    if isinstance(value, np.ndarray) or not hasattr(value, "numpy"):
        return value  # the core checks arrays, and refuses what is none
    try:
        return value.numpy()
    except (RuntimeError, TypeError) as error:
        expected = "a plain tensor in CPU memory that needs no gradient"
        got = f"one on {value.device} ({error})"
        raise ValueError(refused(f"out[{key!r}]", expected, got)) from error


def shared_batch(template: dict[str, Array]) -> "tuple[Batch, dict[str, Array]]":
    """Tensors, and arrays over the same memory, like those of `template`, in shared memory.

    A DataLoader worker that fills them hands them to its parent without another copy.
    """
    import torch

    likes = to_tensors(template)
    starts = {}
    size = 0
    for key, array in template.items():
        starts[key] = size
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    # As torch's own collate function has its batches.
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    block = torch.empty(0, dtype=torch.uint8).set_(storage)
    batch: Batch = {
        key: _view(block, starts[key], like.dtype, like.shape) for key, like in likes.items()
    }
    return batch, arrays_of(batch)


def _view(
    block: "torch.Tensor", start: int, dtype: "torch.dtype", shape: tuple[int, ...]
) -> "torch.Tensor":
    size = math.prod(shape) * dtype.itemsize
    return block[start : start + size].view(dtype).view(shape)


class PackedBatch(dict[str, Any]):
    """Tensors over one block of shared memory, sent to another process as that one block."""

    def __reduce__(self) -> tuple[Any, ...]:
        """The block, and where in it each tensor lies: a dict again when it arrives."""
        import torch

        storage = next(iter(self.values())).untyped_storage()
        block = torch.empty(0, dtype=torch.uint8).set_(storage)
        places = [
            (key, tensor.storage_offset() * tensor.itemsize, tensor.dtype, tensor.shape)
            for key, tensor in self.items()
        ]
        return _unpacked, (block, places)


def _unpacked(block: "torch.Tensor", places: list[tuple[Any, ...]]) -> "Batch":
    return {key: _view(block, *place) for key, *place in places}


def packed(batch: object) -> object:
    """The batch, ready to be sent as one block if it is what a worker read.

    What arrives are plain tensors in a plain dict, so anything else is left to torch to send.
    """
    if not in_worker() or type(batch) is not dict:
        return batch
    blocks = {_shared_block(value) for value in batch.values()}
    return PackedBatch(batch) if len(blocks) == 1 and None not in blocks else batch


def _shared_block(value: object) -> int | None:
    """The address of the shared memory that a plain, contiguous tensor lies in."""
    import torch

    if type(value) is not torch.Tensor or value.layout != torch.strided or value.requires_grad:
        return None
    storage = value.untyped_storage()
    return storage.data_ptr() if storage.is_shared() and value.is_contiguous() else None
