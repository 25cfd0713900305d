"""Procedurally generated episodes of simple planar tasks, as Zarr datasets.

An agent moves through a square world, along one of a task's paths ("modes") with noise added. What
a policy must learn from such data, that several actions are right in the same place, is known
exactly, which makes the datasets small tests of imitation learning.
"""
