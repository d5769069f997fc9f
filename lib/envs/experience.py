"""Transitions and episodes, and the source that steps one or many environments."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from lib.envs.resumable import RESET, ResumableEnv
from lib.seeds import game_seeds


class Episode(NamedTuple):
    """A whole game, with unclipped reward and across lives."""

    reward: float  # unclipped, lives included
    steps: int  # the agent's frames; a FIRE, or no-op, that a wrapper plays is none


class Transitions(NamedTuple):
    """One step of every environment, in few bytes: only the frames that it added.

    The stacked states follow from the frames, see ``lib.learning.replay_buffer``.
    """

    actions: np.ndarray  # int64, (n,)
    rewards: np.ndarray  # float32, (n,), as the wrappers pass them on
    terminated: np.ndarray  # bool, (n,): no value follows; a truncated episode is not terminated
    frames: np.ndarray  # uint8, (n, height, width): the newest frame of each next state
    episode_starts: np.ndarray  # bool, (n,): an episode begins with the state
    first_frames: np.ndarray  # uint8, (episodes, height, width): the frames of these states
    episodes: list[Episode | None]  # (n,): the whole game that ended with the step


class ExperienceSource:
    """Steps environments in turn, forever; after an episode the next one begins.

    Iterating yields lists of ``steps`` steps: the actions of all environments are chosen together,
    then each environment is stepped.

    Args:
        envs: environments whose observations are ``LazyFrames``.
        agent: maps the list of current states to their actions.
        seed: of the run, see ``lib.seeds``; games differ, and can be repeated.
        steps: agent steps of every environment per list.
    """

    def __init__(
        self,
        envs: Sequence[gym.Env],
        agent: Callable[[Sequence[Any]], np.ndarray],
        seed: int = 0,
        steps: int = 1,
    ) -> None:
        self.envs = [ResumableEnv(env) for env in envs]
        self.agent, self.seed, self.steps = agent, seed, steps
        self._states: list[Any] = []
        self._starts = np.ones(len(envs), dtype=bool)  # whether the next step begins an episode
        self._frames = np.zeros(len(envs), dtype=np.int64)  # of the current game

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: how to get back into the current games."""
        return {"games": [env.state_dict() for env in self.envs], "begins": self._starts.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Bring new environments to the point where ``state_dict`` was taken."""
        games = zip(self.envs, state["games"], strict=True)
        self._states = [env.play_again(game) for env, game in games]
        self._starts = np.array(state["begins"])
        played = [np.array(game["actions"]) != RESET for game in state["games"]]
        self._frames = np.array([actions.sum() for actions in played])

    def __iter__(self) -> Iterator[list[Transitions]]:
        if not self._states:
            seeds = zip(self.envs, game_seeds(self.seed, len(self.envs)).tolist(), strict=True)
            self._states = [env.reset(seed=seed)[0] for env, seed in seeds]
        while True:
            yield [self._step() for _ in range(self.steps)]

    def _step(self) -> Transitions:
        states, starts = self._states, self._starts.copy()
        actions = self.agent(states)
        first_frames = np.concatenate([state.frames[-1] for state in states])[starts]
        rewards = np.empty(len(states), dtype=np.float32)
        terminated = np.empty(len(states), dtype=bool)
        frames: list[np.ndarray] = []
        episodes: list[Episode | None] = []
        for i, env in enumerate(self.envs):
            states[i], rewards[i], terminated[i], truncated, info = env.step(int(actions[i]))
            frames.append(states[i].frames[-1])
            self._frames[i] += 1
            self._starts[i] = terminated[i] or truncated
            if self._starts[i]:
                states[i], reset_info = env.reset()
                info = reset_info | info
            episode = info.get("episode")  # from RecordEpisodeStatistics
            episodes.append(Episode(float(episode["r"]), int(self._frames[i])) if episode else None)
            self._frames[i] *= not episode
        new_frames = np.concatenate(frames)
        return Transitions(actions, rewards, terminated, new_frames, starts, first_frames, episodes)
