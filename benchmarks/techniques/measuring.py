"""Alternatives for one piece of work, measured in turn."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from benchmarks.timing import seconds_per_call, warm
from lib.running.options import ReplayOptions

DEFAULTS = ReplayOptions()
SHAPE, ACTIONS = (4, 84, 84), 6  # Pong, as the rungs see it

Measure = Callable[[], float]  # measures once


class NotRun(Exception):  # noqa: N818, it is no error
    """This machine cannot run an alternative; the message says why."""


@dataclass
class Settings:
    """What the alternatives are built from."""

    device: torch.device
    batch_size: int
    seconds: float  # of one measurement
    envs: int = 1
    transitions: int = 1
    cleanup: ExitStack = field(default_factory=ExitStack)

    def need_gpu(self) -> None:
        """Raise unless this measures on a GPU."""
        if not torch.cuda.is_available():
            raise NotRun("no GPU")
        if self.device.type != "cuda":
            raise NotRun("without --cuda")


@dataclass(frozen=True)
class Alternative:
    """One way to do a piece of work."""

    task: str
    name: str
    build: Callable[[], Measure]  # may raise
    unit: str = "ms"  # "... per second": more is better; anything else: less is


@dataclass
class Result:
    """What was measured of an alternative, or why nothing was."""

    technique: str
    alternative: Alternative
    values: list[float] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)  # times as good as the first alternative
    reason: str = ""


def measure(
    technique: str,
    alternatives: Sequence[Alternative],
    repeats: int,
    progress: Callable[[], Any] = lambda: None,
) -> list[Result]:
    """Measure the alternatives of a technique in turn, as often as asked for."""
    results = [Result(technique, alternative) for alternative in alternatives]
    measures = []
    for result in results:
        try:
            measures.append((result, result.alternative.build()))
        except Exception as error:  # whatever it is, the other alternatives can go on
            result.reason = one_line(error)
    for repeat in range(repeats):
        first = repeat % max(len(measures), 1)  # another one begins every time
        for result, once in measures[first:] + measures[:first]:
            if result.reason:
                continue
            try:
                result.values.append(once())
            except Exception as error:
                result.values, result.reason = [], one_line(error)
        progress()
    for _, same_work in groupby(results, key=lambda result: result.alternative.task):
        base, *others = same_work
        for result in (base, *others):
            pairs = zip(result.values, base.values, strict=False)  # none of one that was not run
            more_is_better = result.alternative.unit.endswith("per second")
            result.gains = [a / b if more_is_better else b / a for a, b in pairs]
    return results


def one_line(error: Exception) -> str:
    """Say what went wrong in a table cell."""
    text = " ".join(str(error).split())
    return text if isinstance(error, NotRun) else f"{type(error).__name__}: {text}"[:160]


def milliseconds(work: Callable[[], Any], seconds: float) -> Measure:
    """Warm up, and return what measures a call."""
    warm(work)
    return lambda: seconds_per_call(work, seconds) * 1e3


def rate(work: Callable[[], Any], count: int, seconds: float) -> Measure:
    """Warm up, and return what measures how many of the things in a call there are per second."""
    warm(work)
    return lambda: count / seconds_per_call(work, seconds)
