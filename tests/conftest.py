"""Fixtures that several test files share; see helpers.py for plain functions."""

import numpy as np
import pytest


@pytest.fixture
def torch():
    """Torch, or a skipped test where it is not installed."""
    return pytest.importorskip("torch")


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)
