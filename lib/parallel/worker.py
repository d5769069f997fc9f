"""Settings, weights and epsilons of players on a cluster.

They are not in ``lib.parallel.cluster``, whose imports would double the time a player takes to
start.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from time import time_ns

from lib.envs.vector_env import StackedVectorEnv, fast_games
from lib.seeds import PLAYERS, stream
from lib.training.options import ReplayOptions, playing_option, timeout_option, wrapper_option

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class ClusterOptions(ReplayOptions):
    """Settings of rungs whose players are Ray actors; another cluster may resume a run."""

    vector_env = True  # states of ALE's vector environment, not of wrappers
    transition_bytes = 8_900
    address: str = playing_option(
        "", "host:port of the Ray cluster to join (default: start Ray here)", may_change=True
    )
    players: int = playing_option(1, "players (Ray actors)", low=1, high=10_000, may_change=True)
    envs: int = playing_option(8, "environments of each player, stepped together", low=1, high=256)
    message_steps: int = playing_option(32, "steps of each game per message", low=10, high=1_000)
    max_pool: bool = wrapper_option(False, "frame skip takes the maximum of the last two frames")
    stack: int = wrapper_option(2, "stacked frames per state", low=1, high=16)
    sync_updates: int = playing_option(50, "updates between broadcasts of the weights", low=1)
    player_timeout: float = timeout_option()

    @property
    def samples(self) -> int:
        return self.batch_size  # however many games there are

    def validation_error(self) -> str | None:
        if message := super().validation_error():
            return message
        host, _, port = self.address.rpartition(":")
        if self.address and not (host and port.isdecimal()):
            return f"--address: {self.address} is not host:port"
        if find_spec("ray") is None:
            return "Ray is not installed: pip install -r requirements-cluster.txt"
        return None

    def make_envs(self, count: int, seed: int) -> StackedVectorEnv:
        games = fast_games(self.env, count, self.max_pool, threads=1)  # a core for each player
        return StackedVectorEnv(games, self.preprocessing, seed)


@dataclass
class VersionedWeights:
    """The weights that players act with."""

    version: int  # number of updates that made them
    frames: int  # frames played by all players until then
    arrays: dict[str, np.ndarray]  # of the network

    def load_into(self, net: nn.Module) -> None:
        net.load_state_dict({name: torch.tensor(array) for name, array in self.arrays.items()})


def ape_x_epsilons(players: int, games: int, final: float) -> np.ndarray:
    """Return each game's epsilon, from 0.4 down to 0.0007, float, (players, games).

    Every player has high and low ones; a single game has ``final``. Source: Horgan et al.,
    arXiv:1803.00933, section 4.1.
    """
    count = players * games
    if count == 1:
        return np.full((1, 1), final)
    return (0.4 ** (1 + 7 * np.arange(count) / (count - 1))).reshape(games, players).T


def player_seed(seed: int, number: int, frames: int) -> int:
    """Return a player's seed, which changes if the player or the run was restarted."""
    import ray

    replaces = ray.get_runtime_context().was_current_actor_reconstructed
    numbers = (number, frames, time_ns() if replaces else 0)
    return int(stream(seed, PLAYERS, *numbers).integers(2**62))
