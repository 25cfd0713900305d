"""Record episodes as a robot's control loop does, and clone the behaviour in them.

The robot is a point in the plane that is steered to a goal. Its loop adds one frame per step;
`save_episode` puts the finished episode into the buffer. A small policy then learns, from the last
two observations, the next eight actions. The windows come from `delta_timestamps`; at the ends of
an episode they reach past it, and the `_is_pad` masks keep what lies there out of the loss.

    python examples/record_and_train.py [--episodes 50] [--epochs 20] [--dir DIR]
"""

import argparse
import tempfile

import numpy as np
import torch
from torch import Tensor, nn

from fastbuffer import OnlineBuffer

FPS = 10
CAPACITY = 10_000
OBSERVATION_STEPS = 2
ACTION_STEPS = 8

DATA_SPEC = {
    "observation.state": {"shape": (4,), "dtype": np.float32},  # position and goal
    "action": {"shape": (2,), "dtype": np.float32},  # velocity
}
DELTA_TIMESTAMPS = {
    "observation.state": [step / FPS for step in range(1 - OBSERVATION_STEPS, 1)],
    "action": [step / FPS for step in range(ACTION_STEPS)],
}


def record_episode(buffer: OnlineBuffer, rng: np.random.Generator) -> None:
    """Steer from a random start to a random goal, recording each step."""
    position, goal = rng.uniform(-1, 1, (2, 2))
    for _ in range(int(rng.integers(20, 60))):
        action = np.clip(2 * (goal - position), -1, 1)
        state = np.concatenate([position, goal])
        buffer.add_frame({"observation.state": state, "action": action})
        position = position + (action + rng.normal(0, 0.1, 2)) / FPS
    buffer.save_episode()


class Policy(nn.Module):
    """From a history of observations to a chunk of actions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Flatten(), nn.Linear(OBSERVATION_STEPS * 4, 128), nn.ReLU()),
            *(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, ACTION_STEPS * 2)),
            nn.Unflatten(1, (ACTION_STEPS, 2)),
        )

    def forward(self, observations: Tensor) -> Tensor:
        """Map (batch, OBSERVATION_STEPS, 4) to (batch, ACTION_STEPS, 2)."""
        return self.layers(observations)


def masked_loss(policy: Policy, batch: dict[str, Tensor]) -> Tensor:
    """Mean squared error over the actions that exist.

    Before an episode's first frame the history repeats that frame, as it does when the policy runs.
    So only the mask of the actions, which end with the episode, is needed.
    """
    errors = (policy(batch["observation.state"]) - batch["action"]) ** 2
    return errors[~batch["action_is_pad"]].mean()


def train(policy: Policy, buffer: OnlineBuffer, epochs: int) -> list[float]:
    """Fit the policy, and return each epoch's average loss."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    losses = []
    for _ in range(epochs):
        of_batches = []
        for batch in buffer.loader(64, shuffle=True):
            loss = masked_loss(policy, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            of_batches.append(loss.item())
        losses.append(float(np.mean(of_batches)))
    return losses


def main(arguments: list[str] | None = None) -> list[float]:
    """Record, train, and return the losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=50, help="episodes to record")
    parser.add_argument("--epochs", type=int, default=20, help="times to go through the buffer")
    parser.add_argument("--dir", help="the buffer's directory; a temporary one by default")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    with tempfile.TemporaryDirectory() as temporary:
        directory = options.dir or temporary
        with OnlineBuffer(directory, DATA_SPEC, CAPACITY, FPS, DELTA_TIMESTAMPS) as buffer:
            for _ in range(options.episodes):
                record_episode(buffer, rng)
            print(f"recorded {buffer.num_episodes} episodes, {buffer.num_frames} frames")
            losses = train(Policy(), buffer, options.epochs)
    print(f"loss: {losses[0]:.4f} in the first epoch, {losses[-1]:.4f} in the last")
    return losses


if __name__ == "__main__":
    main()
