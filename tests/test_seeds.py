"""Runs of neighbouring seeds share no stream of random numbers, and no game."""

import sys
from types import SimpleNamespace
from unittest.mock import Mock

from lib.envs.experience import ExperienceSource
from lib.envs.gpu_vector_env import TensorVectorEnv
from lib.envs.preprocessing import Preprocessing
from lib.envs.vector_env import StackedVectorEnv
from lib.learning.agents import EpsilonGreedyAgent, Exploration
from lib.learning.replay_buffer import ReplayBuffer
from lib.learning.schedules import LinearSchedule
from lib.parallel.worker import player_seed
from lib.seeds import TRIAL, game_seeds, resumed_seed
from lib.training.evaluation import SEED

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

GAMES, PONG = 16, Preprocessing("PongNoFrameskip-v4")
SPACES = {"single_observation_space": Box(0, 255, (1, 84, 84), np.uint8)}
SPACES["single_action_space"] = Discrete(6)


def unplayed(zeros) -> Mock:
    """A vector environment that is never stepped, and says how it was seeded."""
    reset = Mock(return_value=(zeros((GAMES, 1, 84, 84)), {}))
    seeds = lambda: reset.call_args[1]["seed"].tolist()  # noqa: E731
    return Mock(num_envs=GAMES, reset=reset, seeds=seeds, **SPACES)


def first_state(part) -> int:
    """Of its generator: all that it will draw follows from it."""
    return part.state_dict()["random"]["state"]["state"]


def test_runs_share_no_games_and_no_random_numbers(monkeypatch) -> None:
    context = SimpleNamespace(was_current_actor_reconstructed=False)
    monkeypatch.setitem(sys.modules, "ray", Mock(get_runtime_context=lambda: context))
    seeds, streams, epsilon = [], [], LinearSchedule(1.0, 0.0, 1)
    for seed in range(100):
        resumed = [player_seed(seed, number, frames) for number in (0, 1) for frames in (0, 1)]
        assert resumed_seed(seed, 0) == seed
        resumed += [resumed_seed(seed, frames) for frames in (1, 2)]
        for each in (seed, *resumed):  # a run, resumed ones, and its players on a cluster
            StackedVectorEnv(games := unplayed(np.zeros), PONG, each).states  # noqa: B018, games begin
            seeds += games.seeds()
            agent = EpsilonGreedyAgent(Exploration, 6, epsilon, seed=each)
            streams += [first_state(agent), first_state(ReplayBuffer(1, (1, 1, 1), seed=each))]
            assert first_state(Exploration(6, epsilon, each)) == first_state(agent)
        for frames in (0, 100_000):
            seeds += game_seeds(seed, 64, TRIAL, frames).tolist()
    assert len(seeds) == 100 * (7 * GAMES + 2 * 64)
    assert len(set(seeds)) == len(seeds)
    assert len(set(streams)) == len(streams) == 100 * 7 * 2
    assert SEED + 1_000 < min(seeds) <= max(seeds) < 2**31  # none is for the games after training
    # Other rungs' games are those of their run, too.
    TensorVectorEnv(GAMES, PONG, seed, rollout=1).reset(there := unplayed(torch.zeros))
    source = ExperienceSource([gym.make(PONG.env) for _ in range(GAMES)], agent, seed, steps=0)
    next(iter(source))
    assert there.seeds() == [game["seed"] for game in source.state_dict()["games"]]
    assert set(there.seeds()) < set(seeds)
