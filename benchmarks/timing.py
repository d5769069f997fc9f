"""The one way to time a piece of work, and the device where it is done."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.benchmark import Timer

from benchmarks import UserError


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
