"""What a step of a game tells, and the source that steps environments, one or many."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from lib.envs.resumable import ResumableEnv
from lib.seeds import game_seeds


class Episode(NamedTuple):
    """A whole game, with unclipped reward and across lives."""

    reward: float  # unclipped, lives included
    steps: int  # frames, i.e. agent steps


class Transition(NamedTuple):
    """One agent step, in few bytes: only the frame that it added.

    The stacked states follow from the frames, see ``lib.learning.replay_buffer``.
    """

    env: int  # which environment
    action: int
    reward: float  # as the wrappers pass it on
    terminated: bool  # no value follows; a truncated episode is not terminated
    frame: np.ndarray  # uint8, (1, height, width): the newest frame of the next state
    first_frame: np.ndarray | None  # the frame of the state, if an episode begins with it
    episode: Episode | None  # set if a whole game ended with this step


class ExperienceSource:
    """Steps environments in turn, forever; after an episode the next one begins.

    Iterating yields lists of ``steps * len(envs)`` transitions: the actions of all
    environments are chosen together, then each environment is stepped.

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
        self._begins = [True] * len(envs)  # whether the next step is the first of an episode

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: how to get back into the current games."""
        return {"games": [env.state_dict() for env in self.envs], "begins": list(self._begins)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Bring new environments to the point where ``state_dict`` was taken."""
        games = zip(self.envs, state["games"], strict=True)
        self._states = [env.play_again(game) for env, game in games]
        self._begins = list(state["begins"])

    def __iter__(self) -> Iterator[list[Transition]]:
        if not self._states:
            seeds = zip(self.envs, game_seeds(self.seed, len(self.envs)).tolist(), strict=True)
            self._states = [env.reset(seed=seed)[0] for env, seed in seeds]
        states, begins = self._states, self._begins
        while True:
            transitions = []
            for _ in range(self.steps):
                actions = self.agent(states)
                for i, env in enumerate(self.envs):
                    action = int(actions[i])
                    next_state, reward, terminated, truncated, info = env.step(action)
                    first_frame = states[i].frames[-1] if begins[i] else None
                    begins[i] = terminated or truncated
                    states[i] = next_state
                    if begins[i]:
                        states[i], reset_info = env.reset()
                        info = reset_info | info
                    ended = info.get("episode")  # from RecordEpisodeStatistics
                    episode = ended and Episode(float(ended["r"]), int(ended["l"]))
                    frame = next_state.frames[-1]
                    transitions.append(
                        Transition(
                            i, action, float(reward), terminated, frame, first_frame, episode
                        )
                    )
            yield transitions
