"""sample: what is drawn, how often, and repeatably."""

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from helpers import SPEC, assert_equal, make_episodes, refused_with


@pytest.fixture
def buffer(tmp_path):
    """A buffer of 20 frames that has wrapped, whose `index` tells frames apart."""
    buffer = OnlineBuffer(tmp_path, SPEC, 20, output="numpy")
    buffer.add_data(make_episodes([13, 12], SPEC, np.random.default_rng(0)))
    return buffer


def positions(buffer, batch):
    """Which live frames a batch is made of."""
    order = {index: position for position, index in enumerate(buffer.get_data_by_key("index"))}
    return np.array([order[index] for index in batch["index"]])


def generators():
    """Two of each kind, equally seeded."""
    yield np.random.default_rng(7), np.random.default_rng(7)
    torch = pytest.importorskip("torch")
    yield torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)


def test_a_sample_is_a_batch_of_live_frames(buffer):
    batch = buffer.sample(64)
    drawn = positions(buffer, batch)
    assert_equal(batch, buffer[drawn])
    assert len(set(drawn)) > 10
    assert buffer.sample(0)["index"].shape == (0,)


def test_frames_are_drawn_uniformly(buffer):
    counts = np.bincount(positions(buffer, buffer.sample(40_000, seed=0)), minlength=20)
    assert abs(counts - 2000).max() < 250  # over 5 standard deviations


def test_weights_say_how_often(buffer):
    weights = np.zeros(20)
    weights[[3, 4, 11]] = [1, 2, 5]
    for scale in (1, 1e-320, 1e307):
        drawn = positions(buffer, buffer.sample(8000, weights=weights * scale, seed=0))
        counts = np.bincount(drawn, minlength=20)
        if scale == 1:
            assert abs(counts[[3, 4, 11]] - [1000, 2000, 5000]).max() < 250
        assert set(drawn) == {3, 4, 11}


def test_weights_may_be_tensors_ints_and_bools(buffer):
    torch = pytest.importorskip("torch")
    for weights in [torch.eye(20)[9], np.eye(20, dtype=int)[9], list(np.eye(20)[9] > 0)]:
        assert set(positions(buffer, buffer.sample(5, weights=weights))) == {9}


def test_seeds_and_generators_make_draws_repeatable(buffer):
    assert_equal(buffer.sample(9, seed=3), buffer.sample(9, seed=3))
    weights = np.arange(20)
    for first, second in generators():
        for options in ({}, {}, {"weights": weights}, {}):
            a = buffer.sample(9, generator=first, **options)
            assert_equal(a, buffer.sample(9, generator=second, **options))
            assert not np.array_equal(a["index"], buffer.sample(9, generator=first)["index"])
            buffer.sample(9, generator=second)


def test_without_a_seed_draws_differ(buffer):
    draws = {tuple(buffer.sample(9)["index"]) for _ in range(5)}
    assert len(draws) == 5


def test_a_sampler_says_which(buffer):
    torch = pytest.importorskip("torch")
    sampler = torch.utils.data.RandomSampler(buffer)
    assert sorted(positions(buffer, buffer.sample(20, sampler=sampler))) == list(range(20))
    assert list(positions(buffer, buffer.sample(3, sampler=[5, -1, 5]))) == [5, 19, 5]
    steps = iter(range(20))
    for start in (0, 4, 8):
        drawn = positions(buffer, buffer.sample(4, sampler=steps))
        assert list(drawn) == list(range(start, start + 4))


def test_out_is_filled(buffer):
    out = buffer.empty_batch(9)
    assert buffer.sample(9, seed=3, out=out) is out
    assert_equal(out, buffer.sample(9, seed=3))


def test_bad_arguments_are_refused(buffer, tmp_path):
    def refused(said, *arguments, **options):
        refused_with(said, buffer.sample, *arguments, **options)

    refused("batch_size: expected at least 0", -1)
    refused("seed: expected at least 0.*-1", 4, seed=-1)
    refused(
        "seed and generator: expected at most one", 4, seed=1, generator=np.random.default_rng()
    )
    refused("none with a sampler", 4, sampler=range(9), seed=1)
    refused("none with a sampler", 4, sampler=range(9), weights=np.ones(20))
    refused("sampler: expected 4 positions, got only 3", 4, sampler=range(3))
    refused("weights: expected 20 numbers.*19", 4, weights=np.ones(19))
    refused("weights: expected 20 numbers.*<U1", 4, weights=["a"] * 20)
    for bad in (np.nan, np.inf, -1.0):
        refused(f"weights: expected finite.*{bad}", 4, weights=[bad] + [1.0] * 19)
    refused("weights: expected.*not all 0", 4, weights=np.zeros(20))
    with pytest.raises(TypeError, match=r"batch_size: expected an int, got str '4'"):
        buffer.sample("4")
    with pytest.raises(TypeError, match=r"generator: expected a numpy\.random\.Generator or"):
        buffer.sample(4, generator=np.random.RandomState())
    with pytest.raises(TypeError, match=r"sampler: expected an iterable of int, got int 3"):
        buffer.sample(4, sampler=3)
    with pytest.raises(IndexError, match="20"):
        buffer.sample(1, sampler=[20])
    empty = OnlineBuffer(tmp_path / "empty", SPEC, 20, output="numpy")
    refused_with("buffer: expected at least one live frame", empty.sample, 4)
