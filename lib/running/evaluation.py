"""Evaluation of a trained network: whole games on the standard single environment."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformAction, TransformObservation

from lib.games.atari_wrappers import make_atari, wrap_deepmind
from lib.games.experience import Episode
from lib.learning.agents import EpsilonGreedyAgent, LinearSchedule, QFunction
from lib.learning.dqn_model import DQN, NETWORKS
from lib.recipe import Recipe
from lib.running.checkpoints import SETTINGS, CheckpointError
from lib.running.run import Run

EPISODES = 30
EPSILON = 0.01
SEED = 1_000_000  # of the first game; far from those of training


def make_env(recipe: Recipe, **kwargs: Any) -> gym.Env:
    """The environment for evaluation: DeepMind's, with no-op starts; losing a life ends no episode.

    Args:
        recipe: frame skip, resizing, stack, rows and actions, as in training.
        kwargs: passed to ``gymnasium.make``.
    """
    env: gym.Env = wrap_deepmind(
        make_atari(recipe.env, max_pool=recipe.max_pool, **kwargs),
        episodic_life=False,
        stack=recipe.stack,
        resize=recipe.resize,
    )
    assert isinstance(env.observation_space, Box)
    rows, actions = slice(*recipe.rows), recipe.actions
    low, high = env.observation_space.low[:, rows], env.observation_space.high[:, rows]
    space = Box(low, high, dtype=np.uint8)
    env = TransformObservation(env, lambda state: state[:, rows], space)
    if actions is None:
        return env
    return TransformAction(env, lambda action: actions[action], Discrete(len(actions)))


def play_games(
    env: gym.Env,
    q_function: QFunction,
    epsilon: float,
    device: torch.device | str = "cpu",
    seed: int = SEED,
) -> Iterator[Episode]:
    """Play whole games, forever.

    Args:
        env: from ``make_env``.
        q_function: maps uint8 states (n, stack, height, width) to values (n, actions).
        epsilon: probability of a random action.
        device: where ``q_function`` wants its states.
        seed: of the first game; each next game has the next seed.
    """
    assert isinstance(env.action_space, Discrete)
    schedule = LinearSchedule(epsilon, epsilon, 1)
    agent = EpsilonGreedyAgent(q_function, int(env.action_space.n), schedule, device, seed)
    while True:
        state, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            state, _, terminated, truncated, info = env.step(int(agent([state])[0]))
            ended = terminated or truncated
        yield Episode(float(info["episode"]["r"]), int(info["episode"]["l"]))
        seed += 1


def evaluate(q_function: QFunction, run: Run) -> list[float]:
    """Play 30 games with epsilon 0.01, print mean and spread, and write each to TensorBoard.

    Args:
        q_function: maps uint8 states (n, stack, height, width) to values (n, actions).
        run: the run of this network; gets ``evaluation/reward`` for each game.

    Returns:
        The unclipped reward of each game.
    """
    env = make_env(run.hyperparams.recipe)
    games = play_games(env, q_function, EPSILON, run.device)
    rewards: list[float] = []
    for number, game in zip(range(1, EPISODES + 1), games, strict=False):
        rewards.append(game.reward)
        run.tensorboard.writer.add_scalar("evaluation/reward", game.reward, number)
    print(f"evaluation with epsilon {EPSILON:g}: {describe(rewards)}", flush=True)
    return rewards


def describe(rewards: Sequence[float]) -> str:
    """Mean and spread of the rewards of games, in one line."""
    return (
        f"{len(rewards)} games, mean {statistics.mean(rewards):.2f}, standard deviation "
        f"{statistics.pstdev(rewards):.2f}, {min(rewards):.0f} to {max(rewards):.0f}"
    )


def load_agent(checkpoint: dict[str, Any]) -> tuple[DQN, Recipe]:
    """The network of a checkpoint, ready to play on the CPU, and its recipe.

    Raises:
        CheckpointError: if the checkpoint does not name its network, or the weights do not fit it.
    """
    settings = checkpoint[SETTINGS]
    if "network" not in settings:
        raise CheckpointError(
            f"the checkpoint of {settings['script']} does not name its network: an earlier version "
            "saved it, so play it with that version"
        )
    told = settings["network"]
    weights = checkpoint.get("average", checkpoint.get("net", {}))
    try:
        recipe = Recipe(**settings["recipe"])
        network = NETWORKS[told["class"]](**told["arguments"])
        # Weights in two precisions: take the float32 ones, without Adam's averages.
        network.load_state_dict(weights.get("weights", weights))
    except (KeyError, TypeError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"the weights of {settings['script']} do not fit: {reason}") from None
    return network, recipe
