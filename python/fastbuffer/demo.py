"""What ``fastbuffer demo`` runs: record, reopen, sample windows, clone behaviour.

Two simple experts act in gymnasium environments. Pendulum-v1 is stored as states, CartPole-v1 as
rendered RGB frames. Each fills a buffer on disk episode by episode; the buffer is closed, opened
again, and read in windows by a plain PyTorch `DataLoader` that feeds a small policy.
"""

import contextlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer import OnlineBuffer
from fastbuffer._arguments import DataSpec
from fastbuffer._optional import require

# gymnasium comes before pygame, because it silences pygame's banner.
for _module in ("torch", "tqdm", "gymnasium", "pygame"):
    require(_module, extra="demo", purpose="the demo")

import gymnasium  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, SubsetRandomSampler  # noqa: E402
from tqdm import tqdm  # noqa: E402

Array = NDArray[Any]
Batch = dict[str, Tensor]
Environment = gymnasium.Env[Any, Any]

IMAGE_SIZE = 96
ACTION_STEPS = 8
SECONDS_OF_TIMING = 0.5


@dataclass(frozen=True)
class Task:
    """An environment, the expert that acts in it, and the policy that imitates the expert.

    Attributes:
        env_id: Name of the environment in gymnasium.
        render_mode: How gymnasium renders it, or None for not at all.
        fps: Steps per second of simulated time.
        max_steps: Longest episode to record.
        spec: The buffer's columns.
        observation_key: The column that the policy sees, two frames of it.
        observe: Makes a value of that column from the environment and its raw observation.
        expert: The expert's action for a raw observation and its previous action.
        build_policy: Makes the policy: a window of observations to the next actions.
        loss: Loss of each predicted action against the expert's, not reduced.
        loss_name: What that loss is called in the output.
        batch_size: Items per batch.
    """

    env_id: str
    render_mode: str | None
    fps: int
    max_steps: int
    spec: DataSpec
    observation_key: str
    observe: Callable[[Environment, Array], Array]
    expert: Callable[[Array, Array | None], Array]
    build_policy: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    loss_name: str
    batch_size: int

    @property
    def delta_timestamps(self) -> dict[str, list[float]]:
        """The previous and the current observation, and the actions from now on."""
        return {
            self.observation_key: [-1 / self.fps, 0.0],
            "action": [step / self.fps for step in range(ACTION_STEPS)],
        }


@dataclass(frozen=True)
class Rate:
    """A number of frames and the seconds that they took."""

    frames: int
    seconds: float

    def __str__(self) -> str:
        """Frames per second, rounded to three digits: more would be noise."""
        return f"{float(f'{self.frames / self.seconds:.3g}'):,.0f} frames/s"


@dataclass(frozen=True)
class Fit:
    """What fitting a policy did to its loss on episodes that it was not fitted to."""

    batches: int
    seconds: float
    loss_before: float
    loss_after: float


# --- The two tasks -------------------------------------------------------------------------------


def pendulum_expert(observation: Array, _: Array | None = None) -> Array:
    """Swing up by pumping energy towards that of the upright rest, then hold by a PD law."""
    cosine, sine, speed = observation
    angle = np.arctan2(sine, cosine)
    if cosine > 0.9:
        torque = -12 * angle - 3 * speed
    else:
        # Energy of a rod of unit mass and length under g = 10; 5 is that of the upright rest.
        energy = speed**2 / 6 + 5 * cosine
        torque = 2 * (5 - energy) * (1 if speed >= 0 else -1)
    return np.array([np.clip(torque, -2, 2)], dtype=np.float32)


def cartpole_expert(observation: Array, previous: Array | None = None) -> Array:
    """Push the way that position, tilt and their speeds lean, once they clearly lean there.

    Until then the previous push goes on. The pole sways slowly enough to be seen in the frames.
    """
    lean = observation @ np.array([0.1, 0.3, 3.0, 1.0])
    threshold = -0.8 if previous is not None and previous == 1 else 0.8
    return np.array(lean > threshold, dtype=np.int64)


