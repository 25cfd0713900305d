"""EpisodeSampler and MixedSampler: which frames of a changing buffer they draw, and how often."""

import pickle

import numpy as np
import pytest

from fastbuffer import EpisodeSampler, MixedSampler, OnlineBuffer, compute_sampler_weights
from helpers import make_episodes, refused_with, to_numpy
from test_sampler_weights import Offline


def made(directory, capacity=40, calls=((7, 9, 3),)):
    buffer = OnlineBuffer(directory, {}, capacity, 10, output="numpy")
    for lengths in calls:
        buffer.add_data(make_episodes(lengths, {}, np.random.default_rng(0)))
    return buffer


def kept(buffer, first=0, last=0, episodes=None):
    """The positions that may be drawn, episode by episode, by looking at every frame."""
    index = buffer.get_data_by_key("index")
    numbers = buffer.get_data_by_key("episode_index")
    order = np.argsort(index)
    positions = []
    for number in np.unique(numbers):
        if episodes is None or number in episodes:
            frames = order[numbers[order] == number]
            positions.extend(frames[first : max(len(frames) - last, 0)])
    return positions


CALLS = [[(7, 9, 3)], [(20, 15), (6, 2)], [(5,)] * 30, [(1,) * 100], [(90,)], [(25, 25), (30,)]]


@pytest.mark.parametrize("calls", CALLS, ids=str)
@pytest.mark.parametrize(("first", "last"), [(0, 0), (2, 0), (0, 3), (1, 2), (99, 0)])
def test_an_epoch_has_each_frame_once(tmp_path, calls, first, last):
    buffer = made(tmp_path, calls=calls)
    expected = kept(buffer, first, last)
    for shuffle in (False, True):
        sampler = EpisodeSampler(buffer, first, last, shuffle=shuffle)
        assert len(sampler) == len(expected)
        if not expected:
            refused_with("buffer: expected at least 1 frames", iter, sampler)
            continue
        got = list(sampler)
        assert sorted(got) == sorted(expected)
        assert shuffle or got == expected
        assert sorted(np.concatenate(list(sampler.batches(7)))) == sorted(expected)


def test_only_the_chosen_episodes_are_drawn(tmp_path):
    buffer = made(tmp_path, calls=[(20, 15), (6, 2)])
    sampler = EpisodeSampler(buffer, 0, 1, episodes=[1, 3, 77], shuffle=False)
    assert list(sampler) == kept(buffer, 0, 1, [1, 3])


def test_epochs_follow_the_buffer(tmp_path):
    buffer = made(tmp_path, calls=[])
    sampler = EpisodeSampler(buffer, drop_n_last_frames=1)
    assert len(sampler) == 0
    for lengths in [(5,), (12, 3), (30,), (8,), (40,), (50,)]:
        buffer.add_data(make_episodes(lengths, {}, np.random.default_rng(0)))
        assert sorted(sampler) == sorted(kept(buffer, 0, 1))


def test_frames_that_are_overwritten_within_an_epoch_are_left_out(tmp_path):
    buffer = made(tmp_path, calls=[(10, 10, 10, 10)])
    sampler = EpisodeSampler(buffer, 1, 2)
    positions = iter(sampler)
    drawn = [next(positions) for _ in range(5)]
    before = buffer.get_data_by_key("index")
    buffer.add_data(make_episodes([15], {}, np.random.default_rng(0)))
    rest = list(positions)
    after = buffer.get_data_by_key("index")
    assert (before[rest] == after[rest]).all()
    allowed = set(kept(buffer, 1, 2)) - set(np.flatnonzero(after >= 40)) - set(drawn)
    assert set(rest) == allowed
    assert len(rest) == len(allowed)


def test_batches_stay_full_when_frames_are_overwritten(tmp_path):
    buffer = made(tmp_path, calls=[(10, 10, 10, 10)])
    batches = iter(EpisodeSampler(buffer).batches(4))
    next(batches)
    buffer.add_data(make_episodes([15], {}, np.random.default_rng(0)))
    sizes = [len(batch) for batch in batches]
    assert sizes[:-1] == [4] * (len(sizes) - 1)


