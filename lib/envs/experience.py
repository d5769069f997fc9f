"""Transitions and episodes, and the source that steps one or many environments."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from lib.seeds import game_seeds

import gymnasium as gym
import numpy as np
from ale_py import ALEState

RESET = -1  # recorded like an action: a reset within a game, after a lost life


class Episode(NamedTuple):
    """The outcome of a whole game, across all lives."""

    reward: float  # unclipped
    steps: int  # agent steps, without a wrapper's FIRE or no-ops


class Transitions(NamedTuple):
    """One step of every environment, stored as the few frames that it added.

    The stacked states follow from these frames, see ``lib.learning.replay_buffer``.
    """

    actions: np.ndarray  # int64, (n,)
    rewards: np.ndarray  # float32, (n,), as the wrappers pass them on
    terminated: np.ndarray  # bool, (n,): do not bootstrap; False for truncated episodes
    frames: np.ndarray  # uint8, (n, height, width): the newest frame of each next state
    episode_starts: np.ndarray  # bool, (n,): the state begins an episode
    first_frames: np.ndarray  # uint8, (k, height, width): of the k episodes that begin
    episodes: list[Episode | None]  # (n,): the whole game that ended with this step


class ExperienceSource:
    """Step environments in turn, forever; after an episode the next one begins.

    Iterating yields lists of ``steps`` steps. Each step chooses all actions before playing any.

    A game's state is spread over the emulator and all wrappers, so a checkpoint stores each game's
    beginning and actions, and loading replays them. The beginning includes the emulator's random
    numbers, since ALE randomises the RAM of some games. A wrapper with random numbers of its own
    would break this.

    Args:
        envs: Atari games whose observations are ``LazyFrames``.
        agent: maps the list of current states to their actions.
        seed: seed of the run, see ``lib.seeds``.
    """

    def __init__(
        self,
        envs: Sequence[gym.Env],
        agent: Callable[[Sequence[Any]], np.ndarray | Sequence[int]],
        seed: int = 0,
        steps: int = 1,
    ) -> None:
        self.envs, self.agent, self.steps = envs, agent, steps
        self._states: list[Any] = []
        self._starts = np.ones(len(envs), dtype=bool)  # the next step begins an episode
        self._frames = np.zeros(len(envs), dtype=np.int64)  # steps of the current game
        # What replays each game: its actions, and how it began. An environment's first game began
        # from a seed; for later ones, the emulator's state before their reset is kept.
        seeds = game_seeds(seed, len(envs)).tolist()
        self._games = [{"seed": seed, "before": None, "actions": []} for seed in seeds]

    def state_dict(self) -> dict[str, Any]:
        games = [game | {"actions": list(game["actions"])} for game in self._games]
        return {"games": games, "begins": self._starts.tolist(), "frames": self._frames.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Play the games of ``state_dict`` again; the environments must be unused."""
        self._games, self._starts = state["games"], np.array(state["begins"])
        self._frames = np.array(state["frames"])
        for env, game in zip(self.envs, self._games, strict=True):
            if game["before"]:
                random, emulator = game["before"]
                atari: Any = env.unwrapped
                atari.np_random.bit_generator.state = random
                atari.restore_state(ALEState(emulator))
            newest, _ = env.reset(seed=game["seed"])
            for action in game["actions"]:
                newest = env.reset()[0] if action == RESET else env.step(action)[0]
            self._states.append(newest)

    def __iter__(self) -> Iterator[list[Transitions]]:
        if not self._states:
            games = zip(self.envs, self._games, strict=True)
            self._states = [env.reset(seed=game["seed"])[0] for env, game in games]
        while True:
            yield [self._step() for _ in range(self.steps)]

    def _next_game(self, i: int) -> Any:
        atari: Any = self.envs[i].unwrapped
        emulator = atari.clone_state(include_rng=True).serialize()
        before = atari.np_random.bit_generator.state, emulator
        self._games[i] = {"seed": None, "before": before, "actions": []}
        return self.envs[i].reset()[0]

    def _step(self) -> Transitions:
        states, starts = self._states, self._starts.copy()
        actions = np.asarray(self.agent(states), dtype=np.int64)
        first_frames = np.concatenate([state.frames[-1] for state in states])[starts]
        rewards = np.empty(len(states), dtype=np.float32)
        terminated = np.empty(len(states), dtype=bool)
        frames: list[np.ndarray] = []
        episodes: list[Episode | None] = [None] * len(states)
        for i, (env, action) in enumerate(zip(self.envs, actions.tolist(), strict=True)):
            self._games[i]["actions"].append(action)
            states[i], rewards[i], terminated[i], truncated, info = env.step(action)
            frames.append(states[i].frames[-1])
            self._frames[i] += 1
            self._starts[i] = terminated[i] or truncated
            if "episode" in info:  # from RecordEpisodeStatistics: a whole game
                states[i] = self._next_game(i)
            elif self._starts[i]:
                self._games[i]["actions"].append(RESET)
                states[i], info = env.reset()  # the wrapper's no-op may end the game, too
            if episode := info.get("episode"):
                episodes[i] = Episode(float(episode["r"]), int(self._frames[i]))
                self._frames[i] = 0
        new_frames = np.concatenate(frames)
        return Transitions(actions, rewards, terminated, new_frames, starts, first_frames, episodes)