def render_small(environment: Environment, _: Array) -> Array:
    """The environment's current frame, reduced to IMAGE_SIZE by averaging over areas."""
    frame = np.asarray(environment.render())
    channels_first = torch.from_numpy(frame.copy()).permute(2, 0, 1).float()
    small = functional.interpolate(channels_first[None], size=(IMAGE_SIZE,) * 2, mode="area")[0]
    return small.round().byte().permute(1, 2, 0).numpy()


def state_policy() -> nn.Module:
    """Two states of three values to the next torques."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(6, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, ACTION_STEPS),
        nn.Unflatten(1, (ACTION_STEPS, 1)),
    )


class PixelPolicy(nn.Module):
    """Two RGB frames to the logits of pushing right in the next steps."""

    def __init__(self) -> None:
        """Build the layers."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 16, kernel_size=4, stride=4),
            nn.ReLU(),
            nn.Conv2d(16, 16, kernel_size=3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(64),
            nn.ReLU(),
            nn.Linear(64, ACTION_STEPS),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 images (batch, time, height, width, channel) to (batch, ACTION_STEPS)."""
        # Inverted, so that the white background is 0. The change is small: it is amplified.
        previous, current = (1 - images.float().mean(dim=-1) / 255).unbind(dim=1)
        channels = torch.stack([current, 4 * (current - previous)], dim=1)
        logits: Tensor = self.layers(channels)
        return logits


def squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Squared error of each predicted torque."""
    return functional.mse_loss(predicted, target, reduction="none").squeeze(-1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of each predicted push."""
    return functional.binary_cross_entropy_with_logits(logits, target.float(), reduction="none")


def pendulum_task() -> Task:
    """Pendulum-v1 as states."""
    return Task(
        env_id="Pendulum-v1",
        render_mode=None,
        fps=20,
        max_steps=200,
        spec={
            "observation.state": {"shape": (3,), "dtype": np.float32},
            "action": {"shape": (1,), "dtype": np.float32},
            "next.reward": {"shape": (), "dtype": np.float32},
            "next.done": {"shape": (), "dtype": np.bool_},
        },
        observation_key="observation.state",
        observe=lambda _, observation: observation,
        expert=pendulum_expert,
        build_policy=state_policy,
        loss=squared_error,
        loss_name="squared error",
        batch_size=256,
    )


def cartpole_task() -> Task:
    """CartPole-v1 as RGB frames."""
    return Task(
        env_id="CartPole-v1",
        render_mode="rgb_array",
        fps=50,
        max_steps=100,
        spec={
            "observation.image": {"shape": (IMAGE_SIZE, IMAGE_SIZE, 3), "dtype": np.uint8},
            "action": {"shape": (), "dtype": np.int64},
            "next.reward": {"shape": (), "dtype": np.float32},
            "next.done": {"shape": (), "dtype": np.bool_},
        },
        observation_key="observation.image",
        observe=render_small,
        expert=cartpole_expert,
        build_policy=PixelPolicy,
        loss=cross_entropy,
        loss_name="cross-entropy",
        batch_size=64,
    )


# --- Recording -----------------------------------------------------------------------------------


@contextlib.contextmanager
def open_environment(task: Task) -> Iterator[Environment]:
    """Make the environment, rendering without a display, and close it at the end."""
    before = os.environ.get("SDL_VIDEODRIVER")
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"pygame\b")
            environment = gymnasium.make(
                task.env_id, render_mode=task.render_mode, max_episode_steps=task.max_steps
            )
            try:
                yield environment
            finally:
                environment.close()
    finally:
        if before is None:
            del os.environ["SDL_VIDEODRIVER"]
        else:
            os.environ["SDL_VIDEODRIVER"] = before


def record_episode(
    task: Task, environment: Environment, rng: np.random.Generator
) -> dict[str, Array]:
    """Run one episode and return it as the columns that `OnlineBuffer.add_data` takes."""
    frames: list[dict[str, Any]] = []
    raw, _ = environment.reset(seed=int(rng.integers(2**31)))
    action = None
    done = False
    while not done:
        action = task.expert(raw, action)
        frame = {task.observation_key: task.observe(environment, raw), "action": action}
        raw, reward, terminated, truncated, _ = environment.step(action)
        done = terminated or truncated
        frames.append({**frame, "next.reward": reward, "next.done": done})
    count = len(frames)
    columns = {
        key: np.stack([np.asarray(frame[key], dtype=column["dtype"]) for frame in frames])
        for key, column in task.spec.items()
    }
    return {
        **columns,
        "index": np.arange(count),
        "episode_index": np.zeros(count, dtype=np.int64),
        "frame_index": np.arange(count),
        "timestamp": np.arange(count) / task.fps,
    }


def store(task: Task, directory: Path, *, episodes: int, seed: int) -> Rate:
    """Record episodes into a new buffer and close it.

    Returns:
        The frames stored and the seconds spent in `add_data`, without those of the environment.
    """
    rng = np.random.default_rng(seed)
    frames = 0
    seconds = 0.0
    buffer = OnlineBuffer(directory, task.spec, episodes * task.max_steps, task.fps)
    with buffer, open_environment(task) as environment:
        for _ in tqdm(range(episodes), desc=f"  recording {task.env_id}", leave=False):
            episode = record_episode(task, environment, rng)
            start = time.perf_counter()
            buffer.add_data(episode)
            seconds += time.perf_counter() - start
            frames += len(episode["index"])
    return Rate(frames, seconds)


# --- Reading -------------------------------------------------------------------------------------


def split_episodes(buffer: OnlineBuffer) -> tuple[list[int], list[int]]:
    """Positions of the frames to fit to, and of those of the last tenth of the episodes."""
    episode = torch.as_tensor(buffer.get_data_by_key(OnlineBuffer.EPISODE_INDEX_KEY))
    first_held_out = int(episode.max()) + 1 - max(1, buffer.num_episodes // 10)
    held_out = episode >= first_held_out
    return torch.nonzero(~held_out)[:, 0].tolist(), torch.nonzero(held_out)[:, 0].tolist()


def item_loader(buffer: OnlineBuffer, positions: list[int], batch_size: int) -> DataLoader[Any]:
    """The plain `DataLoader`, which splits what the buffer reads and collates it again."""
    return DataLoader(buffer, batch_size=batch_size, sampler=SubsetRandomSampler(positions))


def batch_loader(buffer: OnlineBuffer, positions: list[int], batch_size: int) -> DataLoader[Any]:
    """The buffer's own `DataLoader`, which hands on whole batches."""
    return buffer.loader(batch_size, sampler=SubsetRandomSampler(positions))


def time_sampling(loader: DataLoader[Any]) -> Rate:
    """Draw batches for a while."""
    frames = 0
    start = time.perf_counter()
    while time.perf_counter() - start < SECONDS_OF_TIMING:
        for batch in loader:
            frames += len(batch["index"])
    return Rate(frames, time.perf_counter() - start)


# --- Behaviour cloning ---------------------------------------------------------------------------


def masked_loss(task: Task, policy: nn.Module, batch: Batch) -> Tensor:
    """Mean loss over the actions that exist: those past the end of an episode are padding."""
    losses = task.loss(policy(batch[task.observation_key]), batch["action"])
    return losses[~batch["action_is_pad"]].mean()


@torch.no_grad()
def imitation_error(task: Task, policy: nn.Module, loader: DataLoader[Any]) -> float:
    """Loss of the policy over all batches of a loader."""
    return float(torch.stack([masked_loss(task, policy, batch) for batch in loader]).mean())


def fit(
    task: Task,
    policy: nn.Module,
    loader: DataLoader[Any],
    held_out: DataLoader[Any],
    seconds: float,
) -> Fit:
    """Fit a policy to the expert's actions for some seconds, showing a progress bar."""
    before = imitation_error(task, policy, held_out)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    count = 0
    elapsed = 0.0
    start = time.perf_counter()
    with tqdm(
        total=seconds,
        desc=f"  fitting {task.env_id}",
        bar_format="{desc} {percentage:3.0f}%|{bar}|{postfix}",
        leave=False,
    ) as progress:
        while elapsed < seconds:
            for batch in loader:
                loss = masked_loss(task, policy, batch)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                count += 1
                previous, elapsed = elapsed, time.perf_counter() - start
                progress.set_postfix_str(f"{task.loss_name} {loss.item():.3f}", refresh=False)
                progress.update(min(elapsed, seconds) - previous)
                if elapsed >= seconds:
                    break
    return Fit(count, elapsed, before, imitation_error(task, policy, held_out))


# --- Output --------------------------------------------------------------------------------------


def table(values: dict[str, Tensor]) -> list[str]:
    """One line per value with its shape and dtype."""
    width = max(map(len, values))
    return [
        f"    {key:<{width}}  {str(value.dtype).removeprefix('torch.'):<7}  {tuple(value.shape)}"
        for key, value in values.items()
    ]


def describe(buffer: OnlineBuffer, directory: Path) -> list[str]:
    """What the buffer holds: counts, size on disk, and the shape and dtype of each column."""
    size = sum(file.stat().st_size for file in directory.iterdir())
    columns = {key: torch.as_tensor(buffer.get_data_by_key(key)) for key in buffer.data_keys}
    return [
        f"  stored: {buffer.num_episodes} episodes, {buffer.num_frames:,} frames, {size:,} bytes",
        *table(columns),
    ]


def demonstrate(task: Task, directory: Path, *, seconds: float, episodes: int, seed: int) -> None:
    """Take one task from recording to a fitted policy, printing each step's outcome."""
    print(f"{task.env_id} in {directory}")
    inserted = store(task, directory, episodes=episodes, seed=seed)
    with OnlineBuffer(directory, delta_timestamps=task.delta_timestamps) as buffer:
        print(*describe(buffer, directory), sep="\n")
        known, unseen = split_episodes(buffer)
        items = item_loader(buffer, known, task.batch_size)
        batches = batch_loader(buffer, known, task.batch_size)
        held_out = batch_loader(buffer, unseen, task.batch_size)
        batch = next(iter(items))
        print(f"  a batch of {task.batch_size} frames with their windows:", *table(batch), sep="\n")
        print(f"  insert, one episode a call:    {inserted}")
        print(f"  sampling, DataLoader(buffer):  {time_sampling(items)}")
        print(f"  sampling, buffer.loader():     {time_sampling(batches)}")
        policy = task.build_policy()
        result = fit(task, policy, batches, held_out, seconds)
    print(f"  behaviour cloning: {result.batches} batches in {result.seconds:.1f} s")
    print(
        f"  {task.loss_name} on unseen episodes: "
        f"{result.loss_before:.3f} before, {result.loss_after:.3f} after"
    )


def run(directory: Path | None, *, seconds: float, episodes: int, seed: int) -> None:
    """Run the demo for both tasks.

    Args:
        directory: Where to keep the buffers `state` and `pixels`; None is a temporary directory,
            removed at the end.
        seconds: Seconds of fitting per policy.
        episodes: Episodes to record per environment, at least two: the last are held out.
        seed: Seed of the environments, the sampling and the policies.
    """
    with contextlib.ExitStack() as stack:
        if directory is None:
            temporary = tempfile.TemporaryDirectory(prefix="fastbuffer-demo-")
            directory = Path(stack.enter_context(temporary))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(seed)
        for name, task in (("state", pendulum_task()), ("pixels", cartpole_task())):
            demonstrate(task, directory / name, seconds=seconds, episodes=episodes, seed=seed)
