"""Windows: which frame answers a query, and what counts as padding, wherever the episode lies."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastbuffer import OnlineBuffer, TimestampToleranceError
from helpers import SPEC, Pair, assert_equal, check_read, make_episodes

FPS = 10
ID = {"id": {"shape": (), "dtype": np.int64}}


def id_pair(directory, capacity, deltas=(), fps=FPS):
    """A pair whose only key is a frame's number over all calls, with a window of `deltas`."""
    return Pair(directory, ID, capacity, fps, {"id": list(deltas)})


def add_ids(pair, lengths, times=None):
    """Add episodes whose ids continue those in the pair; `times` replaces the uniform ones."""
    data = make_episodes(lengths, {}, np.random.default_rng(0), FPS)
    data["id"] = data["index"] + len(pair.model.frames)
    if times is not None:
        data["timestamp"] = np.asarray(times, dtype=np.float64)
    pair.add(data)


def window(buffer, i):
    """The ids and the padding of the i-th item, as lists."""
    item = buffer[i]
    return item["id"].tolist(), item["id_is_pad"].tolist()


# Wrapping around the end of the buffer


def test_999_frame_episodes_in_capacity_1000_stay_whole(tmp_path):
    deltas = [k / FPS for k in range(4)]
    pair = id_pair(tmp_path, 1000, deltas)
    for _ in range(5):
        add_ids(pair, [999])
        batch = pair.buffer[:]
        offsets = batch["id"] - batch["id"][:, :1]
        last = pair.model.frames[-1]["id"]
        for row in range(len(pair.buffer)):
            # All four frames, or fewer at the end of the episode: the newest one's or the
            # single frame that is left of the one before.
            first = batch["id"][row, 0]
            left = 1 if first == last - 999 else last - first + 1
            assert offsets[row].tolist() == [min(k, left - 1) for k in range(4)]
            assert batch["id_is_pad"][row].tolist() == [k >= left for k in range(4)]


def test_the_last_frame_of_every_episode_is_reachable_and_padded_right(tmp_path, rng):
    deltas = {"action": [0.0, 0.1, 0.2], "image": [-0.1, 0.0]}
    pair = Pair(tmp_path, SPEC, 12, FPS, deltas)
    for lengths in ([5], [4, 3], [1, 1, 6], [7]):
        pair.add(make_episodes(lengths, SPEC, rng, FPS))
        ends = [i for i, kept in enumerate(pair.model.kept(1)) if not kept]
        assert len(ends) == pair.buffer.num_episodes
        for i in ends:
            item = pair.buffer[i]
            assert item["action_is_pad"].tolist() == [False, True, True]
            assert_equal(item["action"], np.stack([item["action"][0]] * 3))
            assert_equal(item["action"][0], pair.buffer.get_data_by_key("action")[i])
        pair.check()


def test_full_windows_of_three_start_at_slots_3_6_and_9_only(tmp_path):
    pair = id_pair(tmp_path, 10, [0, 0.1, 0.2])
    for _ in range(4):
        add_ids(pair, [3])
    episodes = pair.buffer.get_data_by_key("episode_index").tolist()
    assert episodes == [3, 3, 0, 1, 1, 1, 2, 2, 2, 3]
    full = [i for i in range(10) if not pair.buffer[i]["id_is_pad"].any()]
    assert full == [3, 6, 9]
    assert window(pair.buffer, 9)[0] == [9, 10, 11]


def test_the_step_after_the_newest_frame_is_never_the_oldest(tmp_path):
    pair = id_pair(tmp_path, 4, [0, 0.1])
    add_ids(pair, [6])
    newest = pair.buffer.get_data_by_key("id").tolist().index(5)
    assert window(pair.buffer, newest) == ([5, 5], [False, True])


def test_one_call_with_more_frames_than_capacity_keeps_the_newest(tmp_path):
    pair = id_pair(tmp_path, 4, [-0.1, 0])
    add_ids(pair, [3])
    add_ids(pair, [13])
    assert sorted(pair.buffer.get_data_by_key("id").tolist()) == [12, 13, 14, 15]
    pair.check()


@pytest.mark.parametrize("capacity", range(1, 10))
@pytest.mark.parametrize("lengths", [[1], [2], [3], [8], [9], [20], [2, 1, 3], [8, 8]])
def test_small_capacities_against_a_list(tmp_path, capacity, lengths):
    pair = id_pair(tmp_path, capacity, [-0.2, -0.1, 0, 0.1])
    for _ in range(6):
        add_ids(pair, lengths)
        pair.check()


def test_seventeen_ids_in_capacity_8(tmp_path):
    pair = id_pair(tmp_path, 8)
    for _ in range(17):
        add_ids(pair, [1])
    assert pair.buffer.get_data_by_key("id").tolist() == [16, 9, 10, 11, 12, 13, 14, 15]


