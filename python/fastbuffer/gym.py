"""Recording what an agent does in gymnasium environments.

A frame is an observation, the action that was taken on it, and what came of that: `next.reward`,
`next.terminated` and `next.truncated`.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from fastbuffer._arguments import DataSpec, FieldSpec, describe, refused
from fastbuffer._optional import require
from fastbuffer.online_buffer import OnlineBuffer
from fastbuffer.recording import EpisodeRecorder

if TYPE_CHECKING:
    import gymnasium
else:
    gymnasium = require("gymnasium", extra="gym", purpose="fastbuffer.gym")

_OBSERVATION, _ACTION = "observation", "action"
_REWARD, _TERMINATED, _TRUNCATED = "next.reward", "next.terminated", "next.truncated"

Env = gymnasium.Env[Any, Any]
VectorEnv = gymnasium.vector.VectorEnv[Any, Any, Any]


def data_spec_of(env: "Env | VectorEnv") -> DataSpec:
    """The `data_spec` of a buffer that `RecordToBuffer` fills.

    Args:
        env: An environment, or a vectorised one, whose spaces are Box, Discrete, MultiBinary or
            MultiDiscrete; observations may be a Dict of such.

    Returns:
        The keys `observation.state` or, for each key of a Dict, `observation.<key>`; `action`;
        `next.reward` (float32), `next.terminated` and `next.truncated` (bool).

    Raises:
        ValueError: A space is of another kind.
    """
    if isinstance(env, gymnasium.vector.VectorEnv):
        observations, actions = env.single_observation_space, env.single_action_space
    else:
        observations, actions = env.observation_space, env.action_space
    spaces = observations.spaces if isinstance(observations, gymnasium.spaces.Dict) else None
    named = {"state": observations} if spaces is None else spaces
    spec = {f"{_OBSERVATION}.{key}": _field(space, key) for key, space in named.items()}
    return spec | {
        _ACTION: _field(actions, _ACTION),
        _REWARD: {"shape": (), "dtype": np.float32},
        _TERMINATED: {"shape": (), "dtype": bool},
        _TRUNCATED: {"shape": (), "dtype": bool},
    }


def RecordToBuffer(env: "Env | VectorEnv", buffer: OnlineBuffer) -> "Env | VectorEnv":  # noqa: N802
    """Wrap an environment so that each episode in it goes into a buffer when it ends.

    An episode that a `reset` or `close` cuts short goes in as it is, without a flag in its last
    frame. Of a vectorised environment each part has an episode of its own; the steps that only
    reset a part are not recorded.

    Args:
        env: An environment, or a vectorised one.
        buffer: A buffer whose keys are those of `data_spec_of`, or some of them.

    Returns:
        The wrapped environment.

    Raises:
        ValueError: The buffer has a key that is not recorded.
        TypeError: An argument has the wrong type.
        io.UnsupportedOperation: The buffer was opened with `mode="r"`.
    """
    if not isinstance(buffer, OnlineBuffer):
        raise TypeError(refused("buffer", "an OnlineBuffer", describe(buffer)))
    if isinstance(env, gymnasium.vector.VectorEnv):
        return _VectorRecorder(env, buffer)
    if isinstance(env, gymnasium.Env):
        return _Recorder(env, buffer)
    raise TypeError(refused("env", "a gymnasium.Env or a VectorEnv", describe(env)))


class _Steps:
    """The steps of one environment, on their way into a buffer."""

    def __init__(self, buffer: OnlineBuffer, keys: set[str]) -> None:
        self._keys = keys
        self._recorder = EpisodeRecorder(buffer)
        self._observation: dict[str, Any] | None = None

    def begin(self, observation: Any) -> None:
        """An episode begins."""
        self.end()
        self._observation = _named(observation)

    def step(
        self, action: Any, observation: Any, reward: Any, terminated: Any, truncated: Any
    ) -> None:
        """An action was taken on the last observation."""
        if self._observation is None:
            return  # a step that only resets
        frame = self._observation | {
            _ACTION: action,
            _REWARD: np.float32(reward),
            _TERMINATED: bool(terminated),
            _TRUNCATED: bool(truncated),
        }
        self._recorder.add_frame({key: frame[key] for key in self._keys})
        self._observation = _named(observation)
        if terminated or truncated:
            self.end()

    def end(self) -> None:
        """What there is of the episode is all of it."""
        self._observation = None
        if self._recorder.num_frames:
            self._recorder.save_episode()


class _Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records one environment."""

    def __init__(self, env: Env, buffer: OnlineBuffer) -> None:
        super().__init__(env)
        self._steps = _Steps(buffer, _keys(env, buffer))

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        self._steps.begin(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._steps.step(action, *result[:4])
        return result

    def close(self) -> None:
        self._steps.end()
        super().close()


class _VectorRecorder(gymnasium.vector.VectorWrapper):
    """Records each part of a vectorised environment."""

    def __init__(self, env: VectorEnv, buffer: OnlineBuffer) -> None:
        super().__init__(env)
        keys = _keys(env, buffer)
        self._parts = [_Steps(buffer, keys) for _ in range(env.num_envs)]
        same_step = gymnasium.vector.AutoresetMode.SAME_STEP
        self._resets_at_once = env.metadata.get("autoreset_mode") == same_step
        self._is_over = np.zeros(env.num_envs, bool)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observations, info = self.env.reset(**options)
        mask = (options.get("options") or {}).get("reset_mask")
        for part, steps in enumerate(self._parts):
            if mask is None or mask[part]:
                steps.begin(_part(observations, part))
                self._is_over[part] = False
        return observations, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = self.env.step(actions)
        observations, rewards, terminated, truncated, _ = result
        for part, steps in enumerate(self._parts):
            observation = _part(observations, part)
            over = bool(terminated[part] or truncated[part])
            if self._is_over[part]:
                steps.begin(observation)  # this step has reset it, whatever the action was
            else:
                outcome = (rewards[part], terminated[part], truncated[part])
                steps.step(_part(actions, part), observation, *outcome)
                if over and self._resets_at_once:
                    steps.begin(observation)
            self._is_over[part] = over and not self._resets_at_once
        return result

    def close(self, **options: Any) -> None:
        for steps in self._parts:
            steps.end()
        super().close(**options)


def _keys(env: "Env | VectorEnv", buffer: OnlineBuffer) -> set[str]:
    """The buffer's keys that are recorded: all but its own."""
    own = {buffer.INDEX_KEY, buffer.FRAME_INDEX_KEY, buffer.EPISODE_INDEX_KEY, buffer.TIMESTAMP_KEY}
    keys = set(buffer.data_keys) - own
    recorded = data_spec_of(env).keys()
    if not keys <= recorded:
        expected = f"a buffer with keys among {sorted(recorded)}"
        raise ValueError(refused("buffer", expected, sorted(keys - recorded)))
    return keys


def _field(space: Any, name: str) -> FieldSpec:
    spaces = gymnasium.spaces
    if not isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete
    ):
        raise ValueError(refused(f"space of {name!r}", "Box, Discrete or Multi*", describe(space)))
    return {"shape": tuple(space.shape or ()), "dtype": space.dtype}


def _named(observation: Any) -> dict[str, Any]:
    """A copy of an observation, which the environment may change, under the buffer's keys."""
    parts = observation if isinstance(observation, dict) else {"state": observation}
    return {f"{_OBSERVATION}.{key}": np.array(value) for key, value in parts.items()}


def _part(values: Any, part: int) -> Any:
    if isinstance(values, dict):
        return {key: value[part] for key, value in values.items()}
    return values[part]
