"""The one way to time a piece of work, and the device where it is done."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch.utils.benchmark import Timer

from benchmarks import UserError

MATRIX = 2_048  # rows and columns of the matrices whose product is the limit of a machine
WARM_UP = 3  # calls before anything is timed: what is compiled or chosen by trial is ready then


def seconds_per_call(work: Callable[[], Any], at_least: float) -> float:
    """Do a piece of work for so many seconds; the mean time of a call. A GPU is waited for."""
    device = chosen_device(torch.cuda.is_available())
    threads = torch.get_num_threads()
    timer = Timer("work()", timer=lambda: now(device), globals={"work": work}, num_threads=threads)
    return timer.blocked_autorange(min_run_time=at_least).mean


def operations_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """What the device can do: additions and multiplications of a large matrix product."""
    matrix = torch.rand(MATRIX, MATRIX, device=device).to(dtype)
    return 2 * MATRIX**3 / seconds_per_call(lambda: matrix @ matrix, at_least=0.5)


def warm(work: Callable[[], Any]) -> Callable[[], Any]:
    """The work, once it is warm."""
    for _ in range(WARM_UP):
        work()
    return work


def chosen_device(cuda: bool) -> torch.device:
    """The device that ``--cuda`` asks for.

    Raises:
        UserError: there is no such device.
    """
    if cuda and not torch.cuda.is_available():
        raise UserError("--cuda: torch finds no usable GPU here")
    return torch.device("cuda" if cuda else "cpu")


def now(device: torch.device) -> float:
    """The time in seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
