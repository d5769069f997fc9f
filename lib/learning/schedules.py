"""Schedules: values that change by frame, or as the agent wins more points."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Schedule = Callable[[int], float]  # frame -> value
END = 0.9  # share of points won at which progress is complete: games end 21:2


class LinearSchedule:
    """A number that changes linearly over ``frames`` frames, then stays at its final value.

    It begins to change at frame ``begin``; some rungs begin with the first update.

    Source: Mnih et al., Nature 518 (2015), methods, for epsilon.
    """

    def __init__(self, start: float, final: float, frames: int, begin: int = 0) -> None:
        self.start, self.final, self.frames, self.begin = start, final, frames, begin

    def __call__(self, frame: int) -> float:
        progress = min(max(frame - self.begin, 0) / self.frames, 1.0)
        return self.start + progress * (self.final - self.start)


class WinRate:
    """Share of points won, 0 to 1, an exponential moving average over ``points``.

    It reacts sooner than the smoothed reward, because a game has 21 points or more.
    """

    def __init__(self, points: int = 300) -> None:
        self.points, self.value = points, 0.0

    def __call__(self, frame: int) -> float:
        return self.value

    def add(self, won: int, lost: int) -> None:
        if won + lost:
            kept = (1 - 1 / self.points) ** (won + lost)
            self.value = kept * self.value + (1 - kept) * won / (won + lost)

    def cap(self, most: float) -> None:
        """Cap the share, for example after a lost trial."""
        self.value = min(self.value, most)

    def state_dict(self) -> dict[str, Any]:
        return {"share": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["share"]


@dataclass
class ProgressSchedule:
    """A number that falls geometrically to its final value as the share of points won grows.

    A schedule by frames would suit some seeds only, because others learn to score later.
    """

    start: float  # the value until the agent wins the share ``begin``
    final: float  # the value from the share ``END`` on; above 0, because the fall is geometric
    # A ``WinRate``; for games without lost points, any schedule that rises from 0 to 1.
    progress: Schedule
    begin: float = 0.3  # share of points won: games end 9:21

    def __call__(self, frame: int) -> float:
        fallen = (self.progress(frame) - self.begin) / (END - self.begin)
        fallen = min(max(fallen, 0.0), 1.0)
        return self.start ** (1 - fallen) * self.final**fallen


def maximum(*schedules: Schedule) -> Schedule:
    """Return a schedule with the greatest value of several, at each frame."""
    return lambda frame: max(schedule(frame) for schedule in schedules)
