"""Vector environments: ALE's in C++, and our own emulator's, which has the same methods.

With several threads, both play between ``send`` and ``recv``, without the interpreter's lock.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import pong_emulator
from lib.devices import cores, playing_threads
from lib.envs.experience import Episode, Transitions
from lib.envs.preprocessing import Preprocessing
from lib.seeds import game_seeds

import gymnasium as gym
import numpy as np
from ale_py import AtariVectorEnv
from gymnasium.vector import AutoresetMode


class VectorStep(NamedTuple):
    """The outcome of a step of all games; arrays of length n."""

    rewards: np.ndarray  # float32, clipped to their sign
    terminated: np.ndarray  # bool: do not bootstrap; the game is over, or a life is lost
    done: np.ndarray  # bool: terminated or truncated; the state is already the next episode's
    frames: np.ndarray  # uint8, (n, 1, height, width): the newest; of an ended game, its last
    episodes: list[Episode | None]  # the whole games that ended

    @property
    def points(self) -> tuple[int, int]:
        """Numbers of points won and lost."""
        return int((self.rewards > 0).sum()), int((self.rewards < 0).sum())


def ale_games(
    env_id: str, num_envs: int, threads: int = 0, max_pool: bool = True, **settings: Any
) -> AtariVectorEnv:
    """Make games in ALE's C++ threads.

    Args:
        env_id, max_pool: as for ``lib.envs.atari_wrappers.make_atari``, but the maximum is in grey.
        threads: number of emulating threads; 0: one per core.
        settings: passed to ALE. Games begin with FIRE and up to ``noop_max - 2`` no-ops.
    """
    settings |= {"num_threads": threads or min(cores(), num_envs), "maxpool": max_pool}
    settings |= {"autoreset_mode": AutoresetMode.SAME_STEP, "stack_num": 1}
    game = gym.spec(env_id).kwargs["game"]
    return AtariVectorEnv(game, num_envs, reward_clipping=False, **settings)  # clipped in ``recv``


def fast_games(
    env_id: str, num_envs: int, max_pool: bool, threads: int = 0, **settings: Any
) -> Any:
    """Make Pong with ``pong_emulator`` if it works here; otherwise use ``ale_games``.

    Both play the same games, pixel for pixel.
    """
    if _is_emulated(env_id):
        settings |= {"threads": threads or playing_threads(num_envs), "max_pool": max_pool}
        return pong_emulator.PongVectorEnv(num_envs, stack=1, reward_clipping=False, **settings)
    return ale_games(env_id, num_envs, threads, max_pool, **settings)


def preparing_fast_games(env_id: str) -> AbstractContextManager[None]:
    """During the ``with`` block, another process compiles what ``fast_games`` needs."""
    return pong_emulator.preparing() if _is_emulated(env_id) else nullcontext()


def _is_emulated(env_id: str) -> bool:
    return env_id.startswith("Pong") and not pong_emulator.missing()


class StackedVectorEnv:
    """Several games with the DeepMind preprocessing, and their stacked states.

    In the step that ends a game, the next one begins, with its first frame repeated. A lost life
    ends the episode, but the game goes on, and the agent presses FIRE if the game waits for it.

    Args:
        envs: games of ``ale_games`` or ``fast_games``, with one frame per observation.
        preprocessing: the frames, rows and resolution of a state, and the actions.
        seed: seed of the run, see ``lib.seeds``; or one seed per game, int64 (n,).
    """

    def __init__(self, envs: Any, preprocessing: Preprocessing, seed: int | np.ndarray = 0) -> None:
        self._envs, self._preprocessing = envs, preprocessing
        self.seeds = seed if isinstance(seed, np.ndarray) else game_seeds(seed, envs.num_envs)
        self._actions = np.array(preprocessing.actions or range(int(envs.single_action_space.n)))
        self.n_actions = len(self._actions)
        frame = np.zeros(envs.single_observation_space.shape[-2:], np.uint8)
        self.shape = (envs.num_envs, preprocessing.stack, *preprocessing.transform(frame).shape)
        self._rewards = np.zeros(envs.num_envs)
        self._steps = np.zeros(envs.num_envs, dtype=np.int64)

    @cached_property
    def states(self) -> np.ndarray:
        """States, uint8 (n, stack, height, width). The first access resets the games."""
        frames, info = self._envs.reset(seed=self.seeds)
        self._lives = info.get("lives", np.zeros(len(frames), dtype=np.int64))
        return np.repeat(self._preprocessing.transform(frames), self._preprocessing.stack, axis=1)

    def send(self, actions: np.ndarray) -> None:
        """Hand over indices of actions, int64 (n,), and return at once."""
        _ = self.states  # the first access resets the games
        self._envs.send(self._actions[actions])

    def recv(self) -> VectorStep:
        """Wait for all games, and replace ``states`` with a new array."""
        frames, rewards, terminated, truncated, info = self._envs.recv()
        done = terminated | truncated
        self._rewards += rewards
        self._steps += 1
        frames = self._preprocessing.transform(frames)
        self.states = np.concatenate([self.states[:, 1:], frames], axis=1)
        episodes: list[Episode | None] = [None] * len(frames)
        if done.any():
            last = self._preprocessing.transform(info["final_obs"])
            frames = np.where(done[:, None, None, None], last, frames)
        for i in np.flatnonzero(done):
            self.states[i] = self.states[i, -1]  # the first frame of the next game
            episodes[i] = Episode(float(self._rewards[i]), int(self._steps[i]))
            self._rewards[i] = self._steps[i] = 0
        lives = info.get("lives", self._lives)
        life_lost = (lives > 0) & (lives < self._lives) & ~done  # at 0 the game reports its end
        self._lives = lives
        self.states[life_lost] = self.states[life_lost, -1:]
        clipped = np.sign(rewards).astype(np.float32)
        return VectorStep(clipped, terminated | life_lost, done | life_lost, frames, episodes)


class VectorExperienceSource:
    """Step a vector environment forever, while the network learns.

    Each iteration starts a step and yields a list with the previous one; the first list is empty.
    ``agent`` maps uint8 states (n, stack, height, width) to actions, int64 (n,).
    """

    def __init__(self, envs: StackedVectorEnv, agent: Callable[[np.ndarray], np.ndarray]) -> None:
        self.envs, self.agent = envs, agent

    def __iter__(self) -> Iterator[list[Transitions]]:
        steps: list[Transitions] = []
        starts = np.ones(len(self.envs.states), dtype=bool)
        while True:
            states = self.envs.states
            actions = self.agent(states)
            self.envs.send(actions)
            yield steps
            rewards, terminated, done, frames, episodes = self.envs.recv()
            new = (actions, rewards, terminated, frames[:, 0], starts, states[starts, -1], episodes)
            steps, starts = [Transitions(*new)], done
