"""The programs in `examples/` run, and do what they say."""

import importlib
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from fastbuffer import OnlineBuffer

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def example(torch, monkeypatch):
    """Imports an example by its name; without torch, the test is skipped."""
    monkeypatch.syspath_prepend(EXAMPLES)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them would wait for each other where tests run in parallel
    with torch.random.fork_rng(devices=[]):
        yield importlib.import_module
    torch.set_num_threads(threads)


def test_the_readme_names_each_example():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `examples/(\w+\.py)` \|", readme, re.M)
    assert sorted(named) == sorted(path.name for path in EXAMPLES.glob("*.py"))


# record_and_train.py


def test_a_policy_learns_from_what_a_loop_recorded(example, tmp_path, capsys):
    losses = example("record_and_train").main(
        ["--episodes", "20", "--epochs", "8", "--dir", str(tmp_path)]
    )
    assert losses[-1] < losses[0] / 4
    buffer = OnlineBuffer(tmp_path, mode="r", output="numpy")
    assert np.unique(buffer.get_data_by_key("episode_index")).tolist() == list(range(20))
    assert f"{losses[0]:.4f} in the first epoch, {losses[-1]:.4f} in" in capsys.readouterr().out


def test_padding_is_no_part_of_the_loss(example, torch):
    module = example("record_and_train")
    is_pad = torch.arange(module.ACTION_STEPS) >= 3
    batch = {
        "observation.state": torch.zeros(1, module.OBSERVATION_STEPS, 4),
        "action": torch.where(is_pad[:, None], 100.0, 2.0).expand(1, -1, 2),
        "action_is_pad": is_pad[None],
    }
    nothing = torch.zeros_like(batch["action"])
    assert module.masked_loss(lambda observations: nothing, batch) == 4


# offline_and_online.py


@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_the_buffer_has_its_share_however_full_it_is(example, tmp_path, ratio):
    module = example("offline_and_online")
    shares = module.main(["--rounds", "12", "--ratio", str(ratio), "--dir", str(tmp_path)])
    assert shares[0] == 0  # there was nothing yet
    assert shares[1:] == pytest.approx([ratio] * 11, abs=0.05)
    assert len(OnlineBuffer(tmp_path, mode="r")) == module.CAPACITY


# actor_and_learner.py


def test_the_learner_sees_each_episode_of_the_actor(example, tmp_path):
    module = example("actor_and_learner")
    learner = module.main(["--episodes", "20", "--pause", "0.05", "--dir", str(tmp_path)])
    assert learner.episodes == set(range(20))
    buffer = OnlineBuffer(tmp_path, mode="r")
    assert buffer.num_episodes == 20
    assert buffer.verify() == []
    steps_after_the_actor = -(-len(buffer) // module.BATCH_SIZE)
    assert len(learner.losses) > steps_after_the_actor
    assert np.isfinite(learner.losses).all()


def test_an_actor_that_fails_is_told_of(example, tmp_path, capfd):
    module = example("actor_and_learner")
    with OnlineBuffer(tmp_path, module.DATA_SPEC, module.CAPACITY, module.FPS) as buffer:
        buffer.add_frame({"observation.state": [0.0, 0.0], "action": [0.0]})
        buffer.save_episode()  # from here on, no other process may write
        with pytest.raises(SystemExit, match="the actor ended with 1"):
            module.main(["--episodes", "1", "--dir", str(tmp_path)])
    assert "BufferLockedError" in capfd.readouterr().err


# pendulum_td3.py


@pytest.fixture
def td3(example):
    """The example; without gymnasium, the test is skipped."""
    pytest.importorskip("gymnasium")
    return example("pendulum_td3")


def test_td3_fills_the_buffer_and_trains(td3, tmp_path):
    assert np.isfinite(td3.main(["--steps", "1200", "--dir", str(tmp_path)])).all()
    buffer = OnlineBuffer(tmp_path, mode="r")
    ends = buffer.get_data_by_key("frame_index") == 199
    assert (len(buffer), buffer.num_episodes, int(ends.sum())) == (1200, 6, 6)
    assert not buffer.get_data_by_key("next.terminated").any()
    assert (buffer.get_data_by_key("next.truncated") == ends).all()

    for batch in itertools.islice(td3.batches_of(buffer, seed=0), 30):
        steps = batch["bootstrap.frame_index"] - batch["frame_index"]
        assert ((steps > 0) & (steps <= td3.N_STEP)).all()
        assert batch["discount"].numpy() == pytest.approx(td3.GAMMA ** steps.numpy())


@pytest.mark.long
def test_td3_learns_to_swing_the_pendulum_up(td3):
    before, after = td3.main([])
    assert before < -900
    assert after > -400
