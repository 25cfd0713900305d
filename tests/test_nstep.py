"""Returns over several steps, against a loop over the frames of an episode."""

import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbuffer import OnlineBuffer, PrioritizedSampler
from helpers import assert_equal, make_episodes, refused_with

REWARD = {"next.reward": {"shape": (), "dtype": np.float32}}


def spec(reward=np.float32, shape=(), **flags):
    extra = {f"next.{key}": {"shape": (), "dtype": dtype} for key, dtype in flags.items()}
    state = {"observation.state": {"shape": (2,), "dtype": np.float32}}
    return state | extra | {"next.reward": {"shape": shape, "dtype": reward}}


def made(directory, spec, capacity, calls, deltas=None):
    buffer = OnlineBuffer(directory, spec, capacity, 10, deltas, output="numpy")
    rng = np.random.default_rng(0)
    for lengths in calls:
        data = make_episodes(lengths, spec, rng)
        reward = data["next.reward"]
        data["next.reward"] = rng.integers(-9, 10, reward.shape).astype(reward.dtype)
        for key in set(data) & {"next.done", "next.terminated"}:
            data[key] = (rng.random(sum(lengths)) < 0.2).astype(data[key].dtype)
        buffer.add_data(data)
    return buffer


def expected_returns(buffer, position, steps, gamma):
    """The reward, the discount and the position of the bootstrap frame."""
    index = buffer.get_data_by_key("index")
    numbers = buffer.get_data_by_key("episode_index")
    rewards = buffer.get_data_by_key("next.reward").reshape(-1).astype(float)
    flags = next((k for k in ("next.terminated", "next.done") if k in buffer.data_keys), None)
    terminal = np.zeros(len(index), bool) if flags is None else buffer.get_data_by_key(flags) != 0
    ahead = [p for p in np.argsort(index) if index[p] >= index[position]]
    episode = [p for p in ahead if numbers[p] == numbers[position]]
    taken = episode[:steps]
    ends = [step for step, p in enumerate(taken) if terminal[p]]
    if ends:
        taken = taken[: ends[0] + 1]
        bootstrap, discount = taken[-1], 0.0
    elif steps < len(episode):
        bootstrap, discount = episode[steps], gamma**steps
    else:
        taken = episode[:-1]
        bootstrap, discount = episode[-1], gamma ** len(taken)
    return sum(gamma**k * rewards[p] for k, p in enumerate(taken)), discount, bootstrap


FLAGS = st.sampled_from(
    [{}, {"done": bool}, {"terminated": bool, "done": bool}, {"done": np.uint8}]
)
CALLS = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=3), min_size=1, max_size=5)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    calls=CALLS,
    capacity=st.integers(1, 30),
    steps=st.sampled_from([1, 2, 3, 5, 10**12]),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    flags=FLAGS,
    reward=st.sampled_from(
        [(np.float32, ()), (np.float64, (1,)), (np.int16, ()), (np.float16, ())]
    ),
    windowed=st.booleans(),
)
def test_returns_are_those_of_a_loop(calls, capacity, steps, gamma, flags, reward, windowed):
    dtype, shape = reward
    deltas = {"observation.state": [-0.1, 0], "next.reward": [0, 0.1]} if windowed else None
    with tempfile.TemporaryDirectory() as directory:
        buffer = made(directory, spec(dtype, shape, **flags), capacity, calls, deltas)
        positions = [*range(len(buffer)), -1]
        batch = buffer.get_batch(positions, n_step=steps, gamma=gamma)
        plain = buffer.get_batch(positions)
        assert_equal({key: batch[key] for key in plain}, plain)
        wanted = [expected_returns(buffer, p, steps, gamma) for p in range(len(buffer))]
        wanted.append(wanted[-1])
        rewards, discounts, bootstraps = map(np.array, zip(*wanted, strict=True))
        returned = np.float64 if dtype == np.float64 else np.float32
        for key, numbers in (("next.reward_nstep", rewards), ("discount", discounts)):
            assert batch[key].dtype == returned
            assert batch[key].shape == (len(positions), *shape)
            np.testing.assert_allclose(batch[key].reshape(-1), numbers, rtol=1e-6)
        later = buffer.get_batch(bootstraps.astype(int))
        assert_equal({key: batch[f"bootstrap.{key}"] for key in later}, later)
        assert len(batch) == 2 * len(plain) + 2
        buffer.close()


def test_samples_come_with_returns(tmp_path):
    buffer = made(tmp_path, spec(done=bool), 30, [[20, 25]])
    sampler = iter(PrioritizedSampler(buffer))
    for options in ({"seed": 3}, {"weights": np.ones(30)}, {"sampler": sampler}):
        batch = buffer.sample(8, n_step=3, gamma=0.9, **options)
        assert batch["next.reward_nstep"].shape == (8,)
        assert batch["bootstrap.observation.state"].shape == (8, 2)
    assert buffer.sample(0, n_step=3, gamma=0.9, seed=1)["discount"].shape == (0,)


def test_tensors_are_returned(torch, tmp_path):
    made(tmp_path, spec(done=bool), 30, [[20]]).close()
    batch = OnlineBuffer(tmp_path, output="torch").sample(8, n_step=3, gamma=0.9)
    assert {value.shape[0] for value in batch.values()} == {8}
    assert batch["discount"].dtype == batch["next.reward_nstep"].dtype == torch.float32


def test_what_does_not_fit_is_refused(tmp_path):
    buffer = made(tmp_path / "a", spec(), 30, [[20]])
    for said, options in [
        ("n_step and gamma: expected both or none", {"n_step": 3}),
        ("n_step and gamma: expected both or none", {"gamma": 0.9}),
        ("n_step: expected at least 1", {"n_step": 0, "gamma": 0.9}),
        ("gamma: expected from 0 to 1", {"n_step": 3, "gamma": 1.1}),
        ("gamma: expected from 0 to 1", {"n_step": 3, "gamma": np.nan}),
        ("out: expected None", {"n_step": 3, "gamma": 0.9, "out": buffer.empty_batch(1)}),
    ]:
        refused_with(said, buffer.get_batch, [0], **options)
    with pytest.raises(TypeError, match="n_step: expected an int"):
        buffer.sample(2, n_step=1.5, gamma=0.9)
    with pytest.raises(IndexError):
        buffer.get_batch([20], n_step=3, gamma=0.9)
    wide = {"next.reward": {"shape": (2,), "dtype": np.float32}}
    complex_ = {"next.reward": {"shape": (), "dtype": np.complex128}}
    taken = REWARD | {"discount": {"shape": (), "dtype": np.float32}}
    for name, columns, said in [
        ("b", {}, "n_step: expected None for a buffer without the key"),
        ("c", wide, "next.reward: expected one real number per frame"),
        ("d", complex_, "next.reward: expected one real number per frame"),
        ("e", taken, "n_step: expected None for a buffer with the key 'discount'"),
    ]:
        other = OnlineBuffer(tmp_path / name, columns, 30, 10, output="numpy")
        other.add_data(make_episodes([5], columns, np.random.default_rng(0)))
        refused_with(said, other.sample, 2, n_step=3, gamma=0.9)
