"""The comparisons: what is measured, against what, and which ratio is asked for."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count, cycle, repeat
from pathlib import Path

import numpy as np
import zarr

from benches import contenders, policy_batches
from fastbuffer import (
    EpisodeRecorder,
    EpisodeSampler,
    MixedSampler,
    OnlineBuffer,
    PrioritizedSampler,
    SyntheticSchema,
    WeightedSampler,
    compute_sampler_weights,
    create_replay_buffer_from_synthetic,
)
from fastbuffer.benchmark.comparisons import (
    Setup,
    batch_against,
    batch_against_items,
    insert_against_slices,
    insert_into,
    item_against_item,
)
from fastbuffer.benchmark.contenders import TakingNumpyReader, VectorisedNumpyReader
from fastbuffer.benchmark.measuring import Pair, in_turn
from fastbuffer.benchmark.workloads import (
    EPISODE,
    FPS,
    IMAGES,
    STATE,
    Workload,
    all_fields,
    episodes,
    field_bytes,
    filled_buffer,
    memmaps,
    random_batches,
)


@dataclass(frozen=True)
class Row:
    """One comparison."""

    name: str
    against: str
    #: How many times faster at least; None if that is only for information.
    required: float | None
    #: Sets it up in a directory, in its full or in a quick size.
    setup: Callable[[Path, bool], contextlib.AbstractContextManager[Pair]]
    #: Packages that it needs besides the package's own.
    needs: tuple[str, ...] = ()
    #: How many seconds longer it may take, where that is asked for instead of a ratio.
    allowance: float | None = None

    def is_available(self) -> bool:
        """Whether its packages are installed."""
        return all(importlib.util.find_spec(package) for package in self.needs)

    @contextlib.contextmanager
    def prepared(self, quick: bool) -> Iterator[Pair]:
        """Its two functions, while its buffers exist."""
        with tempfile.TemporaryDirectory() as directory, self.setup(Path(directory), quick) as pair:
            yield pair


def capacity_of(workload: Workload, quick: bool) -> int:
    """The number of frames in a buffer."""
    return workload.quick_capacity if quick else workload.capacity


def of_states(setup: Setup):
    """A comparison with NumPy, in one of the two sizes."""
    return lambda directory, quick: setup(directory, capacity_of(STATE, quick))


def sparse_buffer(directory, workload, capacity):
    """A full buffer of zeros with real episodes, made quickly at any capacity.

    Only the columns that tell episodes apart are written; the others are holes in their files.
    """
    directory.mkdir(parents=True)
    frames = np.arange(capacity)
    (frames // EPISODE).tofile(directory / "episode_index")
    (frames % EPISODE / FPS).tofile(directory / "timestamp")
    np.ones(capacity, bool).tofile(directory / "_occupancy_mask")
    np.zeros(1, np.int64).tofile(directory / "_next_index")
    for key, field in all_fields(workload.spec).items():
        with (directory / key).open("ab") as file:
            file.truncate(field_bytes(field) * capacity)
    return OnlineBuffer(directory, workload.spec, capacity, FPS, workload.deltas, output="numpy")


def columns_in_memory(directory, workload):
    """Copies of the columns of a buffer."""
    return {key: np.array(column) for key, column in memmaps(directory, workload).items()}


@contextlib.contextmanager
def batch_against_torchrl(directory, quick):
    """256 random windows, of up to 16 frames, and 256 slices of 16 frames."""
    capacity = capacity_of(STATE, quick)
    buffer = filled_buffer(directory / "b", STATE, capacity)
    data = columns_in_memory(directory / "b", STATE)
    theirs = contenders.torchrl_slices(directory / "t", data, STATE.batch, 16)
    yield Pair(lambda: buffer.sample(STATE.batch), theirs)


@contextlib.contextmanager
def frames_against_cpprb(directory, quick):
    """256 single frames."""
    capacity = capacity_of(STATE, quick)
    buffer = filled_buffer(directory / "b", STATE, capacity)
    buffer.set_delta_timestamps(None)
    data = columns_in_memory(directory / "b", STATE)
    yield Pair(lambda: buffer.sample(STATE.batch), contenders.cpprb_frames(data, STATE.batch))


def large_against_small(work):
    """The work that `work` makes of a buffer, on one of 100M frames and on one of 10k."""

    @contextlib.contextmanager
    def setup(directory, quick):
        large = sparse_buffer(directory / "large", STATE, 1_000_000 if quick else 100_000_000)
        small = sparse_buffer(directory / "small", STATE, 10_000)
        yield Pair(work(large), work(small))

    return setup


def read_batches(buffer):
    """A function that reads one batch of states after the other."""
    return in_turn(buffer.get_batch, random_batches(len(buffer), STATE.batch))


def read_items(buffer):
    """A function that reads one item after the other."""
    indices = [int(batch[0]) for batch in random_batches(len(buffer), 1)]
    return in_turn(buffer.__getitem__, indices)


def insert_states(buffer):
    """A function that inserts one episode of states after the other."""
    return insert_into(buffer, STATE)


def images_against_memcpy(threads):
    """Windows of images, and a copy of as many bytes that lie together."""

    @contextlib.contextmanager
    def setup(directory, quick):
        capacity = capacity_of(IMAGES, quick)
        filled_buffer(directory / "b", IMAGES, capacity).close()
        with environment("FASTBUFFER_NUM_THREADS", str(threads)):
            buffer = OnlineBuffer(directory / "b", delta_timestamps=IMAGES.deltas, output="numpy")
        out = buffer.empty_batch(IMAGES.batch)
        size = sum(value.nbytes for value in out.values())
        source = memmaps(directory / "b", IMAGES)["observation.image"].reshape(-1)
        target = np.zeros(size, np.uint8)
        starts = np.random.default_rng(2).integers(0, len(source) - size, 64)
        yield Pair(
            in_turn(
                lambda batch: buffer.get_batch(batch, out=out),
                random_batches(capacity, IMAGES.batch),
            ),
            in_turn(lambda start: np.copyto(target, source[start : start + size]), starts),
        )

    return setup


@contextlib.contextmanager
def image_insert_against_memcpy(directory, quick):
    """One episode of images, and a copy of as many bytes into a mapping that was written before."""
    capacity = capacity_of(IMAGES, quick)
    buffer = filled_buffer(directory / "b", IMAGES, capacity)
    size = IMAGES.row_bytes() * EPISODE
    count = capacity // EPISODE
    target = np.memmap(directory / "m", np.uint8, "w+", shape=(count, size))
    target[...] = 1
    source = np.ones(size, np.uint8)
    yield Pair(
        insert_into(buffer, IMAGES),
        in_turn(lambda row: np.copyto(target[row], source), range(count)),
    )


@contextlib.contextmanager
def recording_against_dicts(directory, quick):
    """One episode of states, frame by frame, and appended to a list as dicts of copies."""
    buffer = OnlineBuffer(directory / "b", STATE.spec, capacity_of(STATE, quick), 50)
    recorder = EpisodeRecorder(buffer)
    episode = episodes(STATE, 1)
    frames = [{key: episode[key][i] for key in STATE.spec} for i in range(EPISODE)]

    def ours():
        for frame in frames:
            recorder.add_frame(frame)
        recorder.discard_episode()

    def theirs():
        recorded = []
        for frame in frames:
            recorded.append({key: np.array(value) for key, value in frame.items()})

    yield Pair(ours, theirs)


@contextlib.contextmanager
def weights_against_masks(directory, quick):
    """Weights that leave out the last 16 frames of each episode."""
    buffer = filled_buffer(directory / "b", STATE, capacity_of(STATE, quick))
    numbers = buffer.get_data_by_key("episode_index")
    yield Pair(
        lambda: compute_sampler_weights(None, 0, buffer, 1.0, 16),
        lambda: contenders.per_episode_weights(numbers, 16),
    )


def sampler_against_multinomial(make):
    """256 positions, drawn by the sampler and weights that `make` makes of a buffer of states."""

    @contextlib.contextmanager
    def setup(directory, quick):
        import torch

        buffer = filled_buffer(directory / "b", STATE, capacity_of(STATE, quick))
        sampler, weights = make(buffer)
        batches = chain.from_iterable(repeat(sampler.batches(256, drop_last=True)))
        tensor = torch.as_tensor(weights)
        yield Pair(
            lambda: next(batches),
            lambda: torch.multinomial(tensor, 256, replacement=True),
        )

    return setup


def weighted(buffer):
    """By any weights."""
    weights = np.random.default_rng(0).random(len(buffer))
    return WeightedSampler(weights, 2**40), weights


def by_episode(buffer):
    """Without the last 16 frames of each episode."""
    weights = compute_sampler_weights(None, 0, buffer, 1.0, 16)
    return EpisodeSampler(buffer, 0, 16), weights


def mixed(buffer):
    """The same, as the only side that has anything."""
    weights = compute_sampler_weights(None, 0, buffer, 1.0, 16)
    sampler = MixedSampler(None, buffer, 1.0, online_drop_n_last_frames=16, num_samples=2**40)
    return sampler, weights


def priorities_against(contender, work):
    """`work` of a function that draws 256 positions and one that changes 256 priorities."""

    @contextlib.contextmanager
    def setup(directory, quick):
        buffer = filled_buffer(directory / "b", STATE, capacity_of(STATE, quick))
        random = np.random.default_rng(0)
        priorities = random.random(len(buffer)) + 0.01
        sampler = PrioritizedSampler(buffer)
        sampler.update(range(len(buffer)), priorities)
        draw, update = contender(priorities, 256)
        batches = random_batches(len(buffer), 256)
        changes = [(batch, random.random(256) + 0.01) for batch in batches]
        yield Pair(
            work(lambda: sampler.sample(256), sampler.update, changes), work(draw, update, changes)
        )

    return setup


def drawing(draw, update, changes):
    """One draw after the other."""
    return draw


def updating(draw, update, changes):
    """One change after the other."""
    return in_turn(lambda change: update(*change), changes)


def training(draw, update, changes):
    """A draw and a change, in turns."""
    turns = cycle(changes)

    def step():
        draw()
        update(*next(turns))

    return step


@contextlib.contextmanager
def reopening_against_scan(directory, quick):
    """Opening, and reading the two columns that tell where episodes are."""
    filled_buffer(directory / "b", STATE, capacity_of(STATE, quick)).close()

    def scan():
        for key, dtype in (("episode_index", np.int64), ("timestamp", np.float64)):
            np.memmap(directory / "b" / key, dtype, "r").sum()

    yield Pair(lambda: OnlineBuffer(directory / "b", output="numpy"), scan)


@contextlib.contextmanager
def synthetic_against_appending(directory, quick):
    """Datasets of 64 pixels and 60 frames; a longer one by fastbuffer, as the other is slow."""
    ours, theirs = (4, 2) if quick else (2000, 100)
    stores = [directory / "ours.zarr", directory / "theirs.zarr"]
    small = SyntheticSchema(stores[0], num_episodes=2)
    create_replay_buffer_from_synthetic(small)
    contenders.synthetic_by_appending(stores[1], small)
    groups = [zarr.open_group(store, mode="r") for store in stores]
    for name, array in groups[1].members(max_depth=None):
        if isinstance(array, zarr.Array):
            np.testing.assert_array_equal(groups[0][name][...], array[...], err_msg=name)
    places = (directory / f"{number}.zarr" for number in count())  # new ones, for both
    yield Pair(
        lambda: create_replay_buffer_from_synthetic(
            SyntheticSchema(next(places), num_episodes=ours)
        ),
        lambda: contenders.synthetic_by_appending(
            next(places), SyntheticSchema(stores[1], num_episodes=theirs)
        ),
        scale=ours / theirs,
    )


@contextlib.contextmanager
def import_against_numpy(directory, quick):
    """What a new Python process takes to import the package, and NumPy."""

    def importing(module):
        return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    yield Pair(importing("fastbuffer"), importing("numpy"))


@contextlib.contextmanager
def environment(name, value):
    """An environment variable, for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


