"""Playing: agents that choose actions, and sources that step environments."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from lib.resumable_env import ResumableEnv
from lib.transfer import upload

Schedule = Callable[[int], float]  # frame -> value
QFunction = Callable[[torch.Tensor], torch.Tensor]  # states -> values of the actions


class Episode(NamedTuple):
    """A whole game, with unclipped reward and across lives."""

    reward: float  # unclipped, lives included
    steps: int  # frames, i.e. agent steps


class Transition(NamedTuple):
    """One agent step, in few bytes: only the frame that it added.

    The stacked states follow from the frames, see ``lib.replay_buffer``.
    """

    env: int  # which environment
    action: int
    reward: float  # as the wrappers pass it on
    terminated: bool  # no value follows; a truncated episode is not terminated
    frame: np.ndarray  # uint8, (1, height, width): the newest frame of the next state
    first_frame: np.ndarray | None  # the frame of the state, if an episode begins with it
    episode: Episode | None  # set if a whole game ended with this step


class LinearSchedule:
    """A number that changes linearly over the first frames, then stays at its final value.

    Source: Mnih et al., Nature 518 (2015), methods, for epsilon.
    """

    def __init__(self, start: float, final: float, frames: int) -> None:
        self.start = start
        self.final = final
        self.frames = frames

    def __call__(self, frame: int) -> float:
        """The value at this frame."""
        progress = min(frame / self.frames, 1.0)
        return self.start + progress * (self.final - self.start)


class Progress:
    """How well the agent plays: the share of its last points that it won, smoothed; 0 to 1.

    Known much sooner than the smoothed reward: a game has 21 points and more.

    Args:
        points: how many it is smoothed over, exponentially.
    """

    def __init__(self, points: int = 1_000) -> None:
        self.points = points
        self.share = 0.0

    def add(self, won: int, lost: int) -> None:
        """Count points."""
        if won + lost:
            kept = (1 - 1 / self.points) ** (won + lost)
            self.share = kept * self.share + (1 - kept) * won / (won + lost)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"share": self.share}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``."""
        self.share = state["share"]


class ProgressSchedule:
    """A number that falls to its final value, geometrically, as the share of points won grows.

    A schedule by frames suits one seed and starves another, which learns to score later.

    Args:
        start: the value up to the first of ``SHARES``.
        final: the value from the second of ``SHARES`` on; more than 0, as it is reached by factors.
        progress: of the agent.
    """

    SHARES = 0.3, 0.9  # of points won: games end 9:21 and 21:2

    def __init__(self, start: float, final: float, progress: Progress) -> None:
        self.start, self.final, self.progress = start, final, progress

    def __call__(self, frame: int) -> float:
        """The value now, whatever the frame."""
        begin, end = self.SHARES
        fallen = min(max((self.progress.share - begin) / (end - begin), 0.0), 1.0)
        return self.start ** (1 - fallen) * self.final**fallen


class Maximum:
    """The highest of several schedules."""

    def __init__(self, *schedules: Schedule) -> None:
        self.schedules = schedules

    def __call__(self, frame: int) -> float:
        """The value at this frame."""
        return max(schedule(frame) for schedule in self.schedules)


class Exploration:
    """Replaces greedy actions by random ones with probability epsilon.

    For a rung that needs the values of all states anyway. ``EpsilonGreedyAgent`` computes values
    only for the states in which it acts greedily.

    Args:
        n_actions: number of discrete actions.
        epsilon: the schedule, by frame.
        seed: of the random actions.
    """

    def __init__(self, n_actions: int, epsilon: Schedule, seed: int = 0) -> None:
        self.n_actions = n_actions
        self.epsilon = epsilon
        self._rng = np.random.default_rng(seed)

    def __call__(self, greedy: torch.Tensor, frame: int) -> np.ndarray:
        """Choose the actions for this frame.

        Args:
            greedy: the greedy actions, int64, (n,), on any device.
            frame: for epsilon.

        Returns:
            int64, (n,).
        """
        actions = greedy.cpu().numpy().copy()
        at_random = self._rng.random(len(actions)) < self.epsilon(frame)
        actions[at_random] = self._rng.integers(self.n_actions, size=at_random.sum())
        return actions

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"random": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where ``state_dict`` was taken."""
        self._rng.bit_generator.state = state["random"]


class EpsilonGreedyAgent:
    """Chooses a random action with probability epsilon, else the greedy action.

    Args:
        q_function: maps uint8 states (n, stack, height, width) to values (n, actions).
        n_actions: number of discrete actions.
        epsilon: the schedule, by frame.
        device: where ``q_function`` wants its states.
        seed: of the random actions.
    """

    def __init__(
        self,
        q_function: QFunction,
        n_actions: int,
        epsilon: LinearSchedule,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        self.q_function = q_function
        self.n_actions = n_actions
        self.epsilon = epsilon
        self.device = torch.device(device)
        self.frames = 0  # frames for which an action was chosen
        self._rng = np.random.default_rng((seed, 1))  # a random stream of its own

    def __call__(self, states: Sequence[Any]) -> np.ndarray:
        """Choose an action for every state; one forward pass for all states that need one.

        Args:
            states: array-likes of uint8, (stack, height, width), one per environment.

        Returns:
            int64, (n,).
        """
        greedy = self._rng.random(len(states)) >= self.epsilon(self.frames)
        actions = self._rng.integers(self.n_actions, size=len(states))
        if greedy.any():
            chosen = np.stack(
                [np.asarray(state) for state, g in zip(states, greedy, strict=True) if g]
            )
            (states_there,) = upload(self.device, chosen)
            values = self.q_function(states_there)
            actions[greedy] = values.argmax(1).cpu().numpy()
        self.frames += len(states)
        return actions

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"frames": self.frames, "random": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where ``state_dict`` was taken."""
        self.frames = state["frames"]
        self._rng.bit_generator.state = state["random"]


class ExperienceSource:
    """Steps environments in turn, forever; after an episode the next one begins.

    Iterating yields lists of ``steps * len(envs)`` transitions: the actions of all
    environments are chosen together, then each environment is stepped.

    Args:
        envs: environments whose observations are ``LazyFrames``, as ``FrameStack`` returns them.
        agent: maps the list of current states to their actions.
        seed: environment ``i`` gets ``seed + i``, so games differ, and can be repeated.
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
        self.agent = agent
        self.seed = seed
        self.steps = steps
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
            self._states = [env.reset(seed=self.seed + i)[0] for i, env in enumerate(self.envs)]
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
                    episode = info.get("episode")  # from RecordEpisodeStatistics
                    transitions.append(
                        Transition(
                            env=i,
                            action=action,
                            reward=float(reward),
                            terminated=terminated,
                            frame=next_state.frames[-1],
                            first_frame=first_frame,
                            episode=episode and Episode(float(episode["r"]), int(episode["l"])),
                        )
                    )
            yield transitions
