"""Out of memory: a MemoryError, wherever it runs out, and a buffer as it was before."""

import sys

import pytest

from helpers import run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory by RLIMIT_AS")

# Runs `work` with ever more memory to spare. Until that is enough each run must be refused.
LIMITED = """
import errno, resource, sys
import numpy as np
from fastbuffer import OnlineBuffer, compute_sampler_weights

def outcomes(work, check, megabytes):
    for spare in np.linspace(0.5, megabytes, 40):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + int(spare * 2**20), resource.RLIM_INFINITY))
        try:
            work()
            outcome = "done"
        except MemoryError:
            outcome = "refused"
        except OSError as error:  # there is no place to map a file
            assert error.errno == errno.ENOMEM and directory in error.filename, error
            outcome = "refused"
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        check(outcome)
        yield outcome

def check_outcomes(work, check, megabytes):
    seen = list(outcomes(work, check, megabytes))
    assert seen[0] == "refused" and seen[-1] == "done", seen
    print(seen.count("refused"), "refused of", len(seen))

def episodes(lengths, times=None):
    n = int(np.sum(lengths))
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    frames = np.arange(n) - starts
    return {
        "value": np.arange(n), "index": np.arange(n), "frame_index": frames,
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "timestamp": frames / 10 if times is None else times,
    }

SPEC = {"value": {"shape": (), "dtype": np.int64}}
directory = sys.argv[1]
"""

GATHER = """
buffer = OnlineBuffer(directory, SPEC, 100, fps=10, output="numpy",
                      delta_timestamps={"value": [-0.1, 0.0, 0.1]})
buffer.add_data(episodes([50], np.arange(50) / 10 + np.tile([0, 0.01], 25)) )
indices = np.random.default_rng(0).integers(0, 50, 500_000)
def check(outcome):
    assert buffer[3]["value"].tolist() == [2, 3, 4]
check_outcomes(lambda: buffer.get_batch(indices), check, 160)
"""

ADD = """
n = 1_000_000
buffer = OnlineBuffer(directory, SPEC, n, fps=10, output="numpy")
data = episodes(np.ones(n, dtype=int))
data["timestamp"] = data["timestamp"].astype(np.float32)
added = 0
def check(outcome):
    global added
    added += outcome == "done"
    assert data["index"][0] == (added - 1) * n * (outcome == "done")
    data["index"] = np.arange(n)
    data["episode_index"] = np.arange(n)
    assert buffer.num_frames == n * (added > 0)
    if added:
        assert buffer[n - 1]["index"] == added * n - 1
check_outcomes(lambda: buffer.add_data(data), check, 240)
"""

OPEN = """
n = 1_000_000
OnlineBuffer(directory, SPEC, n, fps=10).add_data(episodes(np.ones(n, dtype=int)))
def open_and_read():
    assert OnlineBuffer(directory, output="numpy")[n - 1]["value"] == n - 1
check_outcomes(open_and_read, lambda outcome: None, 240)
"""

WEIGHTS = """
n = 1_000_000
class Offline:
    episode_data_index = {"from": np.arange(n), "to": np.arange(n) + 1}
    def __len__(self): return n
buffer = OnlineBuffer(directory, SPEC, n, fps=10, output="numpy")
buffer.add_data(episodes(np.ones(n, dtype=int)))
offline = Offline()
def work():
    weights = compute_sampler_weights(offline, 0, buffer, 0.5, 0)
    assert len(weights) == 2 * n
check_outcomes(work, lambda outcome: None, 240)
"""

DELTAS = """
buffer = OnlineBuffer(directory, SPEC, 100, fps=10, output="numpy")
buffer.add_data(episodes([50]))
deltas = {"value": np.random.default_rng(0).uniform(-5, 5, 60_000)}
def work():
    buffer.set_delta_timestamps(deltas)
    for i in range(40):
        assert len(buffer[i]["value"]) == 60_000
def check(outcome):
    buffer.set_delta_timestamps({"value": [-0.1, 0.0]})
    assert buffer[3]["value"].tolist() == [2, 3]
check_outcomes(work, check, 12)
"""


@pytest.mark.parametrize(
    "code", [GATHER, ADD, OPEN, WEIGHTS, DELTAS], ids=["gather", "add", "open", "weights", "deltas"]
)
def test_running_out_of_memory_is_a_memory_error(tmp_path, code):
    run_python(LIMITED + code, tmp_path / "buffer")
