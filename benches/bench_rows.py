"""The same comparisons for pytest-benchmark: `pytest benches/bench_rows.py`."""

import pytest

from benches.rows import ROWS


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: f"{row.name} / {row.against}")
def pair(request):
    """The two functions of a comparison."""
    if not request.param.is_available():
        pytest.skip(f"needs {' and '.join(request.param.needs)}")
    with request.param.prepared(quick=request.config.getoption("benchmark_disable")) as pair:
        yield pair


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_row(pair, side, benchmark):
    """One side of it."""
    benchmark(getattr(pair, side))
