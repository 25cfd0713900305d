"""A directory written in format version 1 opens and reads the same for ever; never regenerate it.

It holds 12 frames, of episodes of 4, 3 and 5, in a capacity of 10: the first two are overwritten.
Frame s holds s and -s under `state`, s in each byte of `image/top`, and whether it is its episode's
last under `done`.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from helpers import snapshot

V1 = Path(__file__).parent / "data" / "v1"
IN_SLOT_ORDER = np.array([10, 11, 2, 3, 4, 5, 6, 7, 8, 9])


@pytest.fixture
def directory(tmp_path):
    return Path(shutil.copytree(V1, tmp_path / "v1"))


def test_its_frames_are_read(directory):
    before = snapshot(directory)
    buffer = OnlineBuffer(directory, output="numpy")
    assert (buffer.num_frames, buffer.num_episodes, buffer.buffer_capacity) == (10, 3, 10)
    assert buffer.fps == 5
    np.testing.assert_array_equal(buffer.get_data_by_key("index"), IN_SLOT_ORDER)
    np.testing.assert_array_equal(
        buffer.get_data_by_key("state"), np.stack([IN_SLOT_ORDER, -IN_SLOT_ORDER], axis=1)
    )
    assert (buffer[:]["image/top"] == IN_SLOT_ORDER[:, None, None, None]).all()
    np.testing.assert_array_equal(
        buffer.get_data_by_key("done"), np.isin(IN_SLOT_ORDER, [3, 6, 11])
    )
    assert snapshot(directory) == before


def test_its_wrapped_episode_is_whole(directory):
    buffer = OnlineBuffer(directory, delta_timestamps={"index": [-0.8, 0, 0.2]}, output="numpy")
    assert buffer[1]["index"].tolist() == [7, 11, 11]
    assert buffer[1]["index_is_pad"].tolist() == [False, False, True]


def test_it_is_continued(directory):
    with OnlineBuffer(directory, output="numpy") as buffer:
        data = {key: value[:1].copy() for key, value in buffer[:].items()}
        data |= {"index": np.array([0]), "episode_index": np.array([0])}
        buffer.add_data(data)
        assert (data["index"][0], data["episode_index"][0]) == (12, 3)
        assert buffer.get_data_by_key("index")[2] == 12
