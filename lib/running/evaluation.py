"""Evaluation of a trained network: whole games with the standard preprocessing.

There are two kinds of games to play. ``SingleGames`` are environments with the wrappers of the
ladder, for every kind of start, and for pictures. ``FastGames`` are a vector environment, for the
30 games after training.
"""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformAction, TransformObservation
from tqdm import tqdm

import emulator
from lib.games.atari_wrappers import check_env_id, make_atari, wrap_deepmind
from lib.games.experience import Episode
from lib.games.vector_env import StackedVectorEnv, ale_games
from lib.learning.agents import QFunction
from lib.learning.dqn_model import DQN, NETWORKS
from lib.recipe import Recipe
from lib.running.checkpoints import SETTINGS, CheckpointError
from lib.running.run import Run
from lib.transfer import upload

EPISODES = 30
EPSILON = 0.01
SEED = 1_000_000  # of the first game; far from those of training


def make_env(recipe: Recipe, **kwargs: Any) -> gym.Env:
    """A single environment for evaluation; losing a life ends no episode.

    Args:
        recipe: how games begin, and what the agent sees and does.
        kwargs: passed to ``gymnasium.make``.
    """
    env: gym.Env = wrap_deepmind(
        make_atari(recipe.env, noop_max=recipe.noop_max, max_pool=recipe.max_pool, **kwargs),
        episodic_life=False,
        fire_reset=recipe.fire_reset,
        stack=recipe.stack,
        resize=recipe.resize,
    )
    assert isinstance(env.observation_space, Box)
    actions, space = recipe.actions, env.observation_space
    space = Box(recipe.seen(space.low), recipe.seen(space.high), dtype=np.uint8)
    env = TransformObservation(env, recipe.seen, space)
    if actions is None:
        return env
    return TransformAction(env, lambda action: actions[action], Discrete(len(actions)))


class SingleGames:
    """Games of single environments, stepped in turn; one that has ended stands still.

    Args:
        envs: from ``make_env``.
        seed: game ``i`` gets ``seed + i``.
    """

    def __init__(self, envs: Sequence[gym.Env], seed: int) -> None:
        assert isinstance(envs[0].action_space, Discrete)
        self.n_actions = int(envs[0].action_space.n)
        # uint8, (n, stack, height, width)
        self.states = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(envs)])
        self._envs: list[gym.Env | None] = list(envs)

    def step(self, actions: np.ndarray) -> list[Episode | None]:
        """Step all games; returns those that ended."""
        episodes: list[Episode | None] = [None] * len(self._envs)
        for i, env in enumerate(self._envs):
            if env is None:
                continue
            self.states[i], _, terminated, truncated, info = env.step(int(actions[i]))
            if terminated or truncated:
                episodes[i] = Episode(float(info["episode"]["r"]), int(info["episode"]["l"]))
                self._envs[i] = None
        return episodes


class FastGames(StackedVectorEnv):
    """Games of a vector environment, with the methods of ``SingleGames``.

    The preprocessing and the no-op starts are the standard ones, as ALE's vector environment has
    them: FIRE comes before the no-ops. Pong is played by ``emulator``, where Numba can compile
    it, and every other game by ALE.

    Args:
        recipe: with DeepMind's resizing and starts.
        count: number of games.
        seed: game ``i`` gets ``seed + i``.
    """

    def __init__(self, recipe: Recipe, count: int, seed: int) -> None:
        envs: Any
        if recipe.env.startswith("Pong") and not emulator.missing():
            envs = emulator.PongVectorEnv(
                count, stack=1, max_pool=recipe.max_pool, reward_clipping=False
            )
        else:
            envs = ale_games(recipe.env, count, max_pool=recipe.max_pool)
        super().__init__(envs, recipe, seed)

    def step(self, actions: np.ndarray) -> list[Episode | None]:
        """Step all games; returns those that ended. They begin anew."""
        self.send(actions)
        return self.recv().episodes


