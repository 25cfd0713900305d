"""File systems that are full, read-only or have no place for what is asked."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fastbuffer import OnlineBuffer

IN_MOUNTS_OF_ITS_OWN = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-euc"]

DATA = """
import subprocess, sys
from pathlib import Path
import numpy as np
from fastbuffer import OnlineBuffer

directory = Path(sys.argv[1])
spec = {"x": {"shape": (1024,), "dtype": np.uint8}}
n = 256

def data():
    return {
        "x": np.ones((n, 1024), np.uint8), "index": np.arange(n), "frame_index": np.arange(n),
        "episode_index": np.zeros(n, int), "timestamp": np.arange(n) / 10,
    }
"""


def run_on_tmpfs(directory, megabytes, code):
    """Run code with a tmpfs of that size at `directory`, for it alone; what it printed."""
    directory.mkdir()
    mount = f"mount -t tmpfs -o size={megabytes}m tmpfs '{directory}'"
    if subprocess.run([*IN_MOUNTS_OF_ITS_OWN, mount], capture_output=True).returncode != 0:
        pytest.skip("needs a file system of its own, which may not be mounted here")
    done = subprocess.run(
        [
            *(*IN_MOUNTS_OF_ITS_OWN, f'{mount}; exec "$0" "$@"'),
            *(sys.executable, "-c", DATA + code, directory),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="mounts file systems as Linux does")
class TestTmpfs:
    def test_a_disk_without_room_is_an_error_at_creation_and_leaves_no_files(self, tmp_path):
        said = run_on_tmpfs(
            tmp_path / "m",
            16,
            """
columns = {key: spec["x"] for key in "abc"}
try:
    OnlineBuffer(directory / "deeper" / "b", columns, 1 << 13)  # 8 MB each
except OSError as error:
    print(error)
assert list(directory.iterdir()) == []
""",
        )
        assert "No space left on device" in said
        assert f"{tmp_path}/m/deeper/b/" in said

    def test_a_sparse_buffer_on_a_full_disk_is_an_error_and_stays_as_it_was(self, tmp_path):
        said = run_on_tmpfs(
            tmp_path / "m",
            8,
            """
buffer = OnlineBuffer(directory / "b", spec, 1 << 16, 10, output="numpy", preallocate=False)
inserts = 0
try:
    while True:
        buffer.add_data(data())
        inserts += 1
except OSError as error:
    assert len(buffer) == inserts * n, (len(buffer), inserts)
    assert (buffer.get_data_by_key("x") == 1).all()
    assert buffer.verify() == []
    print(inserts, error)
""",
        )
        assert "No space left on device" in said
        assert int(said.split()[0]) > 5
        assert f"{tmp_path}/m/b/" in said

    def test_priorities_without_room_are_an_error_and_can_be_had_later(self, tmp_path):
        said = run_on_tmpfs(
            tmp_path / "m",
            8,
            """
from fastbuffer import PrioritizedSampler
buffer = OnlineBuffer(directory / "b", {}, 1 << 15, 10, output="numpy")
buffer.add_data(data())
filler = directory / "filler"
filler.write_bytes(bytes((8 << 20) - (1 << 15) * 33 - (1 << 17)))
try:
    PrioritizedSampler(buffer)
except OSError as error:
    print(error)
assert buffer.verify() == []
filler.unlink()
assert (PrioritizedSampler(buffer).priorities() == 1).all()
""",
        )
        assert "No space left on device" in said
        assert "_priorities" in said

    def test_a_read_only_file_system_is_read_and_not_written(self, tmp_path):
        said = run_on_tmpfs(
            tmp_path / "m",
            8,
            """
with OnlineBuffer(directory / "b", spec, 1000, 10, output="numpy") as buffer:
    for _ in range(5):
        buffer.add_data(data())
subprocess.run(["mount", "-o", "remount,ro", directory], check=True)
for mode in "ar":
    buffer = OnlineBuffer(directory / "b", output="numpy", mode=mode)
    assert (buffer.sample(64, seed=0)["x"] == 1).all()
    assert buffer.verify() == []
    try:
        buffer.add_data(data())
    except OSError as error:
        print(error)
try:
    OnlineBuffer(directory / "other", spec, 1000)
except OSError as error:
    print(error)
""",
        )
        lock, mode, other = said.splitlines()
        assert lock == f"[Errno 30] Read-only file system: '{tmp_path}/m/b/_lock'"
        assert 'expected a buffer opened with mode="a"' in mode
        assert other == f"[Errno 30] Read-only file system: '{tmp_path}/m/other'"


def test_the_shape_of_a_row_may_be_larger_than_32_bits(tmp_path):
    side = np.int32(50_000)
    spec = {"image": {"shape": (side, side), "dtype": np.uint8}}
    buffer = OnlineBuffer(tmp_path / "b", spec, 3, output="numpy", preallocate=False)
    assert (tmp_path / "b" / "image").stat().st_size == 3 * 50_000**2
    assert buffer.get_data_by_key("image").shape == (0, 50_000, 50_000)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system of huge files")
def test_what_cannot_be_mapped_is_no_buffer():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        spec = {"x": {"shape": (), "dtype": np.float64}}
        with pytest.raises(OSError, match="Cannot allocate memory") as refused:
            OnlineBuffer(f"{shm}/b", spec, 1 << 46, preallocate=False)
        assert refused.value.filename.startswith(f"{shm}/b/")
        assert list(Path(shm).iterdir()) == []