VECTORISED = of_states(batch_against(VectorisedNumpyReader, STATE, "numpy"))
VECTORISED_TORCH = of_states(batch_against(VectorisedNumpyReader, STATE, "torch"))
TAKING = of_states(batch_against(TakingNumpyReader, STATE, "numpy"))
ROWS = [
    Row("S: batch of 256, NumPy", "vectorised NumPy", 5, VECTORISED),
    Row("S: batch of 256, torch", "vectorised NumPy", 5, VECTORISED_TORCH, ("torch",)),
    Row("S: batch of 256, NumPy", "vectorised NumPy, take", None, TAKING),
    Row("S: batch of 256, NumPy", "per-item NumPy", 2000, of_states(batch_against_items)),
    Row("S: sample of 256", "torchrl slices", 20, batch_against_torchrl, ("torch", "torchrl")),
    Row("S: sample of 256 single frames", "cpprb", None, frames_against_cpprb, ("cpprb",)),
    Row("S: batch of 256, of 100M frames", "of 10k frames", 0.5, large_against_small(read_batches)),
    Row("S: buffer[i], of 100M frames", "of 10k frames", 0.5, large_against_small(read_items)),
    Row("S: add_data, of 100M frames", "of 10k frames", 0.5, large_against_small(insert_states)),
    Row("I: batch of 64, 1 thread", "memcpy", 0.9, images_against_memcpy(1)),
    Row("I: batch of 64, 2 threads", "memcpy", 1.4, images_against_memcpy(2)),
    Row("S: buffer[i], torch", "per-item NumPy", 40, of_states(item_against_item)),
    Row("S: add_data, one episode", "np.memmap slices", 8, of_states(insert_against_slices)),
    Row("I: add_data, one episode", "memcpy", 0.9, image_insert_against_memcpy),
    Row("S: add_frame, one episode", "appended dicts", 0.5, recording_against_dicts),
    Row("S: compute_sampler_weights", "mask per episode", 500, weights_against_masks),
    *(
        Row(
            f"{sampler}: 256 of 1M",
            "torch.multinomial",
            10,
            sampler_against_multinomial(make),
            ("torch",),
        )
        for sampler, make in [
            ("WeightedSampler", weighted),
            ("EpisodeSampler", by_episode),
            ("MixedSampler", mixed),
        ]
    ),
    *(
        Row(
            f"PrioritizedSampler: {what} of 1M",
            against,
            required,
            priorities_against(contender, work),
            (against,),
        )
        for what, work in [
            ("draw 256", drawing),
            ("update 256", updating),
            ("both", training),
        ]
        for against, required, contender in [
            ("torchrl", 10, contenders.torchrl_priorities),
            ("cpprb", 1, contenders.cpprb_priorities),
        ]
    ),
    *(
        Row(
            f"LeRobot: epoch of {what}, {num_workers} workers",
            "LeRobotDataset",
            None,
            setup(num_workers),
            ("lerobot", "torch", "cv2", "matplotlib"),
        )
        for what, setup in [
            ("states", policy_batches.epoch_of_states),
            ("images", policy_batches.epoch_of_images),
            ("videos", policy_batches.epoch_of_videos),
        ]
        for num_workers in (0, 2)
    ),
    Row("S: reopening", "scan of two columns", 0.5, reopening_against_scan),
    Row(
        "synthetic dataset",
        "append per episode",
        30,
        synthetic_against_appending,
        ("cv2", "matplotlib"),
    ),
    Row("import fastbuffer", "import numpy", None, import_against_numpy, allowance=0.060),
]
