from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AliasTable",
    "Buffer",
    "EpisodeChoice",
    "EpisodeOrder",
    "HeldDirectory",
    "Mixture",
    "Priorities",
    "Windows",
    "after_fork_in_child",
    "after_fork_in_parent",
    "before_fork",
    "draw_without_replacement",
    "exchange_paths",
    "repair_directory",
    "sampler_weights",
    "verify_directory",
]

_Field = tuple[str, str, list[int]]

_Weights = NDArray[np.float32] | NDArray[np.float64]

@final
class AliasTable:
    def __new__(cls, weights: _Weights) -> AliasTable: ...
    def draw(self, seed: int, epoch: int, start: int, count: int) -> NDArray[np.int64]: ...

@final
class Buffer:
    def __new__(
        cls,
        write_dir: str | PathLike[str],
        data_spec: list[_Field] | None,
        buffer_capacity: int | None,
        fps: float | None,
        deltas: list[tuple[str, NDArray[np.float64]]],
        preallocate: bool,
        read_only: bool,
        fsync: bool,
    ) -> Buffer: ...
    @property
    def write_dir(self) -> Path: ...
    @property
    def buffer_capacity(self) -> int: ...
    @property
    def fps(self) -> float | None: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def columns(self) -> list[_Field]: ...
    @property
    def num_frames(self) -> int: ...
    @property
    def num_episodes(self) -> int: ...
    def check_writable(self) -> None: ...
    def append(self, data: dict[str, NDArray[Any]]) -> tuple[int, int]: ...
    def gather(
        self,
        indices: NDArray[np.int64],
        windows: Windows,
        threads: int,
        out: dict[str, NDArray[Any]] | None = None,
    ) -> dict[str, NDArray[Any]]: ...
    def gather_nstep(
        self,
        indices: NDArray[np.int64],
        windows: Windows,
        threads: int,
        n_step: int,
        gamma: float,
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64], NDArray[np.float64]]: ...
    def item(self, index: int, windows: Windows) -> dict[str, NDArray[Any]]: ...
    def column(self, key: str) -> NDArray[Any]: ...
    def live_episodes(self) -> tuple[int, int, NDArray[np.uintp]]: ...
    def flush(self) -> None: ...
    def take_recovery(self) -> tuple[int, int, int] | None: ...
    def close(self) -> None: ...

@final
class EpisodeChoice:
    def __new__(
        cls,
        buffer: Buffer,
        drop_n_first_frames: int,
        drop_n_last_frames: int,
        episodes: list[int] | None,
    ) -> EpisodeChoice: ...
    def count(self) -> int: ...
    def order(
        self, extent: tuple[int, int] | None, shuffled: tuple[int, int] | None
    ) -> EpisodeOrder: ...

@final
class EpisodeOrder:
    @property
    def extent(self) -> tuple[int, int]: ...
    def draw(self, start: int, step: int, count: int) -> NDArray[np.int64]: ...

@final
class Mixture:
    def __new__(
        cls,
        offline_len: int,
        offline_from: NDArray[np.int64],
        offline_to: NDArray[np.int64],
        offline_drop_n_last_frames: int,
        online: Buffer,
        online_sampling_ratio: float,
        online_drop_n_last_frames: int,
    ) -> Mixture: ...
    def draw(self, seed: int, epoch: int, start: int, count: int) -> NDArray[np.int64]: ...

@final
class Priorities:
    def __new__(cls, buffer: Buffer, alpha: float) -> Priorities: ...
    def draw(self, seed: int, epoch: int, start: int, count: int) -> NDArray[np.int64]: ...
    def sample(
        self, seed: int, number: int, count: int, beta: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...
    def update(self, indices: NDArray[np.int64], priorities: NDArray[np.float64]) -> None: ...
    def mass(self) -> tuple[float, float]: ...
    def raise_largest(self, priority: float) -> None: ...
    def get(self, indices: NDArray[np.int64] | None) -> NDArray[np.float64]: ...

@final
class Windows:
    def __new__(
        cls, buffer: Buffer, deltas: list[tuple[str, NDArray[np.float64]]], tolerance_s: float
    ) -> Windows: ...
    def empty(self, batch_size: int) -> dict[str, NDArray[Any]]: ...

@final
class HeldDirectory:
    def __new__(cls, path: str | PathLike[str]) -> HeldDirectory: ...
    def release(self) -> None: ...

def before_fork() -> None: ...
def after_fork_in_parent() -> None: ...
def after_fork_in_child() -> None: ...
def draw_without_replacement(
    weights: _Weights, count: int, seed: int, epoch: int
) -> NDArray[np.int64]: ...
def exchange_paths(a: str | PathLike[str], b: str | PathLike[str]) -> None: ...
def sampler_weights(
    offline_len: int,
    offline_from: NDArray[np.int64],
    offline_to: NDArray[np.int64],
    offline_drop_n_last_frames: int,
    online: Buffer | None,
    online_sampling_ratio: float,
    online_drop_n_last_frames: int,
) -> NDArray[np.float32]: ...
def verify_directory(
    path: str | PathLike[str], listener: Callable[[int, int], None]
) -> list[tuple[Path, str]]: ...
def repair_directory(
    path: str | PathLike[str], listener: Callable[[int, int], None]
) -> list[tuple[Path, str]]: ...
