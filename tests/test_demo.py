"""The `fastbuffer` command: what its demo prints and leaves behind, and what it says is missing."""

import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from fastbuffer.__main__ import main

EPISODES = 3
PACKAGES = ("torch", "tqdm", "gymnasium", "pygame")
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
    result = invoke(*TINY, "--dir", directory)
    assert result.exit_code == 0, result.output
    return directory, result.stdout


def test_it_prints_what_it_stored(finished):
    directory, printed = finished
    for name, key, dtype in [
        ("state", "observation.state", "float32"),
        ("pixels", "observation.image", "uint8"),
    ]:
        with OnlineBuffer(directory / name) as buffer:
            size = sum(file.stat().st_size for file in (directory / name).iterdir())
            assert f"{EPISODES} episodes, {len(buffer):,} frames, {size:,} bytes" in printed
            shape = tuple(buffer.get_data_by_key(key).shape)
            assert re.search(rf"^ +{key} +{dtype} +{re.escape(str(shape))}$", printed, re.M)


@pytest.mark.parametrize(
    "line",
    [
        "observation.state float32 (256, 2, 3)",
        "observation.state_is_pad bool (256, 2)",
        "action float32 (256, 8, 1)",
        "observation.image uint8 (64, 2, 96, 96, 3)",
        "observation.image_is_pad bool (64, 2)",
        "action int64 (64, 8)",
        "action_is_pad bool (64, 8)",
    ],
)
def test_it_prints_the_shapes_of_a_batch(finished, line):
    assert line in [" ".join(printed.split()) for printed in finished[1].splitlines()]


@pytest.mark.parametrize("what", ["insert", r"DataLoader\(buffer\)", r"buffer\.loader\(\)"])
def test_it_prints_rates_for_both_buffers(finished, what):
    rates = re.findall(rf"{what}.*: +([\d,]+) frames/s$", finished[1], re.M)
    assert len(rates) == 2
    assert all(int(rate.replace(",", "")) > 0 for rate in rates)


def test_it_prints_the_imitation_error_before_and_after(finished):
    assert re.search(r"squared error on unseen episodes: \d\S* before, \d\S* after", finished[1])
    assert re.search(r"cross-entropy on unseen episodes: \d\S* before, \d\S* after", finished[1])


def test_the_buffers_hold_whole_episodes(finished):
    directory, _ = finished
    for name in ("state", "pixels"):
        with OnlineBuffer(directory / name, output="numpy") as buffer:
            assert buffer.num_episodes == EPISODES
            starts = buffer.get_data_by_key("frame_index") == 0
            done = buffer.get_data_by_key("next.done")
            np.testing.assert_array_equal(starts, np.roll(done, 1))


def test_rendered_frames_show_something_and_move(finished):
    with OnlineBuffer(finished[0] / "pixels", output="numpy") as buffer:
        images = buffer.get_data_by_key("observation.image")
    assert images[0].min() < 50
    assert images[0].max() == 255
    assert not np.array_equal(images[0], images[5])


def test_a_directory_in_use_is_refused_and_left_alone(demo, invoke, tmp_path):
    (tmp_path / "mine").write_text("precious")
    result = invoke(*TINY, "--dir", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path} is not empty" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "option",
    ["--episodes=1", "--episodes=x", "--seconds=0", "--seconds=-1", "--seconds=nan", "--seed=-1"],
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
    assert f"Pendulum-v1 in {tmp_path}" in result.stdout
    assert not list(tmp_path.glob("fastbuffer-demo-*"))
    assert "pygame" not in result.stdout
    progress_only = re.sub(
        r"[^\r\n]*(recording|fitting) (Pendulum|CartPole)-v1[^\r\n]*", "", result.stderr
    )
    assert progress_only.strip() == ""


@pytest.mark.parametrize("seed", range(3))
def test_the_pendulum_expert_swings_up_and_holds(demo, seed):
    with demo.open_environment(demo.pendulum_task()) as environment:
        observation, _ = environment.reset(seed=seed)
        for _ in range(199):
            observation, *_ = environment.step(demo.pendulum_expert(observation))
    assert observation[0] > 0.99


def test_the_cartpole_expert_does_not_fall(demo):
    with demo.open_environment(demo.cartpole_task()) as environment:
        observation, _ = environment.reset(seed=0)
        action = None
        for _ in range(99):
            action = demo.cartpole_expert(observation, action)
            observation, _, terminated, _, _ = environment.step(action)
            assert not terminated


def test_fitting_lowers_the_error_on_unseen_episodes(demo, tmp_path, torch, monkeypatch):
    task = demo.pendulum_task()
    demo.store(task, tmp_path, episodes=10, seed=0)
    with OnlineBuffer(tmp_path, delta_timestamps=task.delta_timestamps) as buffer:
        known, unseen = demo.split_episodes(buffer)
        assert sorted(known + unseen) == list(range(len(buffer)))
        loaders = [demo.batch_loader(buffer, positions, 256) for positions in (known, unseen)]
        clock = itertools.count(0, 0.01)  # 200 steps, however long they take
        monkeypatch.setattr(demo.time, "perf_counter", clock.__next__)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            result = demo.fit(task, task.build_policy(), *loaders, seconds=2)
    assert result.loss_after < 0.9 * result.loss_before


def test_padded_actions_do_not_count(demo, torch):
    task = demo.pendulum_task()
    batch = {
        "observation.state": torch.zeros(1, 2, 3),
        "action": torch.tensor([[[1.0], [100.0]]]),
        "action_is_pad": torch.tensor([[False, True]]),
    }
    loss = demo.masked_loss(task, lambda _: torch.zeros(1, 2, 1), batch)
    assert loss.item() == 1.0


@pytest.mark.parametrize("before", [None, "x11"])
def test_the_video_driver_is_only_changed_meanwhile(demo, monkeypatch, before):
    if before is None:
        monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    else:
        monkeypatch.setenv("SDL_VIDEODRIVER", before)
    with demo.open_environment(demo.cartpole_task()) as environment:
        environment.reset(seed=0)
        assert environment.render().shape == (400, 600, 3)
        assert os.environ["SDL_VIDEODRIVER"] == "dummy"
    assert os.environ.get("SDL_VIDEODRIVER") == before


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
