"""The `fastbuffer` command: what `demo` prints and leaves, `synth`, and what is missing."""

import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from fastbuffer.__main__ import main

EPISODES = 40
PACKAGES = ("torch", "tqdm", "cv2", "matplotlib")
TINY = ["demo", "--episodes", str(EPISODES), "--seconds", "0.2", "--seed", "1"]


@pytest.fixture(scope="module")
def demo():
    """The demo module, or a skipped test where a package that it needs is not installed."""
    for package in PACKAGES:
        pytest.importorskip(package)
    from fastbuffer import demo

    return demo


@pytest.fixture(scope="module")
def invoke():
    """Runs the command line in this process."""
    pytest.importorskip("click")
    from click.testing import CliRunner

    from fastbuffer.cli import cli

    return lambda *arguments: CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def finished(demo, invoke, tmp_path_factory):
    """A run of the demo: its directory and what it printed."""
    directory = tmp_path_factory.mktemp("demo") / "new"
    picture = directory.with_name("picture.png")
    result = invoke(*TINY, "--dir", directory, "--picture", picture)
    assert result.exit_code == 0, result.output
    return directory, result.stdout


def test_it_prints_what_it_stored(finished):
    directory, printed = finished
    with OnlineBuffer(directory / "buffer") as buffer:
        size = sum(file.stat().st_size for file in (directory / "buffer").iterdir())
        assert f"{EPISODES} episodes, {len(buffer):,} frames, {size:,} bytes" in printed
        for key, dtype in [("agentview_rgb", "uint8"), ("synthetic_position", "float32")]:
            shape = tuple(buffer.get_data_by_key(key).shape[1:])
            assert re.search(rf"^ +{key} +{dtype} +{re.escape(str(shape))}$", printed, re.M)


@pytest.mark.parametrize(
    "line",
    [
        "synthetic_position float32 (256, 2, 2)",
        "synthetic_position_is_pad bool (256, 2)",
        "synthetic_position_action float32 (256, 8, 2)",
        "synthetic_position_action_is_pad bool (256, 8)",
        "agentview_rgb uint8 (256, 2, 64, 64, 3)",
    ],
)
def test_it_prints_the_shapes_of_a_batch(finished, line):
    assert line in [" ".join(printed.split()) for printed in finished[1].splitlines()]


@pytest.mark.parametrize(
    "what",
    ["dataset", "buffer", r"  sampling, DataLoader\(buffer\)", r"  sampling, buffer\.loader\(\)"],
)
def test_it_prints_rates(finished, what):
    (rate,) = re.findall(rf"^{what}.*: +([\d,]+) frames/s$", finished[1], re.M)
    assert int(rate.replace(",", "")) > 0


def test_it_prints_how_well_the_policy_does(finished):
    assert re.search(r"squared error on unseen episodes.*: \d\S* before, \d\S* after", finished[1])
    for name in ("lower", "upper"):
        line = rf"distance from the {name} circle: expert 0\.0\d+, policy \d\.\d+$"
        assert re.search(line, finished[1], re.M)


def test_the_picture_shows_both_circles_of_the_expert(demo, finished):
    from matplotlib.image import imread

    picture = imread(finished[0].with_name("picture.png"))[..., :3]
    width = picture.shape[1] // 2
    for color in demo.mode_colors(2):
        near = abs(picture - np.array(color)[:3]).max(-1) < 0.1
        assert near[:, :width].sum() > 100


def test_the_picture_shows_the_policy_too(finished):
    from matplotlib.image import imread

    picture = imread(finished[0].with_name("picture.png"))[..., :3]
    width = picture.shape[1] // 2
    is_coloured = picture.max(-1) - picture.min(-1) > 0.2
    assert is_coloured[:, width : int(1.75 * width)].sum() > 100


def test_a_directory_in_use_is_refused_and_left_alone(demo, invoke, tmp_path):
    (tmp_path / "mine").write_text("precious")
    result = invoke(*TINY, "--dir", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path} is not empty" in result.output
    result = invoke(*TINY, "--picture", tmp_path / "no" / "picture.png")
    assert result.exit_code == 2
    assert f"there is no directory {tmp_path}/no" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "option",
    ["--episodes=3", "--episodes=x", "--seconds=0", "--seconds=-1", "--seconds=nan", "--seed=-1"],
)
def test_unusable_options_are_refused(invoke, option):
    assert invoke("demo", option).exit_code == 2


