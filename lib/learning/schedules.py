"""Numbers that change during training: by frame, or as the agent wins more points."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Schedule = Callable[[int], float]  # frame -> value
END = 0.9  # of the points: games end 21:2


class LinearSchedule:
    """A number that changes linearly over ``frames`` frames, then stays at its final value.

    With a replay buffer it begins to change with the first update: at frame ``begin``, when the
    buffer has been filled.

    Source: Mnih et al., Nature 518 (2015), methods, for epsilon.
    """

    def __init__(self, start: float, final: float, frames: int, begin: int = 0) -> None:
        self.start, self.final, self.frames, self.begin = start, final, frames, begin

    def __call__(self, frame: int) -> float:
        progress = min(max(frame - self.begin, 0) / self.frames, 1.0)
        return self.start + progress * (self.final - self.start)


class Progress:
    """How well the agent plays: the share of its last points that it won, smoothed; 0 to 1.

    Known much sooner than the smoothed reward: a game has 21 points and more. It is smoothed
    exponentially, over so many ``points``.
    """

    def __init__(self, points: int = 300) -> None:
        self.points, self.share = points, 0.0

    def __call__(self, frame: int) -> float:
        return self.share

    def add(self, won: int, lost: int) -> None:
        if won + lost:
            kept = (1 - 1 / self.points) ** (won + lost)
            self.share = kept * self.share + (1 - kept) * won / (won + lost)

    def set_back(self) -> None:
        """The agent has lost a trial, whatever points it won: it has to learn more again."""
        self.share = min(self.share, 0.7)

    def state_dict(self) -> dict[str, Any]:
        return {"share": self.share}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.share = state["share"]


@dataclass
class ProgressSchedule:
    """A number that falls to its final value, geometrically, as the share of points won grows.

    A schedule by frames suits one seed and starves another, which learns to score later.
    """

    start: float  # the value until the agent wins the share ``begin``
    final: float  # the value from the share ``END`` on; more than 0, as it is reached by factors
    # The share of points won, a ``Progress``. Or any number that rises from 0 to 1, by frame: in a
    # game without lost points the share says nothing.
    progress: Schedule
    begin: float = 0.3  # of the points: games end 9:21

    def __call__(self, frame: int) -> float:
        fallen = (self.progress(frame) - self.begin) / (END - self.begin)
        fallen = min(max(fallen, 0.0), 1.0)
        return self.start ** (1 - fallen) * self.final**fallen


def maximum(*schedules: Schedule) -> Schedule:
    """The highest of several schedules."""
    return lambda frame: max(schedule(frame) for schedule in schedules)
