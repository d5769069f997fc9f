"""What the peers' programs have in common: their flags, the environment's name, the network."""

import argparse
from contextlib import AbstractContextManager

import torch
from torch import nn

ENV = "PongNoFrameskip-v4"


class Net(nn.Sequential):
    """The Nature DQN network."""

    def __init__(self, n_actions: int) -> None:
        super().__init__(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, n_actions),
        )

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Value the actions."""
        return super().forward(frames / 255.0)


def parser(description: str) -> argparse.ArgumentParser:
    """The flags of a peer."""
    flags = argparse.ArgumentParser(description=description)
    flags.add_argument("--envs", type=int, default=1)
    flags.add_argument("--replay-initial", type=int, default=1_000)
    flags.add_argument("--frames", type=int, default=2_000, help="played after filling")
    flags.add_argument("--epsilon", type=float, default=0.02)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--cuda", action="store_true")
    flags.add_argument("--amp", action="store_true", help="compute updates in bfloat16 autocast")
    return flags


def autocast(args: argparse.Namespace) -> AbstractContextManager:
    """What ``--amp`` asks for."""
    return torch.autocast("cuda" if args.cuda else "cpu", torch.bfloat16, enabled=args.amp)