@pytest.mark.parametrize("taken", [0, 1, 20, 31])
@pytest.mark.parametrize("grown", [False, True])
def test_an_epoch_is_gone_on_with_sample_for_sample(tmp_path, taken, grown):
    buffer = made(tmp_path, calls=[(10, 10, 14)])
    sampler = EpisodeSampler(buffer, 0, 1, seed=3)
    positions = iter(sampler)
    for _ in range(taken):
        next(positions)
    state = pickle.loads(pickle.dumps(sampler.state_dict()))
    if grown:
        buffer.add_data(make_episodes([15], {}, np.random.default_rng(0)))
    resumed = EpisodeSampler(OnlineBuffer(tmp_path), 0, 1, seed=3)
    resumed.load_state_dict(state)
    assert list(resumed) == list(positions)
    assert list(resumed) == list(sampler)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_replicas_share_an_epoch_without_overlap(tmp_path, replicas, shuffle):
    buffer = made(tmp_path, calls=[(20, 15), (6, 2)])
    samplers = [
        EpisodeSampler(buffer, 0, 1, shuffle=shuffle, num_replicas=replicas, rank=rank)
        for rank in range(replicas)
    ]
    parts = [list(sampler) for sampler in samplers]
    assert {len(part) for part in parts} == {len(samplers[0])}
    together = np.concatenate(parts)
    assert len(set(together)) == len(together)
    assert len(kept(buffer, 0, 1)) - len(together) < replicas
    assert set(together) <= set(kept(buffer, 0, 1))


def test_a_replica_begins_where_another_one_did(tmp_path):
    buffer = made(tmp_path, calls=[(10, 10)])
    first, second = (EpisodeSampler(buffer, num_replicas=2, rank=rank) for rank in (0, 1))
    positions = iter(first)
    state = first.state_dict()
    buffer.add_data(make_episodes([9], {}, np.random.default_rng(0)))
    second.load_state_dict(state)
    assert sorted([*positions, *second]) == list(range(20))


def test_what_an_episode_sampler_cannot_be_given_is_refused(tmp_path):
    buffer = made(tmp_path)
    for said, options in [
        ("drop_n_first_frames: expected at least 0", {"drop_n_first_frames": -1}),
        ("drop_n_last_frames: expected at least 0", {"drop_n_last_frames": -1}),
        ("episodes: expected at least one number", {"episodes": []}),
        ("episodes: expected at least 0", {"episodes": [-1]}),
        ("rank: expected at least 0 and at most 1", {"num_replicas": 2, "rank": 2}),
        ("num_replicas: expected at least 1", {"num_replicas": 0}),
    ]:
        refused_with(said, EpisodeSampler, buffer, **options)
    for arguments in [(3,), (buffer, 0.5), (buffer, 0, 0, "12"), (buffer, 0, 0, None, 1)]:
        with pytest.raises(TypeError):
            EpisodeSampler(*arguments)
    sampler = EpisodeSampler(buffer)
    state = {"epoch": 0, "position": 1, "length": 90, "end": 90, "frames": 90}
    refused_with("state: expected one of an epoch over this buffer", sampler.load_state_dict, state)
    state = {"epoch": 0, "position": 1, "length": 19}
    refused_with(
        "state: expected the keys epoch and position with length, end, frames",
        sampler.load_state_dict,
        state,
    )


# Offline and online


