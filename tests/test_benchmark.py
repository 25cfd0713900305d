"""`fastbuffer bench`: what it compares gives the same answers, and its figures fit together."""

import json

import numpy as np
import pytest

from fastbuffer.benchmark.contenders import (
    PerItemNumpyBuffer,
    TakingNumpyReader,
    VectorisedNumpyReader,
)
from fastbuffer.benchmark.measuring import Pair, check_same
from fastbuffer.benchmark.workloads import IMAGES, STATE, episodes, memmaps, unshifted
from helpers import assert_equal
from model import Model


@pytest.mark.parametrize("workload", [STATE, IMAGES])
def test_the_contenders_do_what_the_model_does(tmp_path, workload):
    """Else they would be fast at something else."""
    model = Model(workload.spec, 500, 50, workload.deltas)
    contender = PerItemNumpyBuffer(tmp_path / "n", workload, 500)
    data = episodes(workload, 2)
    model.add_data(unshifted(data))
    contender.add_data(unshifted(data))
    positions = np.array([0, 1, 249, 250, 251, 485, 499, 17])
    expected = model.batch(positions)
    for n, i in enumerate(positions):
        item = {key: np.asarray(value) for key, value in contender[i].items()}
        assert_equal(item, {key: np.asarray(v[n]) for key, v in expected.items()})
    for reader in (VectorisedNumpyReader, TakingNumpyReader):
        columns = memmaps(tmp_path / "n", workload)
        assert_equal(reader(columns, workload).batch(positions), expected)


def test_contenders_that_disagree_are_not_timed():
    check_same({"x": np.zeros(2)}, {"x": np.zeros(2)})
    with pytest.raises(AssertionError, match="x"):
        check_same({"x": np.zeros(2)}, {"x": np.array([0.0, 1.0])})


def test_measured_times_are_those_of_the_calls(monkeypatch):
    now = 0.0

    def work(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr("time.perf_counter", lambda: now)
    pair = Pair(lambda: work(0.25), lambda: work(0.5), scale=4)
    assert pair.measure(10) == (0.25, 2.0)


def run(*arguments):
    testing = pytest.importorskip("click.testing")
    from fastbuffer.cli import cli

    return testing.CliRunner().invoke(cli, ["bench", *map(str, arguments)])


def test_the_command_prints_a_table_or_json(tmp_path):
    result = run("--seconds", 0.5, "--dir", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert {row["against"] for row in rows} == {"item by item", "vectorised", "slices"}
    for row in rows:
        assert row["ratio"] == pytest.approx(row["numpy_seconds"] / row["fastbuffer_seconds"])
        items = row["fastbuffer_per_second"] * row["fastbuffer_seconds"]
        assert items == pytest.approx(round(items))
        assert round(items) in (1, 64, 250, 256)
        assert row["frames"] >= 1000
    lines = run("--seconds", 0.5, "--dir", tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["what", *(r["name"].split()[0] for r in rows)]
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_is_wrong(tmp_path):
    for arguments in (["--seconds", "nan"], ["--seconds", "0"], ["--dir", tmp_path / "none"]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert arguments[0] in result.output
