"""How good a trained network is: fresh games on the standard single environment."""

import statistics

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch.utils.tensorboard.writer import SummaryWriter

from lib.experience import EpsilonGreedyAgent, LinearEpsilon, QFunction

EPISODES = 30
EPSILON = 0.01


def evaluate(
    q_function: QFunction,
    env: gym.Env,
    writer: SummaryWriter,
    device: torch.device | str = "cpu",
    seed: int = 1_000_000,
    episodes: int = EPISODES,
) -> list[float]:
    """Play whole games, print mean and spread, and write each to TensorBoard.

    Args:
        q_function: maps uint8 states (n, stack, height, width) to values (n, actions).
        env: made by ``make_atari`` and ``wrap_deepmind`` without episodic life, no-ops on.
        writer: gets ``evaluation/reward`` by game.
        device: where ``q_function`` wants its states.
        seed: of the first game; far from those of training.
        episodes: games to play.

    Returns:
        The unclipped reward of each.
    """
    assert isinstance(env.action_space, spaces.Discrete)
    epsilon = LinearEpsilon(EPSILON, EPSILON, 1)
    agent = EpsilonGreedyAgent(q_function, int(env.action_space.n), epsilon, device, seed)
    rewards: list[float] = []
    for episode in range(episodes):
        state, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            state, _, terminated, truncated, info = env.step(int(agent([state])[0]))
            ended = terminated or truncated
        rewards.append(float(info["episode"]["r"]))
        writer.add_scalar("evaluation/reward", rewards[-1], episode + 1)
    print(
        f"evaluation: {episodes} games with epsilon {EPSILON:g}: mean {np.mean(rewards):.2f}, "
        f"standard deviation {statistics.pstdev(rewards):.2f}, {min(rewards):.0f} to "
        f"{max(rewards):.0f}",
        flush=True,
    )
    return rewards
