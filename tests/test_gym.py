"""RecordToBuffer: what goes into the buffer is what the agent saw and did."""

import numpy as np
import pytest

from fastbuffer import OnlineBuffer

gymnasium = pytest.importorskip("gymnasium")

from fastbuffer.gym import RecordToBuffer, data_spec_of  # noqa: E402
from helpers import refused_with  # noqa: E402

spaces = gymnasium.spaces


class Counting(gymnasium.Env):
    """Counts steps in an observation that it changes in place, and ends as it is told to."""

    def __init__(self, lengths, by="terminated", as_dict=False):
        box = spaces.Box(-1, 1000, (2,), np.float32)
        self.as_dict = as_dict
        self.observation_space = spaces.Dict({"a": box, "n": box}) if as_dict else box
        self.action_space = spaces.Discrete(1000)
        self.lengths, self.by = lengths, by
        self.episode = -1
        self.state = np.zeros(2, np.float32)

    def observation(self):
        return {"a": self.state, "n": -self.state} if self.as_dict else self.state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.state[:] = self.episode, 0
        return self.observation(), {}

    def step(self, action):
        self.state[1] += 1
        over = self.state[1] == self.lengths[self.episode % len(self.lengths)]
        flags = (over, False) if self.by == "terminated" else (False, over)
        return self.observation(), float(action), *map(bool, flags), {}


def made(directory, env, **changes):
    return OnlineBuffer(directory, data_spec_of(env) | changes, 1000, 50, output="numpy")


def recorded(buffer):
    keys = ["observation.state", "action", "next.reward", "next.terminated", "next.truncated"]
    columns = [buffer.get_data_by_key(key).tolist() for key in keys]
    numbers = buffer.get_data_by_key("episode_index")
    rows = list(zip(*columns, strict=True))
    return [[rows[i] for i in np.flatnonzero(numbers == n)] for n in np.unique(numbers)]


def episode_of(number, length, ended=None, actions=None):
    actions = range(length) if actions is None else actions
    return [
        (
            *([number, step], action, action),
            *(ended == flag and step == length - 1 for flag in ("terminated", "truncated")),
        )
        for step, action in enumerate(actions)
    ]


@pytest.mark.parametrize("by", ["terminated", "truncated"])
def test_episodes_are_recorded_as_they_went(tmp_path, by):
    plain = Counting([3, 5], by)
    buffer = made(tmp_path, plain)
    env = RecordToBuffer(plain, buffer)
    for length in (3, 5):
        env.reset(seed=0)
        for action in range(length):
            env.step(action)
        assert len(buffer) == sum((3, 5)[: (3, 5).index(length) + 1])
    env.reset()
    for action in range(2):
        env.step(action)
    env.reset()
    env.step(0)
    env.close()
    expected = [episode_of(0, 3, by), episode_of(1, 5, by), episode_of(2, 2), episode_of(3, 1)]
    assert recorded(buffer) == expected
    assert buffer.get_data_by_key("timestamp")[:3].tolist() == [0, 0.02, 0.04]


def test_parts_of_an_observation_have_keys(tmp_path):
    plain = Counting([2], as_dict=True)
    buffer = made(tmp_path, plain)
    env = RecordToBuffer(plain, buffer)
    env.reset()
    for action in (7, 8):
        env.step(action)
    assert buffer.get_data_by_key("observation.a").tolist() == [[0, 0], [0, 1]]
    assert buffer.get_data_by_key("observation.n").tolist() == [[0, 0], [0, -1]]


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_parts_of_a_vectorised_environment_have_episodes_of_their_own(tmp_path, mode):
    autoreset = gymnasium.vector.AutoresetMode[mode]
    makers = [lambda lengths=lengths: Counting(lengths) for lengths in ([3], [5, 2])]
    plain = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=autoreset)
    buffer = made(tmp_path, plain)
    env = RecordToBuffer(plain, buffer)
    env.reset(seed=1)
    for action in range(12):
        env.step(np.array([action, 100 + action]))
    env.close()
    got = recorded(buffer)
    next_step = mode == "NEXT_STEP"
    for first, lengths in [(0, [3] * 4), (100, [5, 2, 5, 2])]:
        begun, expected = first, []
        for number, length in enumerate(lengths):
            steps = min(length, first + 12 - begun)
            if steps > 0:
                ended = "terminated" if steps == length else None
                expected.append(episode_of(number, steps, ended, range(begun, begun + steps)))
            begun += length + next_step
        mine = [episode for episode in got if (episode[0][1] >= 100) == (first == 100)]
        assert mine == expected


def test_some_keys_may_be_left_out(tmp_path):
    plain = Counting([2])
    spec = data_spec_of(plain)
    del spec["next.truncated"]
    buffer = OnlineBuffer(tmp_path, spec, 10, 50, output="numpy")
    env = RecordToBuffer(plain, buffer)
    env.reset()
    env.step(0)
    env.step(1)
    assert buffer.sample(4, n_step=1, gamma=0.9)["discount"].max() <= 1
    assert len(buffer) == 2


def test_what_cannot_be_recorded_is_refused(tmp_path):
    plain = Counting([2])
    buffer = made(tmp_path, plain, other={"shape": (), "dtype": np.float32})
    refused_with(
        "buffer: expected a buffer with keys among .* got .'other'.", RecordToBuffer, plain, buffer
    )
    for arguments, said in [
        ((plain, None), "buffer: expected an OnlineBuffer"),
        ((3, buffer), "env: "),
    ]:
        with pytest.raises(TypeError, match=said):
            RecordToBuffer(*arguments)
    plain.observation_space = spaces.Text(3)
    refused_with("space of 'state': expected Box", data_spec_of, plain)
    reader = OnlineBuffer(tmp_path, mode="r")
    plain.observation_space = spaces.Box(0, 1, (2,), np.float32)
    with pytest.raises(ValueError, match="buffer"):
        RecordToBuffer(plain, reader)