def test_negative_indices_count_from_the_last_live_frame(tmp_path):
    pair = id_pair(tmp_path, 1000, [0])
    add_ids(pair, [500])
    assert window(pair.buffer, -1)[0] == [499]
    assert window(pair.buffer, -500)[0] == [0]
    for index in (500, -501, [500], [0, -501]):
        with pytest.raises(IndexError, match="500"):
            pair.buffer[index]


def test_an_episode_evicted_by_the_call_that_adds_it(tmp_path):
    pair = id_pair(tmp_path, 5, [-0.1, 0, 0.1])
    add_ids(pair, [2])
    add_ids(pair, [3, 4, 2])
    assert pair.buffer.num_episodes == 2
    pair.check()


def test_an_episode_loses_its_oldest_frames_one_by_one(tmp_path):
    pair = id_pair(tmp_path, 8, [-0.2, -0.1, 0, 0.1])
    add_ids(pair, [8])
    for _ in range(8):
        add_ids(pair, [1])
        pair.check()


# Times


def test_timestamps_that_restart_in_each_episode_do_not_mix(tmp_path):
    pair = id_pair(tmp_path, 20, [-0.1, 0, 0.1])
    for _ in range(5):
        add_ids(pair, [3, 4])
        pair.check()
    for i in range(len(pair.buffer)):
        ids, is_pad = window(pair.buffer, i)
        expected = [ids[1] - 1, ids[1], ids[1] + 1]
        assert all(pad or a == b for a, b, pad in zip(ids, expected, is_pad, strict=True))


def test_a_query_pads_only_beyond_the_tolerance(tmp_path):
    pair = id_pair(tmp_path, 10, [0.05, 0.0998, 0.09995])
    add_ids(pair, [5])
    assert pair.buffer.tolerance_s == 1 / 10 - 1e-4
    assert window(pair.buffer, -1) == ([4, 4, 4], [False, False, True])


def test_jittered_times_give_the_nearest_frames(tmp_path):
    pair = id_pair(tmp_path, 10, [-0.1, 0, 0.1])
    add_ids(pair, [5], [0, 0.098, 0.203, 0.297, 0.41])
    assert window(pair.buffer, 2) == ([1, 2, 3], [False] * 3)


def test_times_stay_exact_late_in_a_long_episode(tmp_path):
    n, fps = 200_000, 30
    pair = id_pair(tmp_path, n, [-1 / fps, 0, 1 / fps], fps=fps)
    add_ids(pair, [n], np.arange(n) / fps)
    assert window(pair.buffer, n - 2) == ([n - 3, n - 2, n - 1], [False] * 3)
    assert window(pair.buffer, n - 1) == ([n - 2, n - 1, n - 1], [False, False, True])
    batch = pair.buffer[np.arange(n - 1000, n - 1)]
    assert_equal(batch["id"] - batch["id"][:, 1:2], np.tile(np.array([[-1, 0, 1]]), (999, 1)))


def test_windows_far_longer_than_the_step_agree_for_item_batch_and_loader(tmp_path, torch):
    pair = id_pair(tmp_path, 600, [-3.5, 0, 3.5])
    add_ids(pair, [300, 300])
    buffer = OnlineBuffer(tmp_path, delta_timestamps={"id": [-3.5, 0, 3.5]}, output="torch")
    loaded = list(torch.utils.data.DataLoader(buffer, batch_size=200))
    batch = buffer[list(range(600))]
    for key in batch:
        assert_equal(torch.cat([part[key] for part in loaded]), to_array(batch[key]))
        assert_equal(torch.stack([buffer[i][key] for i in range(600)]), to_array(batch[key]))
    expected = np.arange(600)[:, None] + np.array([[-35, 0, 35]])
    starts = np.repeat([0, 300], 300)[:, None]
    assert_equal(batch["id"], np.clip(expected, starts, starts + 299))
    assert_equal(batch["id_is_pad"], (expected < starts) | (expected > starts + 299))


def to_array(tensor):
    return tensor.numpy()


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_gap_inside_an_episode_raises(tmp_path, wrapped):
    pair = id_pair(tmp_path, 8, [0, 0.1])
    if wrapped:
        add_ids(pair, [5])
    add_ids(pair, [6], [0, 0.1, 0.2, 0.6, 0.7, 0.8])
    before_gap = pair.buffer.get_data_by_key("frame_index").tolist().index(2, 2 * wrapped)
    pair.check()
    with pytest.raises(TimestampToleranceError):
        pair.buffer[before_gap]
    with pytest.raises(TimestampToleranceError):
        pair.buffer[:]


