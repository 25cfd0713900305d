"""Compare fastbuffer with plain NumPy, each pair within one run: `python benches/compare.py`."""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from contenders import PerItemNumpyBuffer, per_episode_weights

from fastbuffer import OnlineBuffer, compute_sampler_weights

FPS = 50
EPISODE = 250
BATCH = 256
SPEC = {
    "observation.state": {"shape": (14,), "dtype": np.float32},
    "action": {"shape": (14,), "dtype": np.float32},
    "next.reward": {"shape": (), "dtype": np.float32},
    "next.done": {"shape": (), "dtype": bool},
}
DELTAS = {"observation.state": [-1 / FPS, 0.0], "action": [i / FPS for i in range(16)]}


def episodes(count):
    """`count` episodes of `EPISODE` frames as one insert."""
    n = count * EPISODE
    rng = np.random.default_rng(0)
    frame_index = np.tile(np.arange(EPISODE), count)
    return {
        "index": np.arange(n),
        "frame_index": frame_index,
        "episode_index": np.repeat(np.arange(count), EPISODE),
        "timestamp": frame_index / FPS,
        "observation.state": rng.standard_normal((n, 14), np.float32),
        "action": rng.standard_normal((n, 14), np.float32),
        "next.reward": rng.standard_normal(n, np.float32),
        "next.done": np.zeros(n, bool),
    }


def median_seconds(work, repeats):
    """The median time of `work()`, after one call that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def add_one(buffer):
    """A function that inserts one more episode, with numbers that start at 0 again."""
    episode = episodes(1)
    numbers = {key: episode[key].copy() for key in ("index", "episode_index")}

    def work():
        buffer.add_data(episode | {key: value.copy() for key, value in numbers.items()})

    return work


def check_same(ours, theirs, indices):
    """Refuse to time contenders that disagree."""
    batch = ours[indices]
    for row, i in enumerate(indices):
        for key, value in theirs[i].items():
            np.testing.assert_array_equal(batch[key][row], value, err_msg=key)


def main():
    """Print one row per comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=1_000_000, help="frames")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        arguments = (SPEC, options.capacity, FPS, DELTAS)
        ours = OnlineBuffer(Path(directory) / "ours", *arguments, output="numpy")
        theirs = PerItemNumpyBuffer(Path(directory) / "theirs", *arguments)
        data = episodes(options.capacity // EPISODE)
        for buffer in (ours, theirs):
            buffer.add_data({key: value.copy() for key, value in data.items()})
        indices = np.random.default_rng(1).integers(0, len(ours), BATCH)
        check_same(ours, theirs, indices[:4])
        rows = [
            (
                f"batch of {BATCH} windows / per-item NumPy",
                median_seconds(lambda: ours[indices], options.repeats),
                median_seconds(lambda: [theirs[i] for i in indices[:4]], 3) * BATCH / 4,
            ),
            (
                "add_data of one episode / np.memmap assignment",
                median_seconds(add_one(ours), options.repeats * 10),
                median_seconds(add_one(theirs), options.repeats * 10),
            ),
            (
                "compute_sampler_weights / one mask per episode",
                median_seconds(
                    lambda: compute_sampler_weights(None, 0, ours, 1.0, 16), options.repeats
                ),
                median_seconds(lambda: per_episode_weights(data["episode_index"], 16), 1),
            ),
        ]
    print(f"{'':48}{'fastbuffer':>12}{'NumPy':>12}{'ratio':>10}")
    for name, our_time, their_time in rows:
        ratio = their_time / our_time
        print(f"{name:48}{our_time * 1e6:10.0f}us{their_time * 1e6:10.0f}us{ratio:9.1f}x")


if __name__ == "__main__":
    main()