@pytest.mark.parametrize("calls", CALLS, ids=str)
@pytest.mark.parametrize("ratio", [0, 0.3, 1])
@pytest.mark.parametrize("drops", [(0, 0), (2, 3), (9, 1), (1, 99), (99, 99)])
def test_a_mixture_is_drawn_by_the_weights(tmp_path, calls, ratio, drops):
    buffer = made(tmp_path, calls=calls)
    offline = Offline([4, 1, 9])
    weights = to_numpy(compute_sampler_weights(offline, drops[0], buffer, ratio, drops[1]))
    sampler = MixedSampler(
        *(offline, buffer, ratio),
        offline_drop_n_last_frames=drops[0],
        online_drop_n_last_frames=drops[1],
        num_samples=20_000,
    )
    counts = np.bincount(next(iter(sampler.batches(20_000))), minlength=len(weights))
    expected = 20_000 * weights.astype(float)
    assert not counts[weights == 0].any()
    terms = (counts - expected)[weights > 0] ** 2 / expected[weights > 0]
    freedom = max(len(terms) - 1, 1)
    assert (terms.sum() - freedom) / np.sqrt(2 * freedom) < 5


def test_a_mixture_follows_the_buffer_within_an_epoch(tmp_path):
    buffer = made(tmp_path, calls=[])
    sampler = MixedSampler(Offline([5]), buffer, 0.5, online_drop_n_last_frames=2, num_samples=9000)
    positions = iter(sampler)
    assert {next(positions) for _ in range(500)} == set(range(5))
    for lengths in [(4, 6), (30,), (15,), (40,)]:
        buffer.add_data(make_episodes(lengths, {}, np.random.default_rng(0)))
        online = {5 + position for position in kept(buffer, 0, 2)}
        assert {next(positions) for _ in range(2000)} == set(range(5)) | online


def test_a_mixture_goes_on_where_another_one_stopped(tmp_path):
    buffer = made(tmp_path)
    make = lambda: MixedSampler(Offline([5]), buffer, 0.5, seed=4)  # noqa: E731
    sampler, resumed = make(), make()
    assert len(sampler) == 5 + 19
    positions = iter(sampler)
    drawn = [next(positions) for _ in range(9)]
    resumed.load_state_dict(sampler.state_dict())
    rest = list(positions)
    assert list(resumed) == rest
    again = make()
    assert list(again) == drawn + rest
    assert list(again) == list(resumed)


class NoBounds(Offline):
    def __init__(self):
        self.length = 3
        self.episode_data_index = {}


def test_what_cannot_be_mixed_is_refused(tmp_path):
    buffer = made(tmp_path, calls=[])
    for ratio in (-0.1, 1.1, np.nan):
        refused_with("ratio: expected from 0 to 1", MixedSampler, Offline([5]), buffer, ratio)
    refused_with("offline: expected bounds of its episodes", MixedSampler, NoBounds(), buffer, 0.5)
    overlapping = Offline([5])
    overlapping.length = 4
    refused_with("offline: expected episodes that do not", MixedSampler, overlapping, buffer, 0.5)
    refused_with("both sides empty", list, MixedSampler(None, buffer, 0.5))
    with pytest.raises(TypeError, match="online: expected an OnlineBuffer"):
        MixedSampler(Offline([5]), None, 0.5)


def test_a_mixture_drives_a_loader_over_both(torch, tmp_path):
    from torch.utils.data import ConcatDataset, DataLoader, Dataset

    class Dataset(Offline, Dataset):
        def __getitem__(self, i):
            return {"index": torch.tensor(-1 - i)}

    made(tmp_path, calls=[(20, 25)]).close()
    online = OnlineBuffer(tmp_path, output="torch")
    offline = Dataset([4, 4])
    sampler = MixedSampler(offline, online, 0.5, online_drop_n_last_frames=3, num_samples=640)
    together = ConcatDataset([offline, [{"index": item["index"]} for item in online]])
    loader = DataLoader(together, batch_sampler=sampler.batches(64))
    drawn = torch.cat([batch["index"] for batch in loader]).numpy()
    assert set(drawn[drawn < 0]) == set(range(-8, 0))
    index = online.get_data_by_key("index").numpy()
    allowed = index[kept(OnlineBuffer(tmp_path, output="numpy"), 0, 3)]
    assert set(drawn[drawn >= 0]) <= set(allowed)
