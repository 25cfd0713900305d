"""What a synthetic dataset is asked to be, checked before anything is made."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from fastbuffer import _arguments
from fastbuffer._arguments import describe, refused
from fastbuffer._chunks import IMAGE_CHUNK, NUMERIC_CHUNK
from fastbuffer.synthetic.tasks import TASKS, Parameters, Task

IMAGE_KEY = "agentview_rgb"
POSITION_KEY = "synthetic_position"
ACTION_KEY = "synthetic_position_action"
CONTEXT_KEY = "synthetic_context"
MODE_KEY = "synthetic_mode_id"
KEYS = (IMAGE_KEY, POSITION_KEY, ACTION_KEY, CONTEXT_KEY, MODE_KEY)

SMALLEST_IMAGE = 8
MOST_MODES = 256  # what an uint8 can number


class ArraySpec(TypedDict):
    """One array of a dataset.

    `shape` and `chunks` have the frame dimension first, which is 0 in `shape`. `dtype` is a name.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    needs_compressor: bool


@dataclass(frozen=True)
class SyntheticSchema:
    """A synthetic dataset: its task, how many episodes of what kind, and where it goes.

    Functions that take one take any object with these attributes and this method.

    Attributes:
        zarr_path: The store's directory.
        task_name: "circle", "conditional_circle", "sequential_decision", "radial" or
            "corridor_navigation".
        num_episodes: The number of episodes.
        seed: Seed of the noise and the order of episodes.
        image_size: Height and width of the images, in pixels.
        num_modes: The number of directions of "radial", and of gaps of "corridor_navigation", where
            it is even. The other tasks have two modes, or four for "sequential_decision".
        trajectory_length: Frames per episode.
        noise_std: Standard deviation of the noise on positions; the world has side 1.
        num_styles: For "corridor_navigation": the number of ways through each gap.
        mode_weights: How many episodes each mode gets, relative to the others. None for equal ones.
        keys: The arrays to write. None for all of them.

    Raises:
        ValueError: A value is not allowed.
        TypeError: One has the wrong type.
    """

    zarr_path: str | os.PathLike[str]
    task_name: str = "circle"
    num_episodes: int = 1000
    seed: int = 42
    image_size: int = 64
    num_modes: int = 2
    trajectory_length: int = 60
    noise_std: float = 0.01
    num_styles: int = 1
    mode_weights: Sequence[float] | None = None
    keys: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check all values."""
        check(self)

    def get_zarr_array_specs(self) -> dict[str, ArraySpec]:
        """The arrays to write, by their keys."""
        return {
            key: ArraySpec(
                shape=(0, *shape),
                chunks=(IMAGE_CHUNK if key == IMAGE_KEY else NUMERIC_CHUNK, *shape),
                dtype=dtype,
                needs_compressor=True,
            )
            for key, (shape, dtype) in frame_arrays(task_of(self), self.image_size).items()
            if self.keys is None or key in self.keys
        }


def frame_arrays(task: Task, image_size: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """For each key the shape and dtype of what a frame has."""
    return {
        IMAGE_KEY: ((image_size, image_size, 3), "uint8"),
        POSITION_KEY: ((2,), "float32"),
        ACTION_KEY: ((2,), "float32"),
        CONTEXT_KEY: ((task.num_modes,), "float32"),
        MODE_KEY: ((1,), "uint8"),
    }


def task_of(schema: SyntheticSchema) -> Task:
    """The task of a schema that was checked."""
    make = TASKS[schema.task_name]
    return make(
        Parameters(
            num_modes=schema.num_modes,
            num_styles=schema.num_styles,
            length=schema.trajectory_length,
            noise_std=schema.noise_std,
        )
    )


def check(schema: SyntheticSchema) -> None:
    """Refuse what cannot be made.

    Raises:
        ValueError: A value is not allowed.
        TypeError: One has the wrong type.
    """
    _arguments.path(schema.zarr_path, "zarr_path")
    task_name = _arguments.choice(schema.task_name, "task_name", *TASKS)
    for name in ("num_episodes", "num_modes", "num_styles"):
        _arguments.integer(getattr(schema, name), name, at_least=1)
    _arguments.integer(schema.seed, "seed", at_least=0)
    _arguments.integer(schema.image_size, "image_size", at_least=SMALLEST_IMAGE, at_most=2**14)
    _arguments.integer(schema.trajectory_length, "trajectory_length", at_least=2)
    noise_std = _arguments.at_least_zero(schema.noise_std, "noise_std")
    if not np.isfinite(noise_std):
        raise ValueError(refused("noise_std", "a finite number", noise_std))
    if task_name == "corridor_navigation":
        if schema.num_modes % 2:
            raise ValueError(
                refused("num_modes", f"an even number for {task_name}", schema.num_modes)
            )
        _check_modes("num_modes * num_styles", schema.num_modes * schema.num_styles)
    if task_name == "radial":
        _check_modes("num_modes", schema.num_modes)
    if schema.mode_weights is not None:
        _check_weights(schema.mode_weights, task_of(schema).num_modes)
    if schema.keys is not None:
        _check_keys(schema.keys)


def _check_modes(name: str, modes: int) -> None:
    if modes > MOST_MODES:
        raise ValueError(refused(name, f"at most {MOST_MODES}", modes))


def _check_weights(weights: Any, num_modes: int) -> None:
    is_list = isinstance(weights, Sequence | np.ndarray) and getattr(weights, "ndim", 1) == 1
    if isinstance(weights, str | bytes) or not is_list:
        raise TypeError(refused("mode_weights", "a list of numbers", describe(weights)))
    if len(weights) != num_modes:
        expected = f"{num_modes} numbers, one per mode"
        raise ValueError(refused("mode_weights", expected, f"{len(weights)}"))
    for position, weight in enumerate(weights):
        name = f"mode_weights[{position}]"
        number = _arguments.real(weight, name)
        if not (np.isfinite(number) and number > 0):
            raise ValueError(refused(name, "a finite number above 0", number))


def _check_keys(keys: Any) -> None:
    if isinstance(keys, str | bytes) or not isinstance(keys, Sequence | set | frozenset):
        raise TypeError(refused("keys", "a list of str", describe(keys)))
    unknown = [key for key in keys if key not in KEYS]
    if unknown or not keys:
        raise ValueError(refused("keys", f"some of {', '.join(KEYS)}", describe(keys)))
