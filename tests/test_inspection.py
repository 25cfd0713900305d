"""What a buffer says of itself: its repr, the page of a notebook, and the command line."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from fastbuffer.inspection import facts
from helpers import SPEC, make_episodes, start_python

SHOWN = {
    "camera": {"shape": (12, 16, 3), "dtype": np.uint8},
    "x": {"shape": (2,), "dtype": np.int16},
}


def made(directory, capacity=40, *lengths):
    buffer = OnlineBuffer(directory, SPEC, capacity, 10, output="numpy")
    for length in lengths:
        buffer.add_data(make_episodes([length], SPEC, np.random.default_rng(0)))
    return buffer


def run(*arguments):
    testing = pytest.importorskip("click.testing")
    from fastbuffer.cli import cli

    return testing.CliRunner().invoke(cli, [*map(str, arguments)])


def test_a_repr_says_what_is_there(tmp_path):
    buffer = made(tmp_path, 40, 30, 25)
    said = repr(buffer)
    assert f"OnlineBuffer({str(tmp_path)!r}, num_frames=40, num_episodes=2" in said
    assert "buffer_capacity=40, fps=10.0" in said
    assert "action: float32[2]" in said
    assert "image: uint8[4, 5, 3]" in said
    assert "reward: float32," in said


def drawn_slots(page, capacity):
    """The slots that a picture shows as live."""
    bars = re.findall(r'<rect x="([\d.]+)" y="0" height="16" width="([\d.]+)"', page)
    slots = set()
    for x, width in bars:
        start, stop = (round(float(n) * capacity / 480) for n in (x, float(x) + float(width)))
        slots |= set(range(start, stop))
    return slots


@pytest.mark.parametrize("lengths", [(), (7,), (30, 25), (5,) * 30, (90,), (1,) * 300], ids=str)
def test_a_page_shows_which_slots_are_live(tmp_path, lengths):
    buffer = made(tmp_path, 250 if len(lengths) == 300 else 40, *lengths)
    page = buffer._repr_html_()
    live = np.flatnonzero(np.fromfile(tmp_path / "_occupancy_mask", bool))
    assert drawn_slots(page, buffer.buffer_capacity) == set(live)
    assert "<td>image</td><td>uint8</td><td>(4, 5, 3)</td><td>60</td>" in page


def test_names_are_escaped(tmp_path):
    spec = {"<b>": {"shape": (), "dtype": np.uint8}}
    page = OnlineBuffer(tmp_path, spec, 4)._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<td><b>" not in page


def test_facts_are_those_of_the_buffer(tmp_path):
    known = facts(made(tmp_path, 40, 30, 25))
    assert known["capacity"] == known["frames"] == 40
    assert known["episodes"] == 2
    assert known["fps"] == 10
    assert known["schema"]["image"] == {"dtype": "uint8", "shape": [4, 5, 3], "bytes": 60}
    columns = [tmp_path / key for key in known["schema"]]
    assert known["bytes"] == sum(column.stat().st_size for column in columns)
    assert known["seconds"] == 4
    assert known["bytes_per_second"] * known["seconds"] == known["bytes"]


def test_rates_of_a_buffer_without_fps_are_unknown(tmp_path):
    OnlineBuffer(tmp_path, {"a": {"shape": (), "dtype": np.uint8}}, 4).close()
    known = json.loads(run("info", tmp_path, "--json").output)
    assert known["fps"] is known["bytes_per_second"] is known["seconds"] is None
    assert "bytes per second" not in run("info", tmp_path).output


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a lock")
def test_facts_say_who_writes(tmp_path):
    made(tmp_path, 40, 5).close()
    assert facts(OnlineBuffer(tmp_path, mode="r"))["writer"] is None
    code = """if True:
        import os, sys, numpy as np
        from fastbuffer import OnlineBuffer
        buffer = OnlineBuffer(sys.argv[1])
        data = {key: value for key, value in buffer.get_batch([0]).items()}
        data["index"] = data["episode_index"] = np.zeros(1, int)
        buffer.add_data(data)
        print(os.getpid(), flush=True)
        sys.stdin.readline()
    """
    with start_python(code, tmp_path) as writer:
        pid = int(writer.stdout.readline())
        assert facts(OnlineBuffer(tmp_path, mode="r"))["writer"] == pid
        writer.communicate("\n")
    assert facts(OnlineBuffer(tmp_path, mode="r"))["writer"] is None


def test_the_command_says_the_same(tmp_path):
    buffer = made(tmp_path / "b", 40, 30, 25)
    buffer.close()
    assert json.loads(run("info", tmp_path / "b", "--json").output) == facts(buffer)
    said = run("info", tmp_path / "b")
    assert said.exit_code == 0
    for line in [
        "40 of 40 frames",
        "episodes  2",
        "fps       10.0",
        "of which 4 seconds fit",
        "image: uint8 (4, 5, 3), 60 bytes",
    ]:
        assert line in said.output


@pytest.mark.parametrize("lengths", [(1,), (30, 25)], ids=str)
def test_a_picture_is_drawn(tmp_path, lengths):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    buffer = OnlineBuffer(tmp_path / "b", SHOWN, 40, 10, {"x": [0.0, 0.1]})
    for length in lengths:
        buffer.add_data(make_episodes([length], SHOWN, np.random.default_rng(0)))
    drawn = run("plot", tmp_path / "b", "-o", tmp_path / "x.png")
    assert drawn.exit_code == 0, drawn.output
    image = imread(tmp_path / "x.png")[..., :3]
    assert image.shape[0] > 500
    assert image.std() > 0.1
    empty = OnlineBuffer(tmp_path / "e", SHOWN, 40)
    assert run("plot", empty.write_dir, "-o", tmp_path / "y.png").exit_code == 1
    assert run("plot", tmp_path / "b", "-o", tmp_path / "x.nothing").exit_code == 1


def test_ranges_are_those_of_all_frames():
    from fastbuffer.plotting import _Range

    values = np.random.default_rng(0).normal(size=(1000, 3))
    found = _Range()
    for part in np.split(values, 8):
        found.add(part)
    expected = (values.min(), values.mean(), values.max())
    assert found.as_text() == [f"{number:.4g}" for number in expected]


def test_stores_are_exported_and_imported(tmp_path):
    pytest.importorskip("zarr")
    buffer = made(tmp_path / "b", 40, 30, 5)
    buffer.close()
    exported = run("export", tmp_path / "b", tmp_path / "s.zarr")
    assert exported.exit_code == 0
    assert "35 frames in 2 episodes" in exported.output
    arguments = ("import", tmp_path / "s.zarr", tmp_path / "c", "--fps", 10, "--capacity", 50)
    imported = run(*arguments, "--key", "action")
    assert imported.exit_code == 0
    again = OnlineBuffer(tmp_path / "c", output="numpy")
    assert (again.buffer_capacity, again.num_episodes) == (50, 2)
    assert again.get_data_by_key("action").tobytes() == buffer.get_data_by_key("action").tobytes()
    assert "image" not in again.data_keys


@pytest.mark.parametrize("command", [("info",), ("export", "x.zarr"), ("import", "nothing")])
def test_what_is_not_there_is_one_line(tmp_path, command):
    name, *rest = command
    directory = tmp_path / "nothing"
    said = run(name, *((tmp_path / rest[0], directory) if name == "import" else (directory, *rest)))
    assert said.exit_code == 1
    assert said.output.startswith("Error: ")
    assert said.output.count("\n") == 1
    assert not directory.exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands(shell):
    pytest.importorskip("click")
    asking = os.environ | {"_FASTBUFFER_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-m", "fastbuffer"]
    said = subprocess.run(command, env=asking, capture_output=True, text=True, check=True)
    assert "_FASTBUFFER_COMPLETE" in said.stdout


def test_commands_that_are_asked_wrongly_exit_with_2(tmp_path):
    for arguments in [("info",), ("plot", tmp_path), ("nothing",), ("info", tmp_path, "--xml")]:
        assert run(*arguments).exit_code == 2