def make_games(recipe: Recipe, count: int, seed: int) -> SingleGames | FastGames:
    """Games to play at once, as fast as the recipe permits."""
    starts_as_deepmind = list(recipe.starts.values()) == [recipe]
    if starts_as_deepmind and recipe.resize == Recipe.resize:
        return FastGames(recipe, count, seed)
    return SingleGames([make_env(recipe) for _ in range(count)], seed)


def play_games(
    games: SingleGames | FastGames,
    q_function: QFunction,
    epsilon: float,
    device: torch.device | str = "cpu",
    seed: int = SEED,
) -> Iterator[list[tuple[int, Episode]]]:
    """Play every game to its end, all of them at once.

    A game has random actions of its own. So if ``q_function`` gives a state the same values in
    every batch, a game is the same whatever is played beside it.

    Args:
        games: have just begun.
        q_function: maps uint8 states (n, stack, height, width) to values (n, actions).
        epsilon: probability of a random action.
        device: where ``q_function`` wants its states.
        seed: of random actions; game ``i`` gets ``seed + i``.

    Yields:
        After each step the games that ended with it, each with its number, from 0 on.
    """
    randoms = [np.random.default_rng((seed + i, 1)) for i in range(len(games.states))]
    actions = np.zeros(len(randoms), dtype=np.int64)
    playing = np.arange(len(randoms))
    while len(playing):
        (states,) = upload(torch.device(device), games.states[playing])
        with torch.no_grad():
            actions[playing] = q_function(states).argmax(1).cpu().numpy()
        for i in playing:
            chance, other = randoms[i].random(), randoms[i].integers(games.n_actions)
            if chance < epsilon:
                actions[i] = other
        ended = [(i, game) for i, game in enumerate(games.step(actions)) if game and i in playing]
        playing = np.setdiff1d(playing, [i for i, _ in ended])
        yield ended


def evaluate(q_function: QFunction, run: Run) -> list[float]:
    """Play 30 games with epsilon 0.01 after each kind of start, as ``Recipe.starts`` has them.

    Prints mean and spread, and writes each game to TensorBoard when all have ended. Plays nothing
    if the run was interrupted.

    Args:
        q_function: maps uint8 states (n, stack, height, width) to values (n, actions).
        run: the run of this network; gets ``evaluation/reward`` for each game after no-ops, and
            ``evaluation/reward_as_trained`` for each with other starts.

    Returns:
        The unclipped reward of each game after no-ops.
    """
    if run.signal is not None:
        print("no games after training: the run was interrupted", flush=True)
        return []
    for kind, recipe in run.options.recipe.starts.items():
        rewards = [0.0] * EPISODES
        games = make_games(recipe, EPISODES, SEED)
        with tqdm(total=EPISODES, desc=f"games {kind}", leave=False, disable=None) as bar:
            for step, ended in enumerate(play_games(games, q_function, EPSILON, run.device)):
                if step % 100 == 0:  # all games end at about the same time
                    bar.set_postfix(step=step)
                bar.update(len(ended))
                for number, game in ended:
                    rewards[number] = game.reward
        print(f"games {kind}, epsilon {EPSILON:g}: {describe(rewards)}", flush=True)
        tag = "evaluation/reward" + ("_as_trained" if kind == "as trained" else "")
        for number, reward in enumerate(rewards, start=1):
            run.tensorboard.writer.add_scalar(tag, reward, number)
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
        CheckpointError: if the checkpoint does not name its network, the weights do not fit it, or
            its game is none that is played here.
    """
    settings = checkpoint[SETTINGS]
    if "network" not in settings:
        raise CheckpointError(
            f"the checkpoint of {settings['script']} does not name its network: an earlier version "
            "saved it, so play it with that version"
        )
    told = settings["network"]
    weights = checkpoint.get("net", {})
    try:
        recipe = Recipe(**settings["recipe"])
        check_env_id(recipe.env)
        network = NETWORKS[told["class"]](**told["arguments"])
        # Of 06 to 08: the averaged weights, or those in float32, without the moments of Adam.
        network.load_state_dict(weights.get("average", weights.get("weights", weights)))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"the agent of {settings['script']} cannot play: {reason}") from None
    return network, recipe
