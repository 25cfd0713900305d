"""Buffers made of something else: they are there once they are complete."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fastbuffer import _arguments
from fastbuffer._arguments import DataSpec, DeltaTimestamps, refused
from fastbuffer._staging import staging
from fastbuffer._tensors import Output
from fastbuffer.online_buffer import OnlineBuffer

Buffer = TypeVar("Buffer", bound=OnlineBuffer)


def checked_target(path: str | os.PathLike[str], name: str) -> Path:
    """Where something new goes.

    Args:
        path: Its directory.
        name: What the argument is called.

    Raises:
        FileExistsError: Something is there.
        ValueError: It is the working directory, which nothing can take the place of.
    """
    target = Path(os.path.realpath(_arguments.path(path, name)))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(refused(name, "nothing, or an empty directory", target))
    if target == Path.cwd():
        raise ValueError(refused(name, "another directory than the working one", path))
    return target


def build(
    cls: type[Buffer],
    target: Path,
    spec: DataSpec,
    capacity: int,
    fps: float | None,
    delta_timestamps: DeltaTimestamps | None,
    output: Output | None,
    insert: Callable[[OnlineBuffer], None],
) -> Buffer:
    """Make a buffer at `target`, filled by `insert`, and open it."""
    with staging(target) as directory:
        built = directory / "buffer"
        with cls(built, spec, capacity, fps, delta_timestamps, output="numpy") as buffer:
            insert(buffer)
        built.rename(target)  # over an empty directory, and nothing else
    return cls(target, delta_timestamps=delta_timestamps, output=output)
