"""Samplers: in which order frames are drawn. They work as samplers of torch, and without it.

Iterating over a sampler is one epoch of positions; `batches` groups them. What is drawn follows
from the seed, the number of the epoch and, where a sampler follows a buffer, what is in that, and
is the same on every platform.
"""

from fastbuffer.samplers.episode import EpisodeSampler
from fastbuffer.samplers.mixed import MixedSampler
from fastbuffer.samplers.prioritized import PrioritizedSampler
from fastbuffer.samplers.weighted import WeightedSampler

__all__ = ["EpisodeSampler", "MixedSampler", "PrioritizedSampler", "WeightedSampler"]
