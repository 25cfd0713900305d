"""Drawing the frames of a buffer's episodes, each once per epoch."""

from collections.abc import Iterable

from fastbuffer import _arguments, _sides
from fastbuffer._arguments import describe, refused
from fastbuffer._core import EpisodeChoice
from fastbuffer.online_buffer import OnlineBuffer
from fastbuffer.samplers.epochs import Beginning, Epoch, EpochSampler, Positions


class EpisodeSampler(EpochSampler):
    """Draws every frame of a buffer's episodes once per epoch, without some at either end of each.

    An epoch has the frames that are live when it begins. Those that are overwritten before their
    turn are left out. It takes memory for each episode, not for each frame.

    Several processes that train together each draw a part of an epoch, without overlap. They have
    to begin it with the same frames: where the buffer is written meanwhile, one of them begins, and
    the others load its `state_dict`.
    """

    _BEGINNING = ("length", "end", "frames")

    def __init__(
        self,
        buffer: OnlineBuffer,
        drop_n_first_frames: int = 0,
        drop_n_last_frames: int = 0,
        episodes: Iterable[int] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        *,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        """Begin before epoch 0. The buffer may still be empty.

        Args:
            buffer: The buffer.
            drop_n_first_frames: How many frames at the beginning of each episode are not drawn, for
                windows that reach back. Of an episode that has lost frames, the first that are left
                count as its beginning.
            drop_n_last_frames: How many frames at the end of each episode are not drawn, for
                windows that reach ahead.
            episodes: The numbers (`episode_index`) of the episodes to draw from, also of ones that
                are not there yet. None for all.
            shuffle: Whether frames come in random order, or episode by episode as they were added.
            seed: See `EpochSampler`. All replicas have the same.
            num_replicas: How many processes share an epoch. Each gets as many frames as another; a
                rest is not drawn.
            rank: Which of them this is, from 0 on.

        Raises:
            ValueError: A number is out of range.
            TypeError: An argument has the wrong type.
        """
        super().__init__(seed)
        buffer = _sides.online(buffer, "buffer")
        self._choice = EpisodeChoice(
            buffer._core,
            _sides.drop(drop_n_first_frames, "drop_n_first_frames"),
            _sides.drop(drop_n_last_frames, "drop_n_last_frames"),
            None if episodes is None else _numbers(episodes),
        )
        self._shuffle = _arguments.boolean(shuffle, "shuffle")
        self._replicas = _arguments.integer(num_replicas, "num_replicas", at_least=1)
        last = self._replicas - 1
        self._rank = _arguments.integer(rank, "rank", at_least=0, at_most=last)

    def __len__(self) -> int:
        """The number of positions in an epoch that would begin now."""
        return self._choice.count() // self._replicas

    def _begin(self, number: int, beginning: Beginning | None) -> Epoch:
        extent = None if beginning is None else (beginning["end"], beginning["frames"])
        order = self._choice.order(extent, (self._seed, number) if self._shuffle else None)
        end, frames = order.extent
        if frames < self._replicas:
            expected = f"at least {self._replicas} frames of the chosen episodes to draw"
            raise ValueError(refused("buffer", expected, frames))

        def draw(start: int, stop: int) -> Positions:
            first = start * self._replicas + self._rank
            return order.draw(first, self._replicas, stop - start)

        length = frames // self._replicas
        return Epoch(number, draw, {"length": length, "end": end, "frames": frames})


def _numbers(episodes: object) -> list[int]:
    if isinstance(episodes, str | bytes) or not isinstance(episodes, Iterable):
        raise TypeError(refused("episodes", "an iterable of int", describe(episodes)))
    numbers = {_arguments.integer(number, "episodes", at_least=0) for number in episodes}
    if not numbers:
        raise ValueError(refused("episodes", "at least one number, or None for all", "none"))
    return list(numbers)
