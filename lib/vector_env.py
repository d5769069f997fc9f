"""ALE's C++ vector environment: emulation, frame skip and resizing in native threads.

``ale_py.AtariVectorEnv`` plays all games in C++ threads, outside of the interpreter's lock.
Stepping is split in two: ``send`` hands the actions over and returns at once, ``recv`` waits
for the frames. What happens in between costs no playing time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from ale_py import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from lib.experience import Episode, Transition


class VectorStep(NamedTuple):
    """What a step of all games brought; arrays of length n."""

    rewards: np.ndarray  # float32, clipped to their sign
    terminated: np.ndarray  # bool: no value follows
    ended: np.ndarray  # bool: terminated or cut short; the state is that of the next game
    frames: np.ndarray  # uint8, (n, 1, height, width): the newest one, of the old game if it ended
    episodes: list[Episode | None]  # the games that ended

    @property
    def seen(self) -> list[tuple[np.ndarray, Episode | None]]:
        """The newest frame of the first game, and the game if it ended with it."""
        return [(self.frames[0], self.episodes[0])]


class Games(Protocol):
    """A vector environment whose step has two halves; games that end are reset in it."""

    single_action_space: Any

    def reset(self, *, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new games."""

    def send(self, actions: np.ndarray) -> None:
        """Let the games go on."""

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Wait for them."""


def ale_games(
    env_id: str, num_envs: int, threads: int = 0, max_pool: bool = True
) -> AtariVectorEnv:
    """Games in ALE's C++ threads.

    Args:
        env_id: a NoFrameskip game, such as PongNoFrameskip-v4.
        num_envs: games played at once.
        threads: that emulate; 0 for one per core.
        max_pool: the maximum of the last two of the 4 skipped frames, not the last one alone.
    """
    return AtariVectorEnv(
        gym.spec(env_id).kwargs["game"],
        num_envs,
        num_threads=threads,
        stack_num=1,
        maxpool=max_pool,
        reward_clipping=False,  # episodes are reported unclipped
        autoreset_mode=AutoresetMode.SAME_STEP,
    )


class StackedVectorEnv:
    """Several games with the DeepMind preprocessing, and their stacked states.

    The emulator gives single frames; stacking them here makes states as those of
    ``FrameStack``: a new game begins with its first frame repeated. A game that ends is
    followed by the next one in the same step.

    Args:
        envs: the games, one frame to an observation: of ``ale_games``, or others with its methods.
        stack: frames of a state.
        seed: game ``i`` is seeded with ``seed + i``.
        rows: the part of the 84 rows that a state shows, from the first to before the second.
        actions: those of the game that are played; None for all of them.
    """

    def __init__(
        self,
        envs: Games,
        stack: int = 4,
        seed: int = 0,
        rows: tuple[int, int] = (0, 84),
        actions: Sequence[int] | None = None,
    ) -> None:
        self._rows = slice(*rows)
        self._envs = envs
        every = range(int(self._envs.single_action_space.n))
        self._actions = np.array(every if actions is None else actions)
        self.n_actions = len(self._actions)
        frames, _ = self._envs.reset(seed=seed)
        # uint8, (n, stack, height, width)
        self.states = np.repeat(frames[:, :, self._rows], stack, axis=1)
        self._rewards = np.zeros(len(frames))
        self._steps = np.zeros(len(frames), dtype=np.int64)

    def send(self, actions: np.ndarray) -> None:
        """Let the games go on with these actions: int64 (n,), places in ``actions``."""
        self._envs.send(self._actions[actions])

    def recv(self) -> VectorStep:
        """Wait for all games; ``states`` are the new ones afterwards, in a new array."""
        frames, rewards, terminated, truncated, info = self._envs.recv()
        ended = terminated | truncated
        self._rewards += rewards
        self._steps += 1
        frames = frames[:, :, self._rows]
        self.states = np.concatenate([self.states[:, 1:], frames], axis=1)
        episodes: list[Episode | None] = [None] * len(frames)
        if ended.any():
            last = info["final_obs"][:, :, self._rows]
            frames = np.where(ended[:, None, None, None], last, frames)
        for i in np.flatnonzero(ended):
            self.states[i] = self.states[i, -1]  # the first frame of the next game
            episodes[i] = Episode(float(self._rewards[i]), int(self._steps[i]))
            self._rewards[i] = self._steps[i] = 0
        clipped = np.sign(rewards).astype(np.float32)
        return VectorStep(clipped, terminated, ended, frames, episodes)


class VectorExperienceSource:
    """Steps a vector environment forever, and lets it play while its transitions are learned.

    Iterating yields lists of one transition per game, of the step before: when a list is handed
    out, the emulator has the next actions already.

    Args:
        envs: the games.
        agent: maps uint8 states (n, stack, height, width) to actions, int64 (n,).
    """

    def __init__(self, envs: StackedVectorEnv, agent: Callable[[np.ndarray], np.ndarray]) -> None:
        self.envs = envs
        self.agent = agent

    def __iter__(self) -> Iterator[list[Transition]]:
        transitions: list[Transition] = []
        begins = np.ones(len(self.envs.states), dtype=bool)
        while True:
            states = self.envs.states
            actions = self.agent(states)
            self.envs.send(actions)
            yield transitions
            step = self.envs.recv()
            transitions = [
                Transition(
                    env=i,
                    action=int(actions[i]),
                    reward=float(step.rewards[i]),
                    terminated=bool(step.terminated[i]),
                    frame=step.frames[i],
                    first_frame=states[i, -1:] if begins[i] else None,
                    episode=step.episodes[i],
                )
                for i in range(len(states))
            ]
            begins = step.ended
