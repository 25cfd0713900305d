"""Train on an offline dataset and a growing online buffer together, each with its share.

An expert's demonstrations are the offline dataset. Round by round the policy then acts by itself
and the expert says what it would have done; these episodes go into the online buffer (S. Ross, G.
Gordon and D. Bagnell, 2011, "A reduction of imitation learning and structured prediction to
no-regret online learning"). `MixedSampler` draws from both, by the given ratio from the buffer,
however many frames that has: in the end it is full, and new episodes replace the oldest.

    python examples/offline_and_online.py [--rounds 15] [--ratio 0.5] [--dir DIR]
"""

import argparse
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from fastbuffer import MixedSampler, OnlineBuffer

FPS = 10
EPISODE_LENGTH = 40
CAPACITY = 400  # frames of the buffer: those of ten episodes
DEMONSTRATIONS = 20
BATCH_SIZE = 32
FRAMES_PER_ROUND = 1600

DATA_SPEC = {
    "observation.state": {"shape": (2,), "dtype": np.float32},
    "action": {"shape": (2,), "dtype": np.float32},
    "is_online": {"shape": (), "dtype": bool},
}


class Demonstrations(Dataset):
    """Episodes in memory, with the bounds of each as a LeRobotDataset has them."""

    def __init__(self, episodes: list[list[dict]]) -> None:
        self.frames = [
            frame | {"index": 0, "episode_index": number, "frame_index": i, "timestamp": i / FPS}
            for number, episode in enumerate(episodes)
            for i, frame in enumerate(episode)
        ]
        ends = np.cumsum([len(episode) for episode in episodes])
        self.episode_data_index = {"from": np.append(0, ends[:-1]), "to": ends}

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, position: int) -> dict:
        return {key: torch.as_tensor(value) for key, value in self.frames[position].items()}


def expert(position: np.ndarray) -> np.ndarray:
    """Head for the origin, in a curve."""
    x, y = position
    return np.tanh([-2 * x + y, -2 * y - x]).astype(np.float32)


def episode_of(act, rng: np.random.Generator, *, is_online: bool) -> list[dict]:
    """Where `act` leads from a random start, and what the expert would do there."""
    position = rng.uniform(-1, 1, 2).astype(np.float32)
    frames = []
    for _ in range(EPISODE_LENGTH):
        frame = {"observation.state": position, "action": expert(position), "is_online": is_online}
        frames.append(frame)
        position = position + act(position) / FPS
    return frames


def train(
    policy: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader
) -> tuple[float, float]:
    """One pass; returns the average loss and the share of online frames."""
    losses, is_online = [], []
    for batch in loader:
        loss = ((policy(batch["observation.state"]) - batch["action"]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        is_online.append(batch["is_online"])
    return float(np.mean(losses)), float(torch.cat(is_online).float().mean())


def main(arguments: list[str] | None = None) -> list[float]:
    """Train for some rounds, and return the share of online frames in each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ratio", type=float, default=0.5, help="the online share, from 0 to 1")
    parser.add_argument("--dir", help="the buffer's directory; a temporary one by default")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    policy = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)

    @torch.no_grad()
    def act(position: np.ndarray) -> np.ndarray:
        return policy(torch.from_numpy(position)).numpy()

    offline = Demonstrations(
        [episode_of(expert, rng, is_online=False) for _ in range(DEMONSTRATIONS)]
    )
    shares = []
    with (
        tempfile.TemporaryDirectory() as temporary,
        OnlineBuffer(options.dir or temporary, DATA_SPEC, CAPACITY, FPS) as online,
    ):
        sampler = MixedSampler(offline, online, options.ratio, num_samples=FRAMES_PER_ROUND)
        for _ in range(options.rounds):
            # A ConcatDataset keeps the lengths of when it is made, so each round makes a new one.
            both = ConcatDataset([offline, online])
            loader = DataLoader(both, batch_sampler=sampler.batches(BATCH_SIZE))
            loss, share = train(policy, optimizer, loader)
            shares.append(share)
            print(f"{len(online):4d} online frames, share {share:.3f}, loss {loss:.4f}")
            for frame in episode_of(act, rng, is_online=True):
                online.add_frame(frame)
            online.save_episode()
    return shares


if __name__ == "__main__":
    main()
