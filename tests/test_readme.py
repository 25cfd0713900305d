"""The README's examples run, and the commands and files that it names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE, RECORDING, WITH_TORCH, IN_BATCHES, BY_PRIORITY, WITH_ZARR = re.findall(
    r"^```python\n(.*?)^```$", README, re.M | re.S
)


def run(source, names):
    """Run an example where `names` are its variables, with the README's line numbers."""
    lines_before = README[: README.index(source)].count("\n")
    exec(compile("\n" * lines_before + source, ROOT / "README.md", "exec"), names)


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The variables that the example leaves, run in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    names = {}
    run(EXAMPLE, names)
    yield names
    names["buffer"].close()


def test_the_example_has_at_most_twenty_lines_of_code():
    code = [line for line in EXAMPLE.splitlines() if line.strip() and line.strip()[0] != "#"]
    assert len(code) <= 20


def test_the_example_runs_and_writes_only_its_buffer(example, tmp_path):
    assert [path.name for path in tmp_path.iterdir()] == ["my_buffer"]
    assert len(example["buffer"]) == 100
    assert example["buffer"].num_episodes == 2


def test_the_example_of_recording_runs(example):
    run(RECORDING, example)
    assert len(example["recorded"]) == 30
    example["recorded"].close()


def test_the_example_with_priorities_runs(example):
    run(BY_PRIORITY, example)
    assert example["target"].shape == (32,)
    assert example["sampler"].priorities(example["indices"]).min() > 1e-6
    example["replay"].close()


def test_the_example_with_torch_runs(example, torch):
    class Offline(torch.utils.data.Dataset):
        """A dataset with the buffer's keys, in two episodes."""

        def __init__(self):
            self.episode_data_index = {"from": torch.tensor([0, 20]), "to": torch.tensor([20, 50])}

        def __len__(self):
            return 50

        def __getitem__(self, position):
            return {key: torch.from_numpy(v) for key, v in example["buffer"][position].items()}

    example["offline"] = Offline()
    run(WITH_TORCH, example)
    assert isinstance(example["batch"]["action"], torch.Tensor)
    run(IN_BATCHES, example)
    assert len(example["out"]["action"]) == 32
    example["online"].close()


def test_the_example_with_zarr_runs(tmp_path, monkeypatch):
    for package in ("cv2", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = {}
    run(WITH_ZARR, names)
    assert len(names["buffer"]) == 1200
    made = ["again.zarr", "circle", "circle.zarr", "circle_trajectories.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == made


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m venv .venv && .venv/bin/pip install '.[demo]' && .venv/bin/fastbuffer demo",
        "python3 -m venv .venv && .venv/bin/pip install '.[all,test]' && .venv/bin/pytest",
    ],
)
def test_each_command_is_a_line_of_its_own(command):
    assert command in README.splitlines()


def test_files_that_the_readme_names_exist():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    tests = re.findall(r"`((?:tests|examples)/\w+\.py)`", README)
    assert {"docs/format.md", "docs/development.md", "docs/performance.md"} <= set(links)
    assert tests
    assert [name for name in {*links, *tests} if not (ROOT / name).exists()] == []
