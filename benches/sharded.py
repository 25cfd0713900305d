"""What a sharded buffer does on two local Ray nodes: `python -m benches.sharded`.

Both nodes are on this machine, so nothing crosses a network: the figures are what processors and
memory allow. `docs/ray.md` computes with them.
"""

import argparse
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import ray
from ray.cluster_utils import Cluster

from fastbuffer import PrioritizedSampler
from fastbuffer.benchmark.measuring import timed
from fastbuffer.benchmark.workloads import (
    EPISODE,
    FPS,
    IMAGES,
    STATE,
    Workload,
    episodes,
    fill,
    unshifted,
)
from fastbuffer.ray import ShardedBuffer

SHARDS = 2
NODES = 2
OBJECT_STORE = 500_000_000


@contextmanager
def cluster() -> Iterator[None]:
    """A Ray cluster on this machine."""
    node = {"num_cpus": 1, "object_store_memory": OBJECT_STORE}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    for _ in range(NODES - 1):
        cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def tell(what: str, seconds: float, size: int | None = None) -> None:
    """One line of the table."""
    rate = "" if size is None else f"{size / seconds / 1e6:,.0f}"
    print(f"| {what:<44} | {seconds * 1e3:>9,.2f} | {rate:>7} |", flush=True)


def median(work: Callable[[], object], seconds: float) -> float:
    """The median time of a call, after one that is not timed."""
    work()
    return statistics.median(timed(work, seconds))


def processor_time(work: Callable[[], object], calls: int) -> float:
    """How long this process's own threads are at work for a call."""
    begun = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - begun) / calls


def together(work: Callable[[], object], threads: int, seconds: float) -> float:
    """The time per call where several threads call."""
    end = time.perf_counter() + seconds
    counts = [0] * threads

    def run(thread: int) -> None:
        while time.perf_counter() < end:
            work()
            counts[thread] += 1

    running = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    begun = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return (time.perf_counter() - begun) / sum(counts)


def measure(name: str, workload: Workload, capacity: int, seconds: float) -> None:
    """All rows of a workload."""
    with tempfile.TemporaryDirectory(prefix="fastbuffer-") as directory:
        buffer = ShardedBuffer(
            *(SHARDS, directory, workload.spec, capacity, FPS, workload.deltas), output="numpy"
        )
        with buffer:
            fill(buffer, workload, capacity)
            measure_adds(name, buffer, workload, seconds)
            measure_reads(name, buffer, workload, seconds)
            if workload is STATE:
                measure_priorities(name, buffer, workload.batch, seconds)
                measure_restart(name, buffer)


def measure_adds(name: str, buffer: ShardedBuffer, workload: Workload, seconds: float) -> None:
    """Inserts of one episode."""
    data = episodes(workload, 1)
    size = EPISODE * workload.row_bytes()

    def add() -> None:
        buffer.add_data(unshifted(data))

    tell(f"{name}: add_data, one episode", median(add, seconds), size)
    tell(f"{name}: add_data, 4 threads", together(add, 4, seconds), size)
    tell(f"{name}: add_data, processor time", processor_time(add, 50))


def measure_reads(name: str, buffer: ShardedBuffer, workload: Workload, seconds: float) -> None:
    """Batches of all shards, and of the one on this node."""
    count = workload.batch
    generator = np.random.default_rng(0)

    def sample() -> dict[str, object]:
        return buffer.sample(count, generator=generator)

    size = sum(np.asarray(value).nbytes for value in sample().values())
    print(f"# {name}: a batch of {count} has {size:,} bytes")
    tell(f"{name}: sample({count})", median(sample, seconds), size)
    tell(f"{name}: sample({count}), processor time", processor_time(sample, 50))
    tell(f"{name}: get_batch of one frame", median(lambda: buffer.get_batch([0]), seconds))
    # As many as a batch of 256 has from 100 shards; here two shards answer them all.
    shards, steps = buffer._shards, {"n_step": None, "gamma": None}
    part = np.arange(3)

    def ask_100() -> object:
        return shards.results(
            [shards.start(k % SHARDS, "read", part, 0, steps) for k in range(100)]
        )

    tell(f"{name}: 100 parts of 3 frames", median(ask_100, seconds))
    tell(f"{name}: 100 parts, processor time", processor_time(ask_100, 20))
    loader = buffer.loader(count, shuffle=True, drop_last=True, prefetch=4)
    batches = chain.from_iterable(repeat(loader))
    tell(f"{name}: loader({count}), 4 ahead", median(partial(next, batches), seconds), size)
    shard = buffer.nearest()
    near = median(lambda: shard.sample(count, generator=generator), seconds)
    tell(f"{name}: nearest().sample({count})", near, size)


def measure_priorities(name: str, buffer: ShardedBuffer, count: int, seconds: float) -> None:
    """A draw, and an update of what was drawn."""
    sampler = PrioritizedSampler(buffer)
    tell(f"{name}: draw {count} by priority", median(lambda: sampler.sample(count), seconds))
    positions, _ = sampler.sample(count)
    numbers = np.random.default_rng(0).random(count)
    tell(f"{name}: update {count}", median(lambda: sampler.update(positions, numbers), seconds))


def measure_restart(name: str, buffer: ShardedBuffer) -> None:
    """From the end of a shard's process to the next answer."""

    def kill() -> float:
        actor = buffer._shards.places[0].actor
        process = ray.get(actor.__ray_call__.remote(lambda shard: os.getpid()))
        begun = time.perf_counter()
        os.kill(process, signal.SIGKILL)
        buffer.get_batch([0])
        return time.perf_counter() - begun

    tell(f"{name}: a shard is killed, until it answers", statistics.median(kill() for _ in "abc"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only see whether all of it runs")
    quick = parser.parse_args().quick
    # Actors import what this process does.
    paths = filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    with cluster():
        print(f"| {'what':<44} | {'ms':>9} | {'MB/s':>7} |")
        print(f"| {'-' * 44} | {'-' * 9} | {'-' * 7} |")
        for name, workload in (("S", STATE), ("I", IMAGES)):
            capacity = workload.quick_capacity if quick else workload.capacity // 4
            measure(name, workload, capacity, 0.2 if quick else 3.0)


if __name__ == "__main__":
    main()
