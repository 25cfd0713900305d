"""What fastbuffer and NumPy are both asked to do, and the table that `fastbuffer bench` shows."""

import contextlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastbuffer import OnlineBuffer
from fastbuffer.benchmark.contenders import PerItemNumpyBuffer, VectorisedNumpyReader
from fastbuffer.benchmark.measuring import Pair, check_same, in_turn
from fastbuffer.benchmark.workloads import (
    EPISODE,
    IMAGES,
    STATE,
    CanAdd,
    Workload,
    episodes,
    fill,
    filled_buffer,
    memmaps,
    random_batches,
    unshifted,
)

#: What a comparison takes at least to be worth buffers of full size.
FULL_SIZE_SECONDS = 5.0

Setup = Callable[[Path, int], contextlib.AbstractContextManager[Pair]]


def batch_against(
    reader_class: type[VectorisedNumpyReader],
    workload: Workload,
    output: Literal["torch", "numpy"],
) -> Setup:
    """A batch of windows, by fastbuffer and by vectorised NumPy."""

    @contextlib.contextmanager
    def setup(directory: Path, capacity: int) -> Iterator[Pair]:
        filled_buffer(directory / "b", workload, capacity).close()
        buffer = OnlineBuffer(directory / "b", delta_timestamps=workload.deltas, output=output)
        reader = reader_class(memmaps(directory / "b", workload), workload)
        batches = random_batches(capacity, workload.batch)
        out = buffer.empty_batch(workload.batch)
        check_same(buffer.get_batch(batches[0], out=out), reader.batch(batches[0]))
        yield Pair(
            in_turn(lambda batch: buffer.get_batch(batch, out=out), batches),
            in_turn(reader.batch, batches),
        )

    return setup


@contextlib.contextmanager
def batch_against_items(directory: Path, capacity: int) -> Iterator[Pair]:
    """State windows, read as a batch and item by item; four items stand for the batch."""
    buffer = filled_buffer(directory / "b", STATE, capacity)
    theirs = PerItemNumpyBuffer(directory / "n", STATE, capacity)
    fill(theirs, STATE, capacity)
    batches = random_batches(capacity, STATE.batch)
    fours = [batch[:4].tolist() for batch in batches[:4]]
    yield Pair(
        in_turn(buffer.get_batch, batches),
        in_turn(lambda four: [theirs[i] for i in four], fours),
        scale=STATE.batch / 4,
    )


@contextlib.contextmanager
def item_against_item(directory: Path, capacity: int) -> Iterator[Pair]:
    """One item with its windows, as tensors where there is torch, and by NumPy."""
    filled_buffer(directory / "b", STATE, capacity).close()
    output: Literal["torch", "numpy"] = "torch" if importlib.util.find_spec("torch") else "numpy"
    buffer = OnlineBuffer(directory / "b", delta_timestamps=STATE.deltas, output=output)
    theirs = PerItemNumpyBuffer(directory / "n", STATE, capacity)
    fill(theirs, STATE, capacity)
    indices = [int(batch[0]) for batch in random_batches(capacity, 1)]
    for i in indices[:4]:
        check_same(buffer[i], theirs[i])
    yield Pair(in_turn(lambda i: buffer[i], indices), in_turn(lambda i: theirs[i], indices[:8]))


@contextlib.contextmanager
def insert_against_slices(directory: Path, capacity: int) -> Iterator[Pair]:
    """One episode of states, by add_data and by slices of memmaps with the same bookkeeping."""
    buffer = filled_buffer(directory / "b", STATE, capacity)
    theirs = PerItemNumpyBuffer(directory / "n", STATE, capacity)
    fill(theirs, STATE, capacity)
    yield Pair(insert_into(buffer, STATE), insert_into(theirs, STATE))


def insert_into(buffer: CanAdd, workload: Workload) -> Callable[[], None]:
    """A function that inserts one more episode, numbered from 0."""
    episode = episodes(workload, 1)
    return lambda: buffer.add_data(unshifted(episode))


@dataclass(frozen=True)
class Comparison:
    """A line of the table."""

    name: str
    against: str
    setup: Setup
    capacity: int
    #: What one call handles.
    items: int


COMPARISONS = [
    Comparison(
        "windows of states, batch of 256",
        "item by item",
        batch_against_items,
        STATE.capacity,
        STATE.batch,
    ),
    Comparison(
        "windows of states, batch of 256",
        "vectorised",
        batch_against(VectorisedNumpyReader, STATE, "numpy"),
        STATE.capacity,
        STATE.batch,
    ),
    Comparison(
        "windows of images, batch of 64",
        "vectorised",
        batch_against(VectorisedNumpyReader, IMAGES, "numpy"),
        IMAGES.capacity // 10,
        IMAGES.batch,
    ),
    Comparison("buffer[i]", "item by item", item_against_item, STATE.capacity, 1),
    Comparison("add_data, an episode", "slices", insert_against_slices, STATE.capacity, 250),
]


@dataclass(frozen=True)
class Result:
    """Seconds that one comparison took, for the same work."""

    name: str
    against: str
    #: Frames in the buffer.
    frames: int
    fastbuffer_seconds: float
    numpy_seconds: float
    #: What fastbuffer handles per second: items of batches, or frames that are inserted.
    fastbuffer_per_second: float
    ratio: float


def compare(comparison: Comparison, directory: Path | None, seconds: float) -> Result:
    """Measure one comparison.

    Args:
        comparison: What to measure.
        directory: Where the buffers are for that time; None for the system's temporary directory.
        seconds: About how long it takes, half of it to fill the buffers. In less than some seconds
            they are smaller.
    """
    share = min(1.0, seconds / FULL_SIZE_SECONDS)
    capacity = max(4 * EPISODE, int(comparison.capacity * share))
    with (
        tempfile.TemporaryDirectory(prefix="fastbuffer-", dir=directory) as place,
        comparison.setup(Path(place), capacity) as pair,
    ):
        ours, theirs = pair.measure(seconds / 2)
    return Result(
        comparison.name,
        comparison.against,
        capacity,
        ours,
        theirs,
        comparison.items / ours,
        theirs / ours,
    )