def test_a_temporary_directory_is_removed_and_only_progress_is_on_stderr(demo, tmp_path):
    pytest.importorskip("click")
    result = subprocess.run(
        [sys.executable, "-m", "fastbuffer", *TINY],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"dataset {tmp_path}" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["fastbuffer-demo.png"]
    progress_only = re.sub(r"[^\r\n]*  fitting[^\r\n]*", "", result.stderr)
    assert progress_only.strip() == ""


@pytest.fixture(scope="module")
def buffer(demo, tmp_path_factory):
    """The buffer of a dataset."""
    directory = tmp_path_factory.mktemp("data")
    schema = demo.SyntheticSchema(
        directory / "s.zarr", "conditional_circle", num_episodes=100, image_size=16
    )
    demo.create_replay_buffer_from_synthetic(schema)
    return OnlineBuffer.from_zarr(
        *(schema.zarr_path, directory / "b"), fps=10, delta_timestamps=demo.DELTA_TIMESTAMPS
    )


def test_a_policy_that_is_fitted_goes_around_the_circles(demo, buffer, torch, monkeypatch):
    known, unseen = demo.split_episodes(buffer)
    assert sorted(known + unseen) == list(range(len(buffer)))
    loaders = [demo.batch_loader(buffer, positions) for positions in (known, unseen)]
    clock = itertools.count(0, 0.01)  # 600 steps, however long they take
    monkeypatch.setattr(demo.time, "perf_counter", clock.__next__)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = demo.Policy(0.02)
        result = demo.fit(policy, *loaders, seconds=6)
    assert result.loss_after < 0.6 * result.loss_before
    task = demo.task_of(demo.SyntheticSchema("x", "conditional_circle"))
    for mode, paths in enumerate(demo.expert_paths(buffer)):
        followed = demo.follow(policy, paths[:, 0], mode, 60)
        assert followed.shape == paths.shape
        assert demo.distance_to(task, mode, followed) < 0.03
        far_side = [0.5, 0.1 if mode == 0 else 0.9]
        assert (np.linalg.norm(followed - far_side, axis=-1).min(axis=1) < 0.1).all()


def test_padded_steps_do_not_count(demo, torch):
    class Still:
        step_size = 1.0

        def __call__(self, positions, context):
            return torch.zeros(1, 2, 2)

    batch = {
        "synthetic_position": torch.zeros(1, 2, 2),
        "synthetic_context": torch.zeros(1, 2),
        "synthetic_position_action": torch.tensor([[[1.0, 1.0], [100.0, 100.0]]]),
        "synthetic_position_action_is_pad": torch.tensor([[False, True]]),
    }
    assert demo.masked_loss(Still(), batch).item() == 1.0


def test_synth_makes_the_dataset_that_is_asked_for(invoke, tmp_path):
    zarr = pytest.importorskip("zarr")
    for package in ("cv2", "matplotlib"):
        pytest.importorskip(package)
    options = ["--episodes=6", "--image-size=16", "--length=7", "--seed=3", "--noise=0.001"]
    options += ["--modes=4", "--styles=2", *["--weight=1"] * 7, "--weight=5", "--shard=0"]
    result = invoke("synth", "corridor_navigation", tmp_path / "s.zarr", *options)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        f"{tmp_path}/s.zarr: 6 episodes of 7 frames",
        f"{tmp_path}/s_trajectories.png",
    ]
    data = zarr.open_group(tmp_path / "s.zarr", mode="r")["data"]
    assert data["agentview_rgb"].shape == (42, 16, 16, 3)
    assert data["agentview_rgb"].shards is None
    assert data["synthetic_context"].shape == (42, 8)
    modes = data["synthetic_mode_id"][::7, 0]
    assert np.bincount(modes, minlength=8).tolist() == [1, 1, 1, 1, 0, 0, 0, 2]
    options = [*options[:3], "--key=synthetic_position"]
    result = invoke("synth", "circle", tmp_path / "s.zarr", *options)
    assert result.exit_code == 0, result.output
    assert list(zarr.open_group(tmp_path / "s.zarr", mode="r")["data"].array_keys()) == [
        "synthetic_position"
    ]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["square"], 2, "circle"),
        (["circle", "--episodes=0"], 1, "Error: --episodes: expected at least 1"),
        (["corridor_navigation", "--modes=3"], 1, "Error: --modes: expected an even"),
        (["circle", "--weight=1"], 1, "Error: --weight: expected 2 numbers"),
        (["circle", "--key=x"], 1, "Error: keys: expected some of"),
        (["circle", "--shard=8"], 1, "Error: --shard: expected a positive multiple"),
        (["circle", "--noise=nan"], 1, "Error: --noise: expected at least 0"),
    ],
)
def test_synth_refuses_in_one_line(invoke, tmp_path, options, code, said):
    result = invoke("synth", options[0], tmp_path / "s.zarr", *options[1:])
    assert result.exit_code == code
    assert said in result.output
    assert code == 2 or len(result.output.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", PACKAGES)
def test_a_missing_package_is_named_with_the_line_that_brings_it(invoke, monkeypatch, missing):
    for package in PACKAGES[: PACKAGES.index(missing)]:
        pytest.importorskip(package)
    monkeypatch.delitem(sys.modules, "fastbuffer.demo", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    result = invoke("demo")
    assert result.exit_code == 1
    assert result.output == (
        f"Error: the demo needs the package '{missing}': pip install 'fastbuffer[demo]'\n"
    )


def test_without_click_the_command_says_so_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "click", None)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == (
        "Error: the fastbuffer command needs the package 'click': pip install 'fastbuffer[cli]'"
    )
