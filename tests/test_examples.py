"""The programs in `examples/` run, and do what they say."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from fastbuffer import OnlineBuffer

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(torch, monkeypatch):
    """Imports an example by its name; without torch, the test is skipped."""
    monkeypatch.syspath_prepend(EXAMPLES)
    with torch.random.fork_rng(devices=[]):
        yield importlib.import_module


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
