"""How many threads a copy may use, and that it gives the same with any number."""

import os

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from helpers import assert_equal, make_episodes, refused_with, run_python

SPEC = {"image": {"shape": (96, 96, 3), "dtype": np.uint8}}
DELTAS = {"image": [-0.1, 0.0]}
COUNT_THREADS = """
import sys
from fastbuffer import OnlineBuffer
buffer = OnlineBuffer(sys.argv[1], output="numpy")
print(buffer._core.num_threads)
"""


@pytest.fixture
def buffer(tmp_path):
    """Images that have wrapped."""
    buffer = OnlineBuffer(
        tmp_path / "buffer", SPEC, 200, 10, {"image": [-0.1, 0.0]}, output="numpy"
    )
    buffer.add_data(make_episodes([120, 140], SPEC, np.random.default_rng(0)))
    return buffer


def test_any_number_of_threads_gives_the_same(buffer, monkeypatch):
    indices = np.random.default_rng(0).permutation(200)[:190]
    batches = []
    for threads in (1, 2, 3, 64):
        monkeypatch.setenv("FASTBUFFER_NUM_THREADS", str(threads))
        other = OnlineBuffer(
            buffer.write_dir, delta_timestamps=buffer.delta_timestamps, output="numpy"
        )
        assert other._core.num_threads == threads
        batches.append(other.get_batch(indices))
    for batch in batches[1:]:
        assert_equal(batch, batches[0])
    for row, index in zip(batches[0]["image"], indices, strict=True):
        assert_equal(row, buffer[int(index)]["image"])


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5"])
def test_a_number_of_threads_that_is_none_is_refused(buffer, monkeypatch, text):
    monkeypatch.setenv("FASTBUFFER_NUM_THREADS", text)
    said = f'FASTBUFFER_NUM_THREADS: expected a number of at least 1, got "{text}"'
    refused_with(said, OnlineBuffer, buffer.write_dir)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is of Linux")
def test_the_processors_that_the_process_may_use_are_counted(buffer, monkeypatch):
    monkeypatch.delenv("FASTBUFFER_NUM_THREADS", raising=False)
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert run_python(COUNT_THREADS, buffer.write_dir).split() == ["1"]
    finally:
        os.sched_setaffinity(0, allowed)
    assert 1 <= int(run_python(COUNT_THREADS, buffer.write_dir)) <= len(allowed)


def test_workers_of_a_dataloader_use_one(buffer):
    torch = pytest.importorskip("torch")
    from fastbuffer._batches import in_worker

    class Probe(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return torch.tensor([in_worker(), buffer._threads()])

    assert not in_worker()
    for method in ("fork",):
        loader = torch.utils.data.DataLoader(Probe(), num_workers=1, multiprocessing_context=method)
        assert torch.cat(list(loader)).tolist() == [[1, 1], [1, 1]]
