"""Drawing from an offline dataset and a buffer together."""

from functools import partial
from typing import Any

from fastbuffer import _arguments, _sides
from fastbuffer._core import Mixture
from fastbuffer.online_buffer import OnlineBuffer
from fastbuffer.samplers.epochs import Beginning, Epoch, EpochSampler, Positions


class MixedSampler(EpochSampler):
    """Draws positions of `ConcatDataset([offline, online])`, with replacement.

    They are drawn by the weights of `compute_sampler_weights`, which are never made: each draw is
    by what the buffer holds then. A `ConcatDataset` takes note of lengths when it is made, so make
    it anew when the buffer has grown; once full, a buffer keeps its length.
    """

    def __init__(
        self,
        offline: Any,
        online: OnlineBuffer,
        ratio: float,
        *,
        offline_drop_n_last_frames: int = 0,
        online_drop_n_last_frames: int = 0,
        num_samples: int | None = None,
        seed: int = 0,
    ) -> None:
        """Begin before epoch 0. The buffer may still be empty.

        Args:
            offline: The offline dataset, as for `compute_sampler_weights`.
            online: The buffer.
            ratio: The online side's share of the draws, from 0 to 1. A side with nothing to draw
                leaves its share to the other.
            offline_drop_n_last_frames: How many frames at the end of each offline episode are not
                drawn.
            online_drop_n_last_frames: The same for the buffer's episodes.
            num_samples: The number of positions in an epoch. None for as many as there are frames
                on both sides when it begins.
            seed: See `EpochSampler`.

        Raises:
            ValueError: A number is out of range, or an episode lies outside the offline dataset.
            TypeError: An argument has the wrong type.
        """
        super().__init__(seed)
        offline_drop = _sides.drop(offline_drop_n_last_frames, "offline_drop_n_last_frames")
        online_drop = _sides.drop(online_drop_n_last_frames, "online_drop_n_last_frames")
        self._online = _sides.online(online, "online")
        share = _sides.share(ratio, "ratio")
        if num_samples is not None:
            num_samples = _arguments.integer(num_samples, "num_samples", at_least=0)
        self._num_samples = num_samples
        self._offline_len, starts, ends = _sides.offline(offline, "offline")
        self._mixture = Mixture(
            *(self._offline_len, starts, ends, offline_drop),
            *(self._online._core, share, online_drop),
        )

    def __len__(self) -> int:
        """The number of positions in an epoch that would begin now."""
        if self._num_samples is not None:
            return self._num_samples
        return self._offline_len + len(self._online)

    def _begin(self, number: int, beginning: Beginning | None) -> Epoch:
        if beginning is None:
            # Without any frame, the first draw says so.
            beginning = {"length": max(len(self), 1) if self._num_samples is None else len(self)}
        return Epoch(number, partial(self._draw, number), beginning)

    def _draw(self, number: int, start: int, stop: int) -> Positions:
        return self._mixture.draw(self._seed, number, start, stop - start)
