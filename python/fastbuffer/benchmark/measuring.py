"""How two ways to do the same work are timed."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, TypeVar

import numpy as np

from fastbuffer.benchmark.workloads import Columns

T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    """Two functions that do the same work."""

    ours: Callable[[], object]
    theirs: Callable[[], object]
    #: How many times more of the work `ours` does in one call.
    scale: float = 1.0

    def measure(self, seconds: float) -> tuple[float, float]:
        """Median times of both for the same work, each called for a while in turns.

        Not call by call: a call of one would then find the caches full of the other's data.
        """
        times: tuple[list[float], list[float]] = ([], [])
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times[0]) < 5:
            for work, spent in zip((self.ours, self.theirs), times, strict=True):
                work()
                spent.extend(timed(work, seconds / 20))
        ours, theirs = map(statistics.median, times)
        return ours, theirs * self.scale


def timed(work: Callable[[], object], seconds: float) -> list[float]:
    """The times of some calls, at least one."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return times


def in_turn(work: Callable[[T], object], arguments: Sequence[T]) -> Callable[[], object]:
    """A function that works on one argument after the other, all of them seen before."""
    for argument in arguments:
        work(argument)
    turns = cycle(arguments)
    return lambda: work(next(turns))


def check_same(a: dict[str, Any], b: Columns) -> None:
    """Refuse to time contenders that disagree."""
    for key, value in b.items():
        np.testing.assert_array_equal(np.asarray(a[key]), np.asarray(value), err_msg=key)
