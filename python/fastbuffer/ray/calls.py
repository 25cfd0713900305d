"""Calling the shards' actors: what is lost with a killed one is asked for again, for some time."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    RayError,
    RayTaskError,
)

#: Between two attempts while an actor is started again, in seconds.
_PAUSE_S = 0.05
#: Threads of an actor: inserts come one at a time, and do not wait for reads.
GROUPS = {"write": 1, "read": 4}
_WRITES = {"add", "close"}


class ShardUnavailableError(RuntimeError):
    """A shard cannot be reached: its node is gone, it was closed, or it does not answer in time.

    The message names the shard, its node and its directory.
    """


@dataclass(frozen=True)
class Place:
    """A shard's actor, and where its directory is."""

    shard: int
    node_id: str
    address: str
    directory: Path
    actor: Any

    def __str__(self) -> str:
        """For messages."""
        return f"shard {self.shard} on node {self.node_id} ({self.address}:{self.directory})"


class Call:
    """A question to a shard that has been sent."""

    def __init__(self, place: Place, method: str, arguments: tuple[Any, ...]) -> None:
        """Send it."""
        self._place = place
        self._method = method
        self._arguments = arguments
        self._answer = self._sent()

    def _sent(self) -> Any:
        method = getattr(self._place.actor, self._method)
        group = "write" if self._method in _WRITES else "read"
        return method.options(concurrency_group=group).remote(*self._arguments)

    @staticmethod
    def wait(calls: Sequence["Call"], deadline: float) -> None:
        """Wait until all are answered, or for as long as there is time."""
        answers = [call._answer for call in calls]
        ray.wait(answers, num_returns=len(answers), timeout=_left(deadline))

    def result(self, deadline: float) -> Any:
        """The answer. Arrays in it are read-only views of Ray's object store where they are large.

        Args:
            deadline: When to give up, as `time.monotonic` counts.

        Raises:
            ShardUnavailableError: There is no answer.
            Exception: What the shard raised.
        """
        while True:
            left = _left(deadline)
            try:
                return ray.get(self._answer, timeout=left)
            except RayTaskError as error:
                if not isinstance(error.cause, Exception):
                    raise
                raise error.cause from None
            except (ActorUnavailableError, ObjectLostError) as error:
                # Its process was killed, and Ray starts another one on the same directory.
                if left == 0:
                    raise self._unavailable(error) from error
            except GetTimeoutError as error:
                raise self._unavailable("no answer in time") from error
            except RayError as error:
                raise self._unavailable(error) from error
            time.sleep(_PAUSE_S)
            self._answer = self._sent()

    def _unavailable(self, reason: object) -> ShardUnavailableError:
        return ShardUnavailableError(f"{self._place}: {reason}")


def _left(deadline: float) -> float | None:
    """The time until then, as Ray takes it."""
    return None if deadline == math.inf else max(deadline - time.monotonic(), 0)


class Shards:
    """The shards of a buffer, in order, for calls of their methods."""

    def __init__(self, places: Sequence[Place], timeout_s: float) -> None:
        """Know them.

        Args:
            places: One for each shard.
            timeout_s: How long to wait for answers, in seconds.
        """
        self.places = list(places)
        self._timeout_s = timeout_s

    def __len__(self) -> int:
        """The number of shards."""
        return len(self.places)

    def start(self, shard: int, method: str, *arguments: Any) -> Call:
        """Send a question to a shard."""
        return Call(self.places[shard], method, arguments)

    def results(self, calls: Sequence[Call]) -> list[Any]:
        """All answers.

        Raises:
            ShardUnavailableError, Exception: What the first call that failed raised, once all
                others are answered, too.
        """
        deadline = time.monotonic() + self._timeout_s
        if calls:  # Ray then brings what is on other nodes at the same time
            Call.wait(calls, deadline)
        answers, errors = [], []
        for call in calls:
            try:
                answers.append(call.result(deadline))
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return answers

    def all(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all shards to the same question."""
        return self.results([self.start(shard, method, *arguments) for shard in range(len(self))])
