"""How pieces of work are timed, programs are run, and the device is chosen."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from benchmarks import Failed, UserError
from benchmarks.report import ROOT


def seconds_per_call(work: Callable[[], Any], at_least: float) -> float:
    """Do a piece of work for so many seconds; the mean time of a call. A GPU is waited for."""
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=at_least).mean


def chosen_device(cuda: bool) -> torch.device:
    """The device that ``--cuda`` asks for.

    Raises:
        UserError: there is no such device.
    """
    if cuda and not torch.cuda.is_available():
        raise UserError("--cuda: torch finds no usable GPU here")
    return torch.device("cuda" if cuda else "cpu")


def last_line_of(command: Sequence[str | Path], who: str) -> str:
    """The last line that a program prints; it runs in the root of this repository.

    Raises:
        Failed: it did not end well; ``who`` it is called.
    """
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise Failed(f"{who}: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    return (done.stdout.strip().splitlines() or [""])[-1]
