"""How good a trained network is: fresh games on the standard single environment."""

import statistics
from collections.abc import Sequence

import gymnasium as gym
from gymnasium.spaces import Discrete
from gymnasium.wrappers import TransformAction

from lib.atari_wrappers import make_atari, wrap_deepmind
from lib.experience import EpsilonGreedyAgent, LinearSchedule, QFunction
from lib.run import Run

EPISODES = 30
EPSILON = 0.01
SEED = 1_000_000  # of the first game; far from those of training


def evaluate(
    q_function: QFunction, run: Run, stack: int = 4, actions: Sequence[int] | None = None
) -> list[float]:
    """Play whole games, print mean and spread, and write each to TensorBoard.

    The environment is the one that the DeepMind wrappers make, with no-op starts, frame skip and
    max-pooling, resized by area as the vector environment does; a life is not a game.

    Args:
        q_function: maps uint8 states (n, stack, height, width) to values (n, actions).
        run: names the game, and gets ``evaluation/reward`` by game.
        stack: frames of a state.
        actions: what the actions of ``q_function`` are in the game; None: they are the same.

    Returns:
        The unclipped reward of each game.
    """
    env: gym.Env = wrap_deepmind(
        make_atari(run.hyperparams.env), episodic_life=False, stack=stack, resize="opencv-area"
    )
    if actions is not None:
        env = TransformAction(env, lambda action: actions[action], Discrete(len(actions)))
    assert isinstance(env.action_space, Discrete)
    epsilon = LinearSchedule(EPSILON, EPSILON, 1)
    agent = EpsilonGreedyAgent(q_function, int(env.action_space.n), epsilon, run.device, SEED)
    rewards: list[float] = []
    for episode in range(EPISODES):
        state, _ = env.reset(seed=SEED + episode)
        ended = False
        while not ended:
            state, _, terminated, truncated, info = env.step(int(agent([state])[0]))
            ended = terminated or truncated
        rewards.append(float(info["episode"]["r"]))
        run.tensorboard.writer.add_scalar("evaluation/reward", rewards[-1], episode + 1)
    print(
        f"evaluation: {EPISODES} games with epsilon {EPSILON:g}: mean "
        f"{statistics.mean(rewards):.2f}, standard deviation {statistics.pstdev(rewards):.2f}, "
        f"{min(rewards):.0f} to {max(rewards):.0f}",
        flush=True,
    )
    return rewards
