"""Samplers: what they draw, how often, and that it can be repeated and gone on with."""

import pickle

import numpy as np
import pytest

from fastbuffer import WeightedSampler
from helpers import refused_with, run_python


def drawn(sampler):
    """One epoch, as an array."""
    return np.fromiter(sampler, np.int64)


def chi_square(counts, expected):
    """How far counts are from what is expected, in standard deviations of that measure."""
    possible = expected > 0
    assert not counts[~possible].any()
    terms = (counts - expected)[possible] ** 2 / expected[possible]
    freedom = possible.sum() - 1
    return (terms.sum() - freedom) / np.sqrt(2 * max(freedom, 1))


# Weights


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, bool])
def test_positions_are_drawn_by_weight(dtype):
    weights = np.random.default_rng(0).integers(0, 5, 300).astype(dtype)
    counts = np.bincount(drawn(WeightedSampler(weights, 300_000)), minlength=300)
    assert abs(chi_square(counts, 300_000 * weights / weights.sum())) < 5


def test_extreme_weights_are_drawn_as_they_are():
    weights = np.array([1e300, 1e-300, 3e300, 0.0, 5e-324, 1e290])
    counts = np.bincount(drawn(WeightedSampler(weights, 100_000)), minlength=6)
    assert counts[[1, 3, 4, 5]].sum() == 0
    assert abs(counts[0] - 25_000) < 1000


def test_a_weight_of_zero_is_never_drawn():
    counts = np.bincount(drawn(WeightedSampler([0, 10, 3, 0], 10**6)), minlength=4)
    assert counts[0] == counts[3] == 0
    assert abs(counts[2] / 10**6 - 3 / 13) < 0.002


def test_more_than_2_to_the_24_equal_weights():
    count = 2**24 + 1
    positions = drawn(WeightedSampler(np.ones(count, np.float32), 10_000))
    assert abs((positions >= count // 2).mean() - 0.5) < 0.02
    assert len(np.unique(positions)) > 9_900


def test_float32_weights_are_summed_exactly_enough():
    weights = np.ones(2**24, np.float32)
    weights[: 2**23] = 2
    positions = drawn(WeightedSampler(weights, 100_000))
    assert abs((positions >= 2**23).mean() - 1 / 3) < 0.01


def test_without_replacement_each_is_drawn_once():
    sampler = WeightedSampler([0, 1, 5, 2, 0, 1], 4, replacement=False)
    for _ in range(20):
        assert sorted(sampler) == [1, 2, 3, 5]
    refused_with("num_samples: .*at most 4", WeightedSampler, [0, 1, 5, 2, 0, 1], 5, False)
    refused_with("num_samples: .*at most 2", WeightedSampler, [0, 10, 3, 0], 4, False)


def test_without_replacement_the_order_is_that_of_drawing_one_by_one():
    """Of three, the first two: probabilities that follow from drawing one after the other."""
    weights = np.array([1.0, 2.0, 5.0])
    sampler = WeightedSampler(weights, 2, replacement=False, seed=3)
    counts = np.zeros((3, 3))
    epochs = 20_000
    for _ in range(epochs):
        first, second = sampler
        counts[first, second] += 1
    share = weights / weights.sum()
    expected = share[:, None] * weights / (weights.sum() - weights)[:, None]
    np.fill_diagonal(expected, 0)
    assert abs(chi_square(counts.ravel(), epochs * expected.ravel())) < 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([], 1), "weights: expected at least one, got none"),
        (([0, 0.0], 1), "weights: expected a number above 0, got only zeros"),
        (([1, -1], 1), "weights: expected finite numbers, none negative, got -1 at position 1"),
        (([1, np.nan], 1), "weights: expected finite.*NaN at position 1"),
        (([np.inf], 1), "weights: expected finite.*inf at position 0"),
        (([[1.0]], 1), "weights: expected a list of numbers"),
        ((["a"], 1), "weights: expected a list of numbers"),
        (([1j], 1), "weights: expected a list of numbers"),
        (([1], -1), "num_samples: expected at least 0"),
        (([1], 1, True, -1), "seed: expected at least 0"),
    ],
)
def test_what_cannot_be_drawn_by_is_refused(arguments, said):
    refused_with(said, WeightedSampler, *arguments)


@pytest.mark.parametrize("arguments", [([1], 1.5), ([1], 1, 1), ([1], 1, True, 0.5)])
def test_wrong_types_are_refused(arguments):
    with pytest.raises(TypeError):
        WeightedSampler(*arguments)


