"""What ``fastbuffer demo`` runs: a synthetic dataset, a buffer of it, a policy learnt from that.

The dataset is `conditional_circle`: an agent goes around one of two circles, and the context says
which. It becomes a buffer, which is read in windows by a DataLoader that feeds a small policy. A
picture shows the paths of the expert beside those that the policy takes by itself.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbuffer._optional import require

for _module in ("torch", "tqdm", "cv2", "matplotlib"):
    require(_module, extra="demo", purpose="the demo")

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, SubsetRandomSampler  # noqa: E402
from tqdm import tqdm  # noqa: E402

from fastbuffer import (  # noqa: E402
    OnlineBuffer,
    SyntheticSchema,
    create_replay_buffer_from_synthetic,
)
from fastbuffer.synthetic.plot import draw_layout, mode_colors  # noqa: E402
from fastbuffer.synthetic.schema import (  # noqa: E402
    ACTION_KEY,
    CONTEXT_KEY,
    IMAGE_KEY,
    MODE_KEY,
    POSITION_KEY,
    task_of,
)
from fastbuffer.synthetic.tasks import Task  # noqa: E402

Batch = dict[str, Tensor]
Paths = NDArray[np.float32]

FPS = 10
ACTION_STEPS = 8
#: Steps that the policy goes before it looks where it is.
STEPS_AT_ONCE = 4
BATCH_SIZE = 256
SECONDS_OF_TIMING = 0.5
PATHS_PER_MODE = 20
DELTA_TIMESTAMPS = {
    IMAGE_KEY: [-1 / FPS, 0.0],
    POSITION_KEY: [-1 / FPS, 0.0],
    ACTION_KEY: [step / FPS for step in range(ACTION_STEPS)],
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


class Policy(nn.Module):
    """From two positions and the context to the next steps."""

    def __init__(self, step_size: float) -> None:
        """Build the layers for steps of about that size."""
        super().__init__()
        self.step_size = step_size
        self.layers = nn.Sequential(
            nn.Linear(6, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, 2 * ACTION_STEPS),
        )

    def forward(self, positions: Tensor, context: Tensor) -> Tensor:
        """Map (batch, 2, 2) positions and (batch, 2) contexts to (batch, ACTION_STEPS, 2) steps."""
        now = positions[:, 1]
        moved = (now - positions[:, 0]) / self.step_size
        steps: Tensor = self.layers(torch.cat([4 * (now - 0.5), moved, context], dim=1))
        return self.step_size * steps.view(-1, ACTION_STEPS, 2)


# --- Reading -------------------------------------------------------------------------------------


def split_episodes(buffer: OnlineBuffer) -> tuple[list[int], list[int]]:
    """Positions of the frames to fit to, and of those of the last tenth of the episodes."""
    episode = torch.as_tensor(buffer.get_data_by_key(OnlineBuffer.EPISODE_INDEX_KEY))
    first_held_out = int(episode.max()) + 1 - max(1, buffer.num_episodes // 10)
    held_out = episode >= first_held_out
    return torch.nonzero(~held_out)[:, 0].tolist(), torch.nonzero(held_out)[:, 0].tolist()


def item_loader(buffer: OnlineBuffer, positions: list[int]) -> DataLoader[Any]:
    """The plain `DataLoader`, which splits what the buffer reads and collates it again."""
    return DataLoader(buffer, batch_size=BATCH_SIZE, sampler=SubsetRandomSampler(positions))


def batch_loader(buffer: OnlineBuffer, positions: list[int]) -> DataLoader[Any]:
    """The buffer's own `DataLoader`, which hands on whole batches."""
    return buffer.loader(BATCH_SIZE, sampler=SubsetRandomSampler(positions))


def for_a_while(loader: DataLoader[Any], seconds: float) -> Iterator[tuple[Batch, float]]:
    """Batches, epoch after epoch, with the seconds that have passed before each."""
    start = time.perf_counter()
    while True:
        for batch in loader:
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                return
            yield batch, elapsed


