"""What chooses actions: epsilon-greedy agents, and the schedules of their epsilon."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lib.transfer import upload

Schedule = Callable[[int], float]  # frame -> value
# Uint8 states (n, stack, height, width), on the network's device -> values (n, actions).
QFunction = Callable[[torch.Tensor], torch.Tensor]


class LinearSchedule:
    """A number that changes linearly over the first frames, then stays at its final value.

    Source: Mnih et al., Nature 518 (2015), methods, for epsilon.
    """

    def __init__(self, start: float, final: float, frames: int) -> None:
        self.start, self.final, self.frames = start, final, frames

    def __call__(self, frame: int) -> float:
        """The value at this frame."""
        progress = min(frame / self.frames, 1.0)
        return self.start + progress * (self.final - self.start)


class Progress:
    """How well the agent plays: the share of its last points that it won, smoothed; 0 to 1.

    Known much sooner than the smoothed reward: a game has 21 points and more. It is smoothed
    exponentially, over so many ``points``.
    """

    def __init__(self, points: int = 1_000) -> None:
        self.points, self.share = points, 0.0

    def add(self, won: int, lost: int) -> None:
        """Count points."""
        if won + lost:
            kept = (1 - 1 / self.points) ** (won + lost)
            self.share = kept * self.share + (1 - kept) * won / (won + lost)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"share": self.share}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where ``state_dict`` was taken."""
        self.share = state["share"]


class ProgressSchedule:
    """A number that falls to its final value, geometrically, as the share of points won grows.

    A schedule by frames suits one seed and starves another, which learns to score later.

    Args:
        start: the value until the agent wins the share ``begin``.
        final: the value from the share ``end`` on; more than 0, as it is reached by factors.
        progress: of the agent.
        begin: 0.3 of the points: games end 9:21.
        end: 0.9 of the points: games end 21:2.
    """

    def __init__(
        self, start: float, final: float, progress: Progress, begin: float = 0.3, end: float = 0.9
    ) -> None:
        self.start, self.final, self.progress = start, final, progress
        self.begin, self.end = begin, end

    def __call__(self, frame: int = 0) -> float:
        """The value now, whatever the frame."""
        fallen = (self.progress.share - self.begin) / (self.end - self.begin)
        fallen = min(max(fallen, 0.0), 1.0)
        return self.start ** (1 - fallen) * self.final**fallen


class Maximum:
    """The highest of several schedules."""

    def __init__(self, *schedules: Schedule) -> None:
        self.schedules = schedules

    def __call__(self, frame: int) -> float:
        """The value at this frame."""
        return max(schedule(frame) for schedule in self.schedules)


class Exploration:
    """Replaces greedy actions by random ones with probability epsilon, the schedule by frame.

    For a rung that needs the values of all states anyway. ``EpsilonGreedyAgent`` computes values
    only for the states in which it acts greedily.
    """

    def __init__(self, n_actions: int, epsilon: Schedule, seed: int = 0) -> None:
        self.n_actions, self.epsilon = n_actions, epsilon
        self._rng = np.random.default_rng(seed)

    def __call__(self, greedy: torch.Tensor, frame: int) -> np.ndarray:
        """The actions to play at this frame, int64 (n,); the greedy ones may be on any device."""
        actions = greedy.cpu().numpy().copy()
        at_random = self._rng.random(len(actions)) < self.epsilon(frame)
        actions[at_random] = self._rng.integers(self.n_actions, size=at_random.sum())
        return actions

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"random": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where ``state_dict`` was taken."""
        if state:  # a run whose games were on the GPU drew with torch's generator there
            self._rng.bit_generator.state = state["random"]


class EpsilonGreedyAgent:
    """Chooses a random action with probability epsilon, else the greedy action.

    Args:
        q_function: gives the values of the actions.
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
        self.q_function, self.n_actions, self.epsilon = q_function, n_actions, epsilon
        self.device = torch.device(device)
        self.frames = 0  # frames for which an action was chosen
        self._rng = np.random.default_rng((seed, 1))  # a random stream of its own

    def __call__(self, states: Sequence[Any]) -> np.ndarray:
        """Choose an action for every state, int64 (n,); one forward pass for all that need one.

        Args:
            states: array-likes of uint8, (stack, height, width), one per environment.
        """
        greedy = self._rng.random(len(states)) >= self.epsilon(self.frames)
        actions = self._rng.integers(self.n_actions, size=len(states))
        if greedy.any():
            chosen = np.stack([np.asarray(states[i]) for i in np.flatnonzero(greedy).tolist()])
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
