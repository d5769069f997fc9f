"""Alternatives for one piece of work, measured in turn."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from benchmarks.timing import now
from lib.arguments import Hyperparams

DEFAULTS = Hyperparams()
SHAPE, ACTIONS = (4, 84, 84), 6  # Pong, as the rungs see it
WARM_UP = 3  # calls before anything is timed

Measure = Callable[[], float]  # measures once


class NotRun(Exception):  # noqa: N818, it is no error
    """This machine cannot run an alternative; the message says why."""


@dataclass
class Settings:
    """What the alternatives are built from."""

    device: torch.device
    batch_size: int
    seconds: float  # of one measurement
    envs: int
    transitions: int
    cleanup: ExitStack = field(default_factory=ExitStack)


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


def milliseconds(
    work: Callable[[], Any], seconds: float, device: torch.device | str = "cpu"
) -> Measure:
    """Warm up, find out how often the work fits into the seconds, and return what measures."""
    device = torch.device(device)

    def timed(calls: int) -> float:
        begin = now(device)
        for _ in range(calls):
            work()
        return (now(device) - begin) / calls

    timed(WARM_UP)
    calls = max(1, round(seconds / timed(WARM_UP)))
    return lambda: timed(calls) * 1e3


def need_gpu(settings: Settings) -> None:
    """Raise unless this measures on a GPU."""
    if not torch.cuda.is_available():
        raise NotRun("no GPU")
    if settings.device.type != "cuda":
        raise NotRun("without --cuda")