def time_sampling(loader: DataLoader[Any]) -> Rate:
    """Draw batches for a while."""
    start = time.perf_counter()
    frames = sum(len(batch["index"]) for batch, _ in for_a_while(loader, SECONDS_OF_TIMING))
    return Rate(frames, time.perf_counter() - start)


# --- Behaviour cloning ---------------------------------------------------------------------------


def masked_loss(policy: Policy, batch: Batch) -> Tensor:
    """Mean squared error over the steps that exist: those past an episode's end are padding."""
    predicted = policy(batch[POSITION_KEY], batch[CONTEXT_KEY])
    errors = functional.mse_loss(predicted, batch[ACTION_KEY], reduction="none")
    return errors[~batch[f"{ACTION_KEY}_is_pad"]].mean() / policy.step_size**2


@torch.no_grad()
def imitation_error(policy: Policy, loader: DataLoader[Any]) -> float:
    """Loss of the policy over all batches of a loader."""
    return float(torch.stack([masked_loss(policy, batch) for batch in loader]).mean())


def fit(policy: Policy, loader: DataLoader[Any], held_out: DataLoader[Any], seconds: float) -> Fit:
    """Fit a policy to the expert's steps for some seconds, showing a progress bar."""
    before = imitation_error(policy, held_out)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    count, previous = 0, 0.0
    with tqdm(
        total=seconds,
        desc="  fitting",
        bar_format="{desc} {percentage:3.0f}%|{bar}|{postfix}",
        leave=False,
    ) as progress:
        for batch, elapsed in for_a_while(loader, seconds):
            loss = masked_loss(policy, batch)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            count += 1
            progress.set_postfix_str(f"squared error {loss.item():.3f}", refresh=False)
            progress.update(elapsed - previous)
            previous = elapsed
    return Fit(count, seconds, before, imitation_error(policy, held_out))


@torch.no_grad()
def follow(policy: Policy, starts: Paths, mode: int, length: int) -> Paths:
    """The paths that the policy takes by itself, of shape (paths, length, 2)."""
    now = torch.from_numpy(starts)
    before = now
    context = functional.one_hot(torch.full((len(starts),), mode), 2).float()
    path = [now]
    while len(path) < length:
        steps = policy(torch.stack([before, now], dim=1), context)
        for step in steps[:, :STEPS_AT_ONCE].unbind(dim=1):
            before, now = now, now + step
            path.append(now)
    return torch.stack(path[:length], dim=1).numpy()


# --- Output --------------------------------------------------------------------------------------


def expert_paths(buffer: OnlineBuffer) -> list[Paths]:
    """For each mode the paths of some episodes, of shape (paths, length, 2)."""
    columns = {key: np.asarray(buffer.get_data_by_key(key)) for key in (POSITION_KEY, MODE_KEY)}
    paths = columns[POSITION_KEY].reshape(buffer.num_episodes, -1, 2)
    modes = columns[MODE_KEY].reshape(buffer.num_episodes, -1)[:, 0]
    return [paths[modes == mode][:PATHS_PER_MODE] for mode in (0, 1)]


def distance_to(task: Task, mode: int, paths: Paths) -> float:
    """How far the points of paths are from the mode's own path, on average."""
    ideal = task.paths[mode]
    apart = np.linalg.norm(paths[..., None, :] - ideal, axis=-1)
    return float(apart.min(axis=-1).mean())


