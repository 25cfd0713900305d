"""The episodes of a synthetic dataset: noise on the paths of its modes, in a drawn order."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fastbuffer.synthetic.tasks import Positions, Task

MOST_DRAWS = 50


def mode_counts(num_episodes: int, num_modes: int, weights: Sequence[float] | None) -> list[int]:
    """How many episodes each mode gets, by the largest remainders; ties go to the lower mode."""
    if weights is None:
        weights = [1.0] * num_modes
    shares = [Fraction(float(weight)) for weight in weights]  # exact, as ties are
    total = sum(shares)
    quotas = [num_episodes * share / total for share in shares]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(num_modes), key=lambda mode: counts[mode] - quotas[mode])
    for mode in by_remainder[: num_episodes - sum(counts)]:
        counts[mode] += 1
    return counts


def draw(
    task: Task, counts: list[int], noise_std: float, rng: np.random.Generator
) -> Iterator[Positions]:
    """The positions of all episodes, mode by mode, float32 of shape (T, 2) each.

    Raises:
        RuntimeError: The noise leads an episode into obstacles again and again.
    """
    for mode, count in enumerate(counts):
        for _ in range(count):
            yield _episode(task, mode, noise_std, rng)


def shuffled(num_episodes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The order in which the drawn episodes are written."""
    order = np.arange(num_episodes)
    rng.shuffle(order)
    return order


def actions_of(positions: Positions) -> Positions:
    """The step from each position of an episode to the next; none at its end."""
    actions = np.zeros_like(positions)
    np.subtract(positions[1:], positions[:-1], out=actions[:-1])
    return actions


def _episode(task: Task, mode: int, noise_std: float, rng: np.random.Generator) -> Positions:
    path = task.paths[mode]
    for _ in range(MOST_DRAWS):
        noise = rng.normal(0, noise_std, path.shape).astype(np.float32)
        positions: Positions = np.clip(path + noise, 0, 1)
        if not (task.avoids_obstacles and task.is_hit_by(positions)):
            return positions
    raise RuntimeError(
        f"noise_std: expected a value with which episodes of mode {mode} ({task.mode_names[mode]}) "
        f"of {task.name} miss its obstacles, got {noise_std}: {MOST_DRAWS} draws in a row hit one"
    )
