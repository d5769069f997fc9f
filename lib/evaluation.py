"""How good a trained network is: whole games on the standard single environment."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformAction, TransformObservation

from lib.atari_wrappers import make_atari, wrap_deepmind
from lib.checkpoints import SETTINGS, CheckpointError
from lib.dqn_model import DQN, NormalizedDQN
from lib.experience import Episode, EpsilonGreedyAgent, LinearSchedule, QFunction
from lib.run import Run

EPISODES = 30
EPSILON = 0.01
SEED = 1_000_000  # of the first game; far from those of training
PONG_ACTIONS = (0, 2, 3)  # of six, those that differ: stay, up, down
PONG_ROWS = slice(13, 78)  # of 84, those between the walls; above them is the score


def make_env(settings: dict[str, Any], **kwargs: Any) -> gym.Env:
    """The environment to judge a run by: DeepMind's, with no-op starts, and a life is no game.

    Frame skip with or without max-pooling, stack, resizing, rows and actions are as in training.

    Args:
        settings: the run's hyperparameters; what a rung cannot choose may be missing.
        kwargs: passed to ``gymnasium.make``.
    """
    env: gym.Env = wrap_deepmind(
        make_atari(settings["env"], max_pool=settings.get("max_pool", True), **kwargs),
        episodic_life=False,
        stack=settings.get("stack", 4),
        resize=settings.get("resize", "opencv-area"),
    )
    if settings.get("any_game", True):
        return env
    assert isinstance(env.observation_space, Box)
    low, high = env.observation_space.low[:, PONG_ROWS], env.observation_space.high[:, PONG_ROWS]
    space = Box(low, high, dtype=np.uint8)
    env = TransformObservation(env, lambda state: state[:, PONG_ROWS], space)
    return TransformAction(env, lambda action: PONG_ACTIONS[action], Discrete(len(PONG_ACTIONS)))


def play_games(
    env: gym.Env,
    q_function: QFunction,
    epsilon: float,
    device: torch.device | str = "cpu",
    seed: int = SEED,
) -> Iterator[Episode]:
    """Play whole games, forever.

    Args:
        env: of ``make_env``.
        q_function: maps uint8 states (n, stack, height, width) to values (n, actions).
        epsilon: share of random actions.
        device: where ``q_function`` wants its states.
        seed: of the first game; the following ones have the following seeds.
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
        run: whose network it is; gets ``evaluation/reward`` by game.

    Returns:
        The unclipped reward of each game.
    """
    env = make_env(vars(run.hyperparams))
    games = play_games(env, q_function, EPSILON, run.device)
    rewards: list[float] = []
    for number, game in zip(range(1, EPISODES + 1), games, strict=False):
        rewards.append(game.reward)
        run.tensorboard.writer.add_scalar("evaluation/reward", game.reward, number)
    print(f"evaluation with epsilon {EPSILON:g}: {describe(rewards)}", flush=True)
    return rewards


def describe(rewards: Sequence[float]) -> str:
    """Mean and spread of the rewards of games, in a line."""
    return (
        f"{len(rewards)} games, mean {statistics.mean(rewards):.2f}, standard deviation "
        f"{statistics.pstdev(rewards):.2f}, {min(rewards):.0f} to {max(rewards):.0f}"
    )


def load_network(checkpoint: dict[str, Any]) -> DQN:
    """The network of a checkpoint, ready to play on the CPU.

    Raises:
        CheckpointError: the weights are not those of a network of this project.
    """
    weights = checkpoint.get("net", {})
    weights = weights.get("weights", weights)  # one that is learned in two precisions
    try:
        any_game = checkpoint[SETTINGS]["hyperparameters"].get("any_game", True)
        height = 84 if any_game else PONG_ROWS.stop - PONG_ROWS.start
        stack = weights["conv.0.weight"].shape[1]
        outputs = list(weights.values())[-1].shape[0]
        network: DQN
        if "fc.3.weight" in weights:
            network = NormalizedDQN((stack, height, 84), outputs - 1)  # the value is one of them
        else:
            network = DQN((stack, 84, 84), outputs)
        network.load_state_dict(weights)
    except (KeyError, IndexError, RuntimeError) as error:
        script = checkpoint[SETTINGS]["script"]
        raise CheckpointError(f"the weights of {script} fit no network: {error}") from None
    return network