def test_the_caller_may_change_the_weights_afterwards():
    for replacement in (True, False):
        weights = np.array([1.0, 0.0, 1.0])
        sampler = WeightedSampler(weights, 2, replacement)
        weights[:] = [0, 1, 0]
        assert set(sampler) <= {0, 2}


# Epochs, batches, going on

SAMPLERS = {
    "with replacement": lambda seed=5: WeightedSampler(np.arange(1, 40), 10_000, seed=seed),
    "without": lambda seed=5: WeightedSampler(np.arange(1, 6001), 5000, False, seed),
}
every_sampler = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


@every_sampler
def test_epochs_differ_and_can_be_repeated(make):
    sampler, again = make(), make()
    epochs = [drawn(sampler) for _ in range(3)]
    assert all(len(epoch) == len(sampler) for epoch in epochs)
    assert len({epoch.tobytes() for epoch in [*epochs, drawn(make(seed=6))]}) == 4
    again.set_epoch(2)
    np.testing.assert_array_equal(drawn(again), epochs[2])
    again.set_epoch(0)
    np.testing.assert_array_equal(drawn(again), epochs[0])
    np.testing.assert_array_equal(drawn(again), epochs[1])


@every_sampler
def test_batches_are_the_same_positions(make):
    whole = [drawn(make())]
    for size in (1000, 4096, 4999, 10_000, 20_000):
        batches = make().batches(size)
        got = list(batches)
        assert len(got) == len(batches)
        assert all(batch.dtype == np.int64 and len(batch) == size for batch in got[:-1])
        np.testing.assert_array_equal(np.concatenate(got), whole[0])
        full = make().batches(size, drop_last=True)
        assert [len(batch) for batch in full] == [size] * len(full)
        assert len(full) == len(whole[0]) // size


@every_sampler
@pytest.mark.parametrize("taken", [0, 1, 4095, 4097, 5000])
def test_a_sampler_goes_on_where_another_one_stopped(make, taken):
    sampler, expected = make(), make()
    list(sampler), list(expected)
    positions = iter(sampler)
    before = [next(positions) for _ in range(taken)]
    resumed = make()
    resumed.load_state_dict(pickle.loads(pickle.dumps(sampler.state_dict())))
    np.testing.assert_array_equal(np.array(before + list(resumed), np.int64), drawn(expected))
    np.testing.assert_array_equal(drawn(resumed), drawn(expected))


def test_states_that_are_none_are_refused():
    sampler = WeightedSampler([1, 2], 10)
    for state in ({}, None, {"epoch": 0}, {"epoch": 0, "position": 0, "x": 1}):
        refused_with("state: expected the keys epoch and position", sampler.load_state_dict, state)
    refused_with("position", sampler.load_state_dict, {"epoch": 0, "position": 11})
    refused_with("epoch", sampler.load_state_dict, {"epoch": -1, "position": 0})
    refused_with("batch_size", sampler.batches, 0)


@pytest.mark.parametrize(
    ("arguments", "frozen"),
    [
        ("[1, 2, 3, 4], 12, seed=1", "3 3 1 2 3 3 1 2 0 3 3 2"),
        ("range(9), 6, False, 1", "8 3 6 7 5 4"),
    ],
)
def test_draws_are_the_same_in_every_process_and_for_ever(arguments, frozen):
    code = f"from fastbuffer import WeightedSampler; print(*WeightedSampler({arguments}))"
    assert run_python(code) == f"{frozen}\n"


def test_torch_takes_them_as_samplers(torch):
    from torch.utils.data import DataLoader, TensorDataset

    dataset = TensorDataset(torch.arange(50))
    sampler = WeightedSampler(np.arange(50), 30, seed=2)
    assert isinstance(sampler, torch.utils.data.Sampler)
    expected = drawn(WeightedSampler(np.arange(50), 30, seed=2))
    got = torch.cat([batch for (batch,) in DataLoader(dataset, 7, sampler=sampler)])
    np.testing.assert_array_equal(got.numpy(), expected)
    sampler.set_epoch(0)
    loader = DataLoader(dataset, batch_sampler=sampler.batches(7))
    got = torch.cat([batch for (batch,) in loader])
    np.testing.assert_array_equal(got.numpy(), expected)
    assert len(loader) == 5