def test_a_tolerance_error_is_both_kinds_and_says_where(tmp_path):
    pair = id_pair(tmp_path, 20, [0, 0.125])
    add_ids(pair, [4, 3])
    add_ids(pair, [4], [0, 0.5, 1, 1.5])
    for kind in (TimestampToleranceError, ValueError, AssertionError):
        with pytest.raises(kind) as raised:
            pair.buffer[8]
    for part in (r"episode\D*2\b", r"\b0\.625\b", r"\b0\.125\b"):  # episode, query and distance
        raised.match(part)


def test_tolerance_and_deltas_read_back(tmp_path):
    buffer = id_pair(tmp_path, 5, [-0.1, 0]).buffer
    assert_equal(buffer.delta_timestamps, {"id": np.array([-0.1, 0])})
    buffer.tolerance_s = 0.25
    assert buffer.tolerance_s == 0.25
    buffer.set_delta_timestamps({"index": [0.3]})
    assert_equal(buffer.delta_timestamps, {"index": np.array([0.3])})
    assert buffer.tolerance_s == 0.25
    buffer.set_delta_timestamps(None)
    assert buffer.delta_timestamps is None


def test_the_four_columns_can_have_windows_too(tmp_path):
    pair = Pair(tmp_path, {}, 5, FPS, {"timestamp": [-0.1], "index": [0.1], "episode_index": []})
    add_ids(pair, [3])
    add_ids(pair, [4])
    pair.check()


# Against the model, for any times at all

MAGNITUDES = st.sampled_from([1.0, 0.1, 1e-4, 5e-324, 1e-160, 1e9, 1e17, 1e154, 1.7e308])
GRID = st.integers(-6, 6).map(float)  # halves and wholes of which make ties


@st.composite
def episodes_and_queries(draw):
    """Times of up to three episodes, deltas and a tolerance, all of one magnitude."""
    unit = draw(MAGNITUDES)
    number = st.one_of(GRID, GRID.map(lambda x: x / 2), st.floats(-1, 1))
    number = number.map(lambda x: float(np.clip(x * unit, -1.7e308, 1.7e308)))
    number = st.one_of(number, st.sampled_from([0.0, -0.0]))
    episode = st.lists(number, min_size=1, max_size=8)
    if draw(st.booleans()):
        episode = episode.map(sorted)
    episodes = draw(st.lists(episode, min_size=1, max_size=3))
    deltas = draw(st.lists(number, min_size=1, max_size=6))
    tolerance = draw(st.one_of(st.sampled_from([0.0, np.inf]), number.map(abs)))
    return episodes, deltas, tolerance


@settings(max_examples=800, derandomize=True, deadline=None)
@given(case=episodes_and_queries(), capacity=st.sampled_from([3, 8, 30]))
@example(case=([[0.0, 1.0]], [0.5], 1.0), capacity=8)  # an exact tie goes to the earlier frame
@example(case=([[1.0, 0.0]], [-0.5, 0.5], 1.0), capacity=8)  # also when time runs backwards
@example(case=([[0.0, 1e17, 1e17 + 16]], [1e17 + 8], np.inf), capacity=8)  # a tie by rounding
@example(case=([[-1.7e308, 1.7e308]], [1.7e308, -1.7e308], np.inf), capacity=8)  # all are inf
@example(case=([[0.0, -0.0, 0.0]], [0.0, -0.0], 0.0), capacity=8)
@example(case=([[0.0, 1.0, 2.0, 3.0]], [1.0, 1.0 + 2**-52], 0.0), capacity=3)
def test_any_times_give_the_models_windows(tmp_path_factory, case, capacity):
    episodes, deltas, tolerance = case
    pair = id_pair(tmp_path_factory.mktemp("any", numbered=True), capacity, deltas)
    pair.set_tolerance(tolerance)
    add_ids(pair, [len(episode) for episode in episodes], np.concatenate(episodes))
    pair.check()
    pair.buffer.close()


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    fps=st.sampled_from([3, 7, 24, 29.97, 30, 50, 60, 1000]),
    n=st.integers(1, 400),
    start=st.sampled_from([0.0, 1e-3, 1234.5, 1.7e9]),
    accumulated=st.booleans(),
    steps=st.lists(st.integers(-20, 20).map(lambda k: k / 2), min_size=1, max_size=8),
)
def test_uniform_times_give_the_models_windows(tmp_path_factory, fps, n, start, accumulated, steps):
    """Both ways of making uniform times; half steps are ties but for rounding."""
    times = start + (np.cumsum(np.full(n, 1 / fps)) if accumulated else np.arange(n) / fps)
    directory = tmp_path_factory.mktemp("uniform", numbered=True)
    pair = id_pair(directory, 300, [step / fps for step in steps], fps=fps)
    add_ids(pair, [n], times)
    some = np.random.default_rng(n).integers(0, min(n, 300), 12).tolist()
    check_read(pair.buffer, pair.model, some)
    pair.buffer.close()
