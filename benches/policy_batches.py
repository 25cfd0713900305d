"""Batches for a policy of LeRobot: by its own dataset and by a buffer, through a DataLoader."""

import contextlib

import numpy as np

from benches import contenders
from fastbuffer import OnlineBuffer, SyntheticSchema, create_replay_buffer_from_synthetic
from fastbuffer.benchmark.measuring import Pair, check_same
from fastbuffer.benchmark.workloads import EPISODE, FPS, STATE, filled_buffer

BATCH = 64
#: Two observations and 16 actions.
DELTAS = {"agentview_rgb": [-1 / FPS, 0.0], "synthetic_position_action": STATE.deltas["action"]}


def epoch_of_states(num_workers):
    """An epoch over numbers only."""

    def dataset(directory, episodes):
        buffer = filled_buffer(directory / "states", STATE, episodes * EPISODE)
        buffer.to_lerobot_dataset("bench/states", directory / "d", task="none")
        return contenders.lerobot_dataset(directory / "d", STATE.deltas)

    return _epoch(dataset, num_workers)


def epoch_of_images(num_workers):
    """An epoch over drawn images of 96 pixels, which LeRobot keeps as PNG files in Parquet."""

    def dataset(directory, episodes):
        _drawn(directory, episodes).to_lerobot_dataset("bench/i", directory / "d", task="none")
        return contenders.lerobot_dataset(directory / "d", DELTAS)

    return _epoch(dataset, num_workers)


def epoch_of_videos(num_workers):
    """An epoch over the same images, in videos of LeRobot's default codec."""

    def dataset(directory, episodes):
        contenders.record_lerobot_videos(directory / "d", _drawn(directory, episodes), FPS)
        return contenders.lerobot_dataset(directory / "d", DELTAS)

    return _epoch(dataset, num_workers)


def _drawn(directory, episodes):
    schema = SyntheticSchema(
        directory / "s.zarr", num_episodes=episodes, trajectory_length=EPISODE, image_size=96
    )
    create_replay_buffer_from_synthetic(schema)
    return OnlineBuffer.from_zarr(schema.zarr_path, directory / "drawn", fps=FPS)


def _epoch(make_dataset, num_workers):
    @contextlib.contextmanager
    def setup(directory, quick):
        import torch

        from fastbuffer.io.lerobot import as_lerobot

        dataset = make_dataset(directory, 1 if quick else 4)
        buffer = OnlineBuffer.from_lerobot_dataset(dataset, directory / "b")
        for i in np.linspace(0, len(buffer) - 1, 5).astype(int).tolist():
            check_same(as_lerobot(buffer[i]), {k: v for k, v in dataset[i].items() if k != "task"})
        arguments = {
            "batch_size": BATCH,
            "shuffle": True,
            "num_workers": num_workers,
            "persistent_workers": num_workers > 0,
        }
        ours = buffer.loader(**arguments, collate_fn=as_lerobot)
        theirs = torch.utils.data.DataLoader(dataset, **arguments)
        yield Pair(lambda: list(map(len, ours)), lambda: list(map(len, theirs)))

    return setup
