"""The documentation's examples run, and its drawings are those of today's code."""

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fastbuffer.benchmark.contenders import PerItemNumpyBuffer
from fastbuffer.benchmark.workloads import Workload

DOCS = Path(__file__).parents[1] / "docs"


def test_the_tests_that_pages_name_exist():
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    named = set(re.findall(r"\b(?:tests|benches|rust/src)/[\w/]+\.(?:py|rs)\b", pages))
    assert {"tests/test_torture.py", "rust/src/commit.rs"} <= named
    assert [name for name in named if not (DOCS.parent / name).exists()] == []


def is_there(module):
    """Whether a module of a package can be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def sections(page):
    """The Python blocks below each heading of the second level; "" has those above the first."""
    parts = re.split(r"^## (.*)$", (DOCS / page).read_text(encoding="utf-8"), flags=re.M)
    found = {}
    for heading, text in zip(["", *parts[1::2]], parts[0::2], strict=True):
        found[heading] = re.findall(r"^```python[^\n]*\n(.*?)^```$", text, flags=re.M | re.S)
    return found


def run(blocks, names):
    """Run blocks one after the other where `names` are their variables."""
    for block in blocks:
        exec(compile(block, "documentation", "exec"), names)
    return names


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """A working directory for what examples write."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_page(page):
    blocks = [block for found in sections(page).values() for block in found]
    assert len(blocks) >= 3
    run(blocks, {})["buffer"].close()


@pytest.mark.parametrize("page", ["getting-started.md", "concepts.md"])
def test_the_examples_of_a_page_run(page, in_tmp, torch):
    run_page(page)


@pytest.mark.filterwarnings("default")  # the packages that it brings warn of each other
def test_the_examples_with_lerobot_run(in_tmp):
    pytest.importorskip("lerobot")
    run_page("lerobot.md")


@pytest.mark.filterwarnings("default")  # Ray leaves files and sockets open until the process ends
def test_the_examples_with_ray_run(in_tmp, torch):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.train.torch")
    try:
        run_page("ray.md")
    finally:
        ray.shutdown()


MIGRATING = sections("migrating.md")


def section(begins):
    """Run a section of migrating.md, after what all of them share; the variables that it leaves."""
    (found,) = (blocks for heading, blocks in MIGRATING.items() if heading.startswith(begins))
    return run([*MIGRATING[""], *found], {})


def runs_of_four(rollouts, key):
    """Every four consecutive rows of a rollout, as bytes."""
    values = [rollout[key] for rollout in rollouts]
    return {rows[i : i + 4].tobytes() for rows in values for i in range(len(rows) - 3)}


def test_migrating_has_four_sections():
    assert len(MIGRATING) == 5


def test_migrating_from_the_numpy_implementation(in_tmp, torch, monkeypatch):
    class AsInLeRobot(PerItemNumpyBuffer):
        """The contender of the benchmarks, which does the same, with LeRobot's arguments."""

        def __init__(self, write_dir, data_spec, buffer_capacity, fps, delta_timestamps):
            workload = Workload(data_spec, delta_timestamps, buffer_capacity, 0, 0)
            super().__init__(Path(write_dir), workload, buffer_capacity)

    if not is_there("lerobot.datasets.online_buffer"):  # else it is the real one that is compared
        parent = ModuleType("lerobot.datasets")
        parent.online_buffer = ModuleType("online_buffer")
        parent.online_buffer.OnlineBuffer = AsInLeRobot
        monkeypatch.setitem(sys.modules, "lerobot", ModuleType("lerobot"))
        monkeypatch.setitem(sys.modules, parent.__name__, parent)

    names = section("From LeRobot")
    before, after = names["before"], names["after"]
    for i in range(70):
        item = before[i]
        assert item.keys() == after[i].keys()
        for key, value in after[i].items():
            np.testing.assert_array_equal(value, item[key], key)
    after.close()


def test_migrating_from_torchrl(in_tmp):
    pytest.importorskip("torchrl")
    names = section("From torchrl")
    possible = runs_of_four(names["rollouts"], "action")
    for side in ("actions_before", "actions_after"):
        assert names[side].shape == (32, 4, 2)
        assert {rows.numpy().tobytes() for rows in names[side]} <= possible
    names["after"].close()


def test_migrating_from_cpprb(in_tmp):
    pytest.importorskip("cpprb")
    names = section("From cpprb")
    gamma = 0.99
    possible = []
    for rollout in names["rollouts"]:
        values = rollout["observation"].sum(axis=1)
        values = np.append(values[1:], 0)  # the last observation is terminal
        possible += list(rollout["next.reward"] + gamma * values)
    for side in ("target_before", "target_after"):
        targets = np.asarray(names[side]).reshape(32)
        assert np.abs(targets[:, None] - np.array(possible)).min(axis=1).max() < 1e-5
    names["after"].close()


def test_migrating_from_stable_baselines3(in_tmp, torch):
    for package in ("gymnasium", "stable_baselines3"):
        pytest.importorskip(package)
    names = section("From Stable-Baselines3")
    before, after = names["before"], names["after"]
    assert len(after) == before.pos == 100
    for theirs, key in [
        (before.observations, "observation.state"),
        (before.actions, "action"),
        (before.rewards, "next.reward"),
    ]:
        np.testing.assert_array_equal(theirs[:100, 0], after.get_data_by_key(key), key)
    assert names["batch_before"].next_observations.shape == (32, 3)
    assert names["batch_after"]["bootstrap.observation.state"].shape == (32, 3)
    after.close()


def test_the_drawings_are_those_of_this_code(tmp_path):
    pytest.importorskip("matplotlib")
    runpy.run_path(str(DOCS / "drawings" / "draw.py"))["main"](tmp_path)
    for name in ("ring.svg", "window.svg"):
        # What they say, not where: how matplotlib places it changes with its versions.
        written, drawn = (
            re.findall(r">([^<>]+)</text>", (directory / name).read_text(encoding="utf-8"))
            for directory in (DOCS / "drawings", tmp_path)
        )
        assert len(written) >= 15
        assert drawn == written