def draw_paths(task: Task, expert: list[Paths], learnt: list[Paths], picture: Path) -> None:
    """Draw the expert's paths and the policy's, side by side."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(11, 5.6), dpi=120, layout="constrained")
    colors = mode_colors(task.num_modes)
    for axes, title, paths in zip(
        figure.subplots(1, 2), ("expert", "policy"), (expert, learnt), strict=True
    ):
        draw_layout(axes, task)
        for color, of_mode in zip(colors, paths, strict=True):
            for path in of_mode:
                axes.plot(*path.T, color=color, alpha=0.5, linewidth=1)
                axes.plot(*path[0], color="black", marker="o", markersize=2)
        count = sum(map(len, paths))
        axes.set_title(f"{task.name}, {title}: {count} paths")
    handles = [
        Line2D([], [], color=color, label=name)
        for color, name in zip(colors, task.mode_names, strict=True)
    ]
    handles.append(Line2D([], [], color="black", marker="o", linestyle="", label="start"))
    figure.legend(handles=handles, loc="outside right upper", title="mode")
    figure.savefig(picture)


def table(values: dict[str, Any]) -> list[str]:
    """One line per value with its shape and dtype."""
    width = max(map(len, values))
    return [
        f"    {key:<{width}}  {str(value.dtype).removeprefix('torch.'):<7}  {tuple(value.shape)}"
        for key, value in values.items()
    ]


def describe(buffer: OnlineBuffer) -> list[str]:
    """What the buffer holds: counts, size on disk, and the shape and dtype of each column."""
    size = sum(file.stat().st_size for file in buffer.write_dir.iterdir())
    frame = OnlineBuffer(buffer.write_dir, mode="r")[0]  # without windows
    return [
        f"  stored: {buffer.num_episodes} episodes, {buffer.num_frames:,} frames, {size:,} bytes",
        "  of a frame:",
        *table(frame),
    ]


def demonstrate(
    directory: Path, picture: Path, *, seconds: float, episodes: int, seed: int
) -> None:
    """Go from a dataset to a policy and the picture, printing each step's outcome."""
    schema = SyntheticSchema(
        directory / "dataset.zarr", "conditional_circle", num_episodes=episodes, seed=seed
    )
    task, length = task_of(schema), schema.trajectory_length
    start = time.perf_counter()
    create_replay_buffer_from_synthetic(schema)
    made = Rate(episodes * length, time.perf_counter() - start)
    print(f"dataset {schema.zarr_path}: {made}")

    start = time.perf_counter()
    buffer = OnlineBuffer.from_zarr(
        schema.zarr_path, directory / "buffer", fps=FPS, delta_timestamps=DELTA_TIMESTAMPS
    )
    imported = Rate(len(buffer), time.perf_counter() - start)
    print(f"buffer {buffer.write_dir}: {imported}")
    print(*describe(buffer), sep="\n")

    known, unseen = split_episodes(buffer)
    items, batches = item_loader(buffer, known), batch_loader(buffer, known)
    print(f"  a batch of {BATCH_SIZE} frames with their windows:")
    print(*table(next(iter(items))), sep="\n")
    print(f"  sampling, DataLoader(buffer):  {time_sampling(items)}")
    print(f"  sampling, buffer.loader():     {time_sampling(batches)}")

    step_size = float(torch.as_tensor(buffer.get_data_by_key(ACTION_KEY)).std())
    policy = Policy(step_size)
    result = fit(policy, batches, batch_loader(buffer, unseen), seconds)
    print(f"behaviour cloning: {result.batches} batches in {result.seconds:.1f} s")
    print(
        "  squared error on unseen episodes, in variances of a step: "
        f"{result.loss_before:.3f} before, {result.loss_after:.3f} after"
    )
    expert = expert_paths(buffer)
    learnt = [follow(policy, paths[:, 0], mode, length) for mode, paths in enumerate(expert)]
    for mode, name in enumerate(task.mode_names):
        by_expert, by_policy = (distance_to(task, mode, paths[mode]) for paths in (expert, learnt))
        print(f"  distance from the {name} circle: expert {by_expert:.3f}, policy {by_policy:.3f}")
    draw_paths(task, expert, learnt, picture)
    print(f"picture {picture}")


def run(directory: Path | None, picture: Path, *, seconds: float, episodes: int, seed: int) -> None:
    """Run the demo.

    Args:
        directory: Where to keep the dataset and the buffer; None is a temporary directory, removed
            at the end.
        picture: Where the picture goes, as PNG.
        seconds: Seconds of fitting.
        episodes: Episodes of the dataset, at least four: the last ones are held out.
        seed: Seed of the dataset, the sampling and the policy.
    """
    with contextlib.ExitStack() as stack:
        if directory is None:
            temporary = tempfile.TemporaryDirectory(prefix="fastbuffer-demo-")
            directory = Path(stack.enter_context(temporary))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(seed)
        demonstrate(directory, picture, seconds=seconds, episodes=episodes, seed=seed)
