"""compute_sampler_weights against the model, for every form of episode bounds."""

import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbuffer import OnlineBuffer, WeightedSampler, compute_sampler_weights
from helpers import Pair, make_episodes, to_numpy
from model import kept_of_lengths, sampler_weights


class Offline:
    """The little of a dataset that the weights need: a length and the bounds of its episodes."""

    def __init__(self, lengths, form="list"):
        ends = np.cumsum(lengths, dtype=np.int64)
        starts = ends - np.asarray(lengths, dtype=np.int64)
        self.length = int(sum(lengths))
        if form == "meta":
            episodes = {"dataset_from_index": list(starts), "dataset_to_index": list(ends)}
            self.meta = SimpleNamespace(episodes=episodes)
        else:
            self.episode_data_index = {"from": convert(form, starts), "to": convert(form, ends)}

    def __len__(self):
        return self.length


def convert(form, values):
    if form == "torch":
        return pytest.importorskip("torch").from_numpy(values)
    return values if form == "numpy" else values.tolist()


def online_pair(directory, calls, capacity=10):
    """A buffer after one `add_data` call per list of episode lengths."""
    pair = Pair(directory, {}, capacity, fps=10)
    rng = np.random.default_rng(0)
    for lengths in calls:
        pair.add(make_episodes(lengths, {}, rng))
    return pair


def check_weights(weights, expected):
    weights = to_numpy(weights)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, expected, rtol=1e-6, atol=1e-30)
    assert weights.sum(dtype=np.float64) == pytest.approx(1, abs=1e-5)


LENGTHS = st.lists(st.integers(1, 6), max_size=4)
DROPS = st.integers(0, 8)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    offline=LENGTHS,
    online=st.lists(LENGTHS, max_size=4),
    drops=st.tuples(DROPS, DROPS),
    ratio=st.one_of(st.sampled_from([0, 1, 0.0, 1.0, 0.5]), st.floats(0, 1)),
    form=st.sampled_from(["list", "numpy", "meta"]),
)
def test_weights_are_those_of_the_model(offline, online, drops, ratio, form):
    with tempfile.TemporaryDirectory() as directory:
        pair = online_pair(directory, online)
        if not offline and not pair.model.num_frames:
            return  # refused: see test_bad_input
        weights = compute_sampler_weights(
            Offline(offline, form),
            offline_drop_n_last_frames=drops[0],
            online_dataset=pair.buffer,
            online_sampling_ratio=ratio,
            online_drop_n_last_frames=drops[1],
        )
        pair.buffer.close()
    kept = kept_of_lengths(offline, drops[0]), pair.model.kept(drops[1])
    check_weights(weights, sampler_weights(*kept, ratio))


@pytest.mark.parametrize("form", ["list", "numpy", "torch", "meta"])
@pytest.mark.parametrize("drop", [0, 1, 3, 4, 100])
def test_every_form_of_bounds_is_understood(form, drop):
    weights = compute_sampler_weights(Offline([3, 4, 1], form), drop)
    check_weights(weights, sampler_weights(kept_of_lengths([3, 4, 1], drop), np.zeros(0, bool), 0))


def test_meta_episodes_may_be_arrays():
    dataset = Offline([3, 2], "meta")
    dataset.meta.episodes = {k: np.array(v) for k, v in dataset.meta.episodes.items()}
    check_weights(compute_sampler_weights(dataset, 1), [1 / 3, 1 / 3, 0, 1 / 3, 0])


def test_a_wrapped_episode_drops_the_last_frames_it_was_given(tmp_path):
    buffer = online_pair(tmp_path, [[6], [6]]).buffer  # slots: 1 1 0 0 0 0 1 1 1 1
    weights = compute_sampler_weights(Offline([1]), 0, buffer, 1.0, 2)
    check_weights(weights, [0, 0, 0, 1 / 6, 1 / 6, 0, 0, 1 / 6, 1 / 6, 1 / 6, 1 / 6])


def test_torch_where_it_is_installed(torch):
    weights = compute_sampler_weights(Offline([3]))
    assert isinstance(weights, torch.Tensor)
    assert weights.dtype is torch.float32


def test_weights_drive_a_torch_sampler(torch, tmp_path):
    buffer = online_pair(tmp_path, [[4, 4]]).buffer
    weights = compute_sampler_weights(Offline([3]), 1, buffer, 0.5, 1)
    drawn = torch.utils.data.WeightedRandomSampler(weights, 1000)
    assert set(drawn) == {0, 1, 3, 4, 5, 7, 8, 9}


def test_weights_stay_exact_for_many_frames():
    n = 300_000
    weights = to_numpy(compute_sampler_weights(Offline([1000] * 300), 10))
    assert weights.sum(dtype=np.float64) == pytest.approx(1, abs=1e-6)
    assert np.unique(weights).tolist() == [0, np.float32(1 / (n * 0.99))]


@pytest.mark.parametrize("length", [2**45, 2**62])
def test_more_weights_than_memory_are_an_error(length):
    class Long(Offline):
        def __len__(self):
            return length

    with pytest.raises(MemoryError, match=str(length)):
        compute_sampler_weights(Long([5]))


@pytest.mark.parametrize("bounds", [{"from": [0]}, None, [3]], ids=str)
def test_missing_bounds_are_refused(bounds):
    dataset = Offline([5])
    dataset.episode_data_index = bounds
    with pytest.raises(ValueError, match=r"offline_dataset: expected bounds .*'from' and 'to'"):
        compute_sampler_weights(dataset)


@pytest.mark.parametrize("batched", [True, False])
def test_draws_over_both_sides_never_ask_past_the_dropped_frames(torch, tmp_path, batched):
    """Weights, sampler, ConcatDataset and DataLoader together: no window is padded ahead."""
    from torch.utils.data import ConcatDataset, DataLoader

    spec = {"action": {"shape": (), "dtype": np.float32}}
    deltas = {"action": [0.0, 0.1, 0.2, 0.3]}
    sides = []
    for name, calls in [("offline", [(9, 20, 3)]), ("online", [(20, 15), (12, 6)])]:
        buffer = OnlineBuffer(tmp_path / name, spec, 40, 10, deltas)
        for lengths in calls:
            buffer.add_data(make_episodes(lengths, spec, np.random.default_rng(0)))
        sides.append(buffer)
    offline, online = sides
    offline.episode_data_index = {"from": [0, 9, 29], "to": [9, 29, 32]}
    weights = compute_sampler_weights(offline, 3, online, 0.4, 3)
    sampler = WeightedSampler(weights, 4000, seed=1)
    together = ConcatDataset(sides)
    if batched:
        loader = DataLoader(together, batch_sampler=sampler.batches(100))
    else:
        loader = DataLoader(together, 100, sampler=sampler)
    batches = list(loader)
    assert not any(batch["action_is_pad"].any() for batch in batches)
    drawn = np.concatenate(list(WeightedSampler(weights, 4000, seed=1).batches(100)))
    assert abs((drawn >= len(offline)).mean() - 0.4) < 0.04
    index = torch.cat([batch["index"] for batch in batches]).tolist()
    assert index == [together[int(position)]["index"].item() for position in drawn]
    assert set(drawn) == set(np.flatnonzero(weights))
