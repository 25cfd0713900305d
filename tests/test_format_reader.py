"""docs/format.md is enough to read a buffer."""

from pathlib import Path

import numpy as np
import pytest

import format_reader
from fastbuffer import OnlineBuffer
from helpers import DTYPES, equal, make_episodes

SPEC = {f"a/{dtype}": {"shape": (2, 3), "dtype": dtype} for dtype in DTYPES} | {
    ".hidden%": {"shape": (), "dtype": np.float32}
}


@pytest.mark.parametrize("calls", [[], [(7,)], [(20, 15), (6, 2)], [(90,)], [(3,)] * 30], ids=str)
def test_a_reader_of_plain_numpy_reads_the_same(tmp_path, calls):
    buffer = OnlineBuffer(tmp_path, SPEC, 40, 10, output="numpy")
    for lengths in calls:
        buffer.add_data(make_episodes(lengths, SPEC, np.random.default_rng(0)))
    frames = format_reader.read(tmp_path)
    assert frames.keys() == set(buffer.data_keys)
    order = np.argsort(buffer.get_data_by_key("index"))
    for key, values in frames.items():
        assert equal(np.array(values), buffer.get_data_by_key(key)[order])


def test_a_damaged_record_is_read_from_its_copy(tmp_path):
    buffer = OnlineBuffer(tmp_path, {}, 40, 10, output="numpy")
    for _ in range(3):
        buffer.add_data(make_episodes([5], {}, np.random.default_rng(0)))
    buffer.close()
    state = np.fromfile(tmp_path / "_state", "<u8")
    newest = max((16, 32), key=lambda at: state[at])
    state[newest + 1] += 1
    state.tofile(tmp_path / "_state")
    assert format_reader.read(tmp_path)["index"].tolist() == list(range(15))


def test_the_reader_is_short():
    lines = Path(format_reader.__file__).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60
