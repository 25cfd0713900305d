"""Write and learn in two processes that share nothing but the buffer's directory.

The actor, a process of its own, records episodes of a pendulum that is pushed at random. The
learner opens the same directory with `mode="r"`: it changes nothing in it, sees each episode whole
as soon as the actor has saved it, and learns to predict the next state from what there is so far.
It ends when the actor does.

    python examples/actor_and_learner.py [--episodes 40] [--pause 0.1] [--dir DIR]
"""

import argparse
import multiprocessing
import tempfile
import time

import numpy as np
import torch
from torch import Tensor, nn

from fastbuffer import OnlineBuffer

FPS = 20
CAPACITY = 10_000
BATCH_SIZE = 64

DATA_SPEC = {
    "observation.state": {"shape": (2,), "dtype": np.float32},  # angle and angular velocity
    "action": {"shape": (1,), "dtype": np.float32},  # torque
}
NOW_AND_NEXT = {"observation.state": [0.0, 1 / FPS]}


def act(directory: str, episodes: int, pause: float) -> None:
    """What the actor does: record episodes, with a pause in seconds after each."""
    rng = np.random.default_rng(0)
    with OnlineBuffer(directory) as buffer:  # the spec is in the directory
        for _ in range(episodes):
            angle, velocity = rng.uniform(-1, 1, 2)
            for _ in range(int(rng.integers(20, 60))):
                torque = rng.uniform(-2, 2)
                buffer.add_frame({"observation.state": [angle, velocity], "action": [torque]})
                velocity += (torque - 9.81 * np.sin(angle) - 0.5 * velocity) / FPS
                angle += velocity / FPS
            buffer.save_episode()
            time.sleep(pause)


def prediction_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Squared error of the change of state; an episode's last frame has none, and is left out."""
    now, after = batch["observation.state"].unbind(dim=1)
    predicted = now + model(torch.cat([now, batch["action"]], dim=1))
    has_next = ~batch["observation.state_is_pad"][:, 1]
    return ((predicted - after)[has_next] ** 2).mean()


class Learner:
    """Reads the buffer while it grows."""

    def __init__(self, directory: str) -> None:
        self.buffer = OnlineBuffer(directory, delta_timestamps=NOW_AND_NEXT, mode="r")
        self.model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.losses: list[float] = []
        self.episodes: set[int] = set()

    def learn(self, batch: dict[str, Tensor]) -> None:
        """One training step."""
        loss = prediction_loss(self.model, batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.episodes.update(batch["episode_index"].tolist())

    def follow(self, actor: multiprocessing.Process) -> None:
        """Learn from what there is while the actor lives, then go once through everything."""
        reported = 0
        while actor.is_alive():
            if len(self.buffer) == 0:
                time.sleep(0.01)
                continue
            self.learn(self.buffer.sample(BATCH_SIZE))
            if self.buffer.num_episodes >= reported + 10:
                reported = self.buffer.num_episodes
                print(f"{reported} episodes, {len(self.losses)} steps: {self.losses[-1]:.6f}")
        for batch in self.buffer.loader(BATCH_SIZE, shuffle=True):
            self.learn(batch)


def main(arguments: list[str] | None = None) -> Learner:
    """Run both, and return the learner."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=40, help="episodes to record")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds after each")
    parser.add_argument("--dir", help="the buffer's directory; a temporary one by default")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)

    with tempfile.TemporaryDirectory() as temporary:
        directory = options.dir or temporary
        OnlineBuffer(directory, DATA_SPEC, CAPACITY, FPS).close()  # now both can open it
        process = multiprocessing.get_context("spawn").Process
        actor = process(target=act, args=(directory, options.episodes, options.pause))
        actor.start()
        learner = Learner(directory)
        learner.follow(actor)
        actor.join()
    if actor.exitcode != 0:
        raise SystemExit(f"the actor ended with {actor.exitcode}")
    print(
        f"the learner saw {len(learner.episodes)} episodes in {len(learner.losses)} steps; "
        f"loss {learner.losses[0]:.6f} at first, {learner.losses[-1]:.6f} at last"
    )
    return learner


if __name__ == "__main__":
    main()
