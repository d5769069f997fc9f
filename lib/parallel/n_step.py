"""n-step transitions of many games, packed into messages from a player to the learner.

Source: Sutton, Machine Learning 3 (1988), for n-step returns; Horgan et al., arXiv:1803.00933, for
players that compute them. A message holds every new frame once, and the few earlier ones that its
first transitions need. So messages may come in any order or get lost.
"""

import zlib
from dataclasses import dataclass
from typing import Any

from lib.envs.experience import Episode
from lib.envs.vector_env import VectorStep

import numpy as np


@dataclass
class Message:
    """m transitions of one player, and their f frames, compressed on the way."""

    player: int  # its number
    version: int  # of its weights, in updates
    frames: np.ndarray  # uint8, (f, height, width): step by step, in each step game by game
    windows: np.ndarray  # int32, (m, 2 * stack): numbers of the frames of state and next state
    actions: np.ndarray  # int64, (m,)
    rewards: np.ndarray  # float32, (m,): sum of n discounted ones, or fewer if the game ends
    terminated: np.ndarray  # bool, (m,): the game ended, no value follows
    episodes: list[list[Episode | None]]  # per new step and game: the game that ended, or None

    @property
    def played(self) -> int:
        """New frames: agent steps of all games."""
        return sum(map(len, self.episodes))

    def __getstate__(self) -> dict[str, Any]:
        # Level 1: a frame of Pong shrinks from 7,056 bytes to 126, in 17 microseconds.
        return vars(self) | {"frames": (self.frames.shape, zlib.compress(self.frames.data, 1))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape, packed = state["frames"]
        frames = np.frombuffer(bytearray(zlib.decompress(packed)), np.uint8).reshape(shape)
        vars(self).update(state | {"frames": frames})


class NStepRecorder:
    """A recorder of games, until their n-step transitions are complete.

    Args:
        stack: frames of a state.
        n_steps: rewards of a transition, and steps from its state to its next state.
        gamma: discount per agent step.
    """

    def __init__(self, stack: int, n_steps: int, gamma: float) -> None:
        self.stack, self.n_steps, self.gamma = stack, n_steps, gamma
        # By step, for all games: the state's newest frame, the game's age in steps, action, result.
        self._frames: list[np.ndarray] = []
        self._ages: list[np.ndarray] = []
        self._actions: list[np.ndarray] = []
        self._steps: list[VectorStep] = []
        self._new = 0  # steps since the last message
        self._begin = 0  # the first step whose state began no transition yet

    def add(self, states: np.ndarray, actions: np.ndarray, step: VectorStep) -> None:
        """Record a step: states, uint8, (games, stack, height, width), actions, int64, (games,)."""
        ages = np.zeros(len(actions), dtype=np.int64)
        if self._ages:
            ages = np.where(self._steps[-1].done, 0, self._ages[-1] + 1)
        self._frames.append(states[:, -1].copy())  # the other frames of the stacks are known
        self._ages.append(ages)
        self._actions.append(actions)
        self._steps.append(step)
        self._new += 1

    def pack(self, player: int, version: int) -> Message:
        """Return the complete transitions; needs more than ``n_steps`` steps."""
        frames = np.stack(self._frames)  # (steps, games, height, width)
        ages = np.stack(self._ages)
        n_games = ages.shape[1]
        starts = np.arange(self._begin, len(frames) - self.n_steps)
        rewards, terminated, truncated = self._returns(starts)

        def windows(steps: np.ndarray) -> np.ndarray:
            """Return these states' frame numbers; a game begins with its first frame repeated."""
            back = np.arange(self.stack - 1, -1, -1)
            shown = steps[:, None, None] - np.minimum(back, ages[steps][:, :, None])
            return shown * n_games + np.arange(n_games)[:, None]  # (steps, games, stack)

        both = np.concatenate([windows(starts), windows(starts + self.n_steps)], axis=2)
        whole = ~truncated  # a truncated game leaves no next state
        message = Message(
            player=player,
            version=version,
            frames=frames.reshape(-1, *frames.shape[2:]),
            windows=both[whole].astype(np.int32),
            actions=np.stack(self._actions)[starts][whole],
            rewards=rewards[whole],
            terminated=terminated[whole],
            episodes=[step.episodes for step in self._steps[-self._new :]],
        )
        # Keep the steps of incomplete transitions, and the frames of their states.
        kept = min(self.n_steps + self.stack - 1, len(self._frames))
        for remembered in (self._frames, self._ages, self._actions, self._steps):
            del remembered[:-kept]
        self._begin, self._new = kept - self.n_steps, 0
        return message

    def _returns(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rewards = np.stack([step.rewards for step in self._steps])
        terminal = np.stack([step.terminated for step in self._steps])
        done = np.stack([step.done for step in self._steps])
        returns = np.zeros((len(starts), rewards.shape[1]), dtype=np.float32)
        goes_on = np.ones(returns.shape, dtype=bool)
        terminated, truncated = ~goes_on, ~goes_on
        for ahead in range(self.n_steps):
            now = starts + ahead
            returns += np.float32(self.gamma**ahead) * rewards[now] * goes_on
            terminated |= goes_on & terminal[now]
            truncated |= goes_on & done[now] & ~terminal[now]
            goes_on &= ~done[now]
        return returns, terminated, truncated
