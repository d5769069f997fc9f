"""Techniques for a whole process, each measured in fresh ones: freed memory, denormal numbers."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.techniques.measuring import Alternative, Measure, Settings, milliseconds
from benchmarks.techniques.network import Learner
from lib.run import keep_freed_memory


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """Call a module's function in a process that has done nothing before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *args).result()


def fresh_update(batch_size: int, seconds: float, keep: bool, flush: bool, idle: bool) -> float:
    """Milliseconds of an update on the CPU, in a process with these settings.

    Args:
        batch_size: of the update.
        seconds: of the measurement.
        keep: freed memory stays in the process.
        flush: denormal numbers count as zero.
        idle: half of the hidden units are never active, and for so long that their moments
            in Adam have become denormal.
    """
    torch.set_flush_denormal(flush)
    if keep:
        keep_freed_memory()
    learner = Learner(Settings(torch.device("cpu"), batch_size, seconds, envs=1, transitions=1))
    if idle:
        make_idle(learner)
    return milliseconds(learner.update, seconds)()


def make_idle(learner: Learner) -> None:
    """Switch off half of the hidden units, as if it had been long ago."""
    hidden = learner.net.fc[0]
    half = hidden.out_features // 2
    with torch.no_grad():
        hidden.bias[:half] = -1e6
    learner.update()  # Adam makes its state
    for parameter in (hidden.weight, hidden.bias):
        state = learner.optimizer.state[parameter]
        state["exp_avg"][:half] = 1e-40
        state["exp_avg_sq"][:half] = 1e-40


def in_turn(settings: Settings, ways: dict[str, tuple[bool, bool, bool]]) -> list[Alternative]:
    """An update under each way of (keep, flush, idle)."""

    def build(way: tuple[bool, bool, bool]) -> Measure:
        return lambda: in_fresh_process(fresh_update, settings.batch_size, settings.seconds, *way)

    return [Alternative("update, CPU", name, partial(build, way)) for name, way in ways.items()]


def freed_memory(settings: Settings) -> list[Alternative]:
    """Freed memory goes back to the kernel, or the process keeps it."""
    ways = {"given back (glibc's default)": (False, True, False), "kept": (True, True, False)}
    return in_turn(settings, ways)


def denormals(settings: Settings) -> list[Alternative]:
    """Denormal numbers computed, or flushed to zero; half of the hidden units never active."""
    ways = {"computed (default)": (True, False, True), "flushed to zero": (True, True, True)}
    return in_turn(settings, ways)
