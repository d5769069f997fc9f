"""What players on a cluster need besides their games.

A player that replaces a dead one should start soon. So this module is separate from
``lib.players.cluster``: with the learner's imports, its process takes twice as long to start.
"""

from dataclasses import dataclass
from time import time_ns

import numpy as np
import torch
from torch import nn


@dataclass
class Weights:
    """The weights that players act with."""

    version: int  # number of updates that made them
    frames: int  # frames played by all players until then
    arrays: dict[str, np.ndarray]  # of the network

    def load_into(self, net: nn.Module) -> None:
        """Copy the weights into a network."""
        net.load_state_dict({name: torch.tensor(array) for name, array in self.arrays.items()})


def ape_x_epsilons(players: int, games: int, final: float) -> np.ndarray:
    """Epsilon of each game, from 0.4 down to 0.0007, float, (players, games).

    Every player has high and low ones. A single game has ``final``. Source: Horgan et al.,
    arXiv:1803.00933, section 4.1.
    """
    count = players * games
    if count == 1:
        return np.full((1, 1), final)
    return (0.4 ** (1 + 7 * np.arange(count) / (count - 1))).reshape(games, players).T


def player_seed(seed: int, number: int) -> int:
    """The seed of a player's games and actions; a restarted player gets another one."""
    import ray

    replaces = ray.get_runtime_context().was_current_actor_reconstructed
    parts = (seed, number, time_ns() if replaces else 0)
    return int(np.random.default_rng(parts).integers(2**31 - 1_000))
