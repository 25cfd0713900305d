"""Episodes recorded frame by frame are those that add_data would have been given."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbuffer import EpisodeRecorder, OnlineBuffer
from helpers import SPEC, assert_equal, make_episodes, refused_with, run_python


def frames(episode):
    return [
        {key: episode[key][i] for key in [*SPEC, "timestamp"]} for i in range(len(episode["index"]))
    ]


def columns(buffer):
    return {key: buffer.get_data_by_key(key) for key in buffer.data_keys}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    episodes=st.lists(st.tuples(st.integers(1, 150), st.booleans()), max_size=6),
    capacity=st.integers(1, 200),
    given_time=st.booleans(),
)
def test_recorded_episodes_are_those_that_were_added(
    tmp_path_factory, episodes, capacity, given_time
):
    recorded, added = (
        OnlineBuffer(tmp_path_factory.mktemp("b"), SPEC, capacity, 10, output="numpy")
        for _ in range(2)
    )
    rng = np.random.default_rng(0)
    for length, is_kept in episodes:
        episode = make_episodes([length], SPEC, rng)
        if given_time:
            episode["timestamp"] = np.sort(rng.random(length))
        for frame in frames(episode):
            if not given_time:
                del frame["timestamp"]
            recorded.add_frame(frame)
        if is_kept:
            recorded.save_episode()
            added.add_data(episode)
        else:
            recorded.discard_episode()
        assert_equal(columns(recorded), columns(added))


def made(directory, spec=None, fps=10):
    spec = {"x": {"shape": (2,), "dtype": np.float32}} if spec is None else spec
    return OnlineBuffer(directory, spec, 20, fps, output="numpy")


def test_a_frame_is_copied(tmp_path):
    buffer = made(tmp_path)
    value = np.zeros(2)
    for i in range(3):
        value[:] = i
        buffer.add_frame({"x": value})
    buffer.save_episode()
    assert buffer.get_data_by_key("x")[:, 0].tolist() == [0, 1, 2]


def test_lists_numbers_and_tensors_are_frames_too(torch, tmp_path):
    spec = {"n": {"shape": (), "dtype": np.int16}, "x": {"shape": (2,), "dtype": np.float32}}
    buffer = made(tmp_path, spec)
    buffer.add_frame({"n": 1, "x": [0.5, 1]})
    buffer.add_frame({"n": np.int8(2), "x": torch.ones(2, requires_grad=True)})
    buffer.add_frame({"n": torch.tensor(3), "x": np.ones(2, np.float16)})
    buffer.save_episode()
    assert buffer.get_data_by_key("n").tolist() == [1, 2, 3]


def test_recorders_have_an_episode_each(tmp_path):
    buffer = made(tmp_path)
    recorders = [EpisodeRecorder(buffer) for _ in range(2)]
    for i in range(4):
        for which, recorder in enumerate(recorders):
            recorder.add_frame({"x": [which, i]})
    recorders[0].discard_episode()
    assert [recorder.num_frames for recorder in recorders] == [0, 4]
    recorders[0].add_frame({"x": [7, 7]})
    for recorder in reversed(recorders):
        recorder.save_episode()
    assert buffer.get_data_by_key("x").tolist() == [[1, 0], [1, 1], [1, 2], [1, 3], [7, 7]]
    assert buffer.get_data_by_key("episode_index").tolist() == [0, 0, 0, 0, 1]
    assert buffer.get_data_by_key("frame_index").tolist() == [0, 1, 2, 3, 0]


def test_a_frame_that_does_not_fit_is_left_out(tmp_path):
    buffer = made(tmp_path)
    buffer.add_frame({"x": [0, 0]})
    for said, frame in [
        (r"frame: expected the keys \['x'\], got \['x'\] missing", {}),
        (r"frame: expected .*, got \[\] missing, \['y'\] in addition", {"x": [0, 0], "y": 1}),
        (r"\['index'\] in addition", {"x": [0, 0], "index": 3}),
        (r"frame\['x'\]: expected float32 of shape \(2,\), got .* \(3,\)", {"x": [0, 0, 0]}),
        (r"frame\['x'\]: expected float32", {"x": 0}),
        (r"frame\['x'\]: expected float32", {"x": np.zeros(2, complex)}),
        (r"frame\['x'\]: expected", {"x": ["a", "b"]}),
        (r"frame\['x'\]: expected", {"x": [[1], [1, 2]]}),
        (r"frame\['timestamp'\]: expected finite", {"x": [0, 0], "timestamp": np.nan}),
        (r"frame\['timestamp'\]: expected float64", {"x": [0, 0], "timestamp": [0.1]}),
    ]:
        refused_with(said, buffer.add_frame, frame)
    for frame in (None, 3, [("x", [0, 0])]):
        with pytest.raises(TypeError, match="frame: expected a dict"):
            buffer.add_frame(frame)
    buffer.save_episode()
    assert len(buffer) == 1
    refused_with("episode: expected at least one frame", buffer.save_episode)
    untimed = made(tmp_path / "b", fps=None)
    refused_with(
        "frame: expected the key 'timestamp', as the buffer has no fps, got none",
        untimed.add_frame,
        {"x": [0, 0]},
    )
    reader = OnlineBuffer(tmp_path, mode="r")
    for refused in (reader.save_episode, lambda: EpisodeRecorder(reader)):
        with pytest.raises(OSError, match='mode="a"'):
            refused()


def test_an_episode_stays_where_it_cannot_be_saved(tmp_path):
    buffer = made(tmp_path)
    for i in range(5):
        buffer.add_frame({"x": [i, i]})
    holder = """if True:
        import sys, numpy as np
        from fastbuffer import BufferLockedError, OnlineBuffer
        buffer = OnlineBuffer(sys.argv[1])
        buffer.add_frame({"x": [9, 9]})
        try:
            buffer.save_episode()
        except BufferLockedError:
            print("locked")
    """
    with made(tmp_path) as other:
        other.add_frame({"x": [8, 8]})
        other.save_episode()
        assert "locked" in run_python(holder, tmp_path)
    buffer.save_episode()
    assert buffer.get_data_by_key("x")[:, 0].tolist() == [8, 0, 1, 2, 3, 4]


def test_a_killed_recording_loses_its_episode_only(tmp_path):
    code = """if True:
        import os, sys
        from fastbuffer import OnlineBuffer
        buffer = OnlineBuffer(sys.argv[1])
        for i in range(6):
            buffer.add_frame({"x": [i, i]})
            if i == 3:
                buffer.save_episode()
        os.kill(os.getpid(), 9)
    """
    made(tmp_path).close()
    with pytest.raises(AssertionError):
        run_python(code, tmp_path)
    buffer = OnlineBuffer(tmp_path, output="numpy")
    assert buffer.get_data_by_key("x")[:, 0].tolist() == [0, 1, 2, 3]
    assert buffer.verify() == []


def test_a_buffer_that_records_is_freed_as_any_other(tmp_path):
    buffer = made(tmp_path)
    buffer.add_frame({"x": [0, 0]})
    gone = weakref.ref(buffer)
    gc.disable()
    try:
        del buffer
        assert gone() is None
    finally:
        gc.enable()
