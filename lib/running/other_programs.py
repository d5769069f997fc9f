"""Whether other programs use the cores that an update computes on.

All threads of an update wait for the slowest one. So one busy program can cost most of the frames
per second, and fewer threads are then faster. A run is told of it, and decides nothing: the number
of threads is part of what makes it repeatable.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import psutil
import torch

from lib.devices import cores

FEWEST_SECONDS = 0.2  # to measure over: the kernel counts in hundredths of a second
CHECK_SECONDS = 10.0  # between measurements, as one takes 10 ms: it looks at every process
BUSY, FREE = 0.4, 0.2  # cores; a program that shares its core with a thread gets half of it


class Used(NamedTuple):
    """Seconds of computing until now."""

    clock: float  # wall clock
    everybody: float  # of all programs, on the cores that this process may use
    ours: float  # of this process and all that it started


def used() -> Used:
    """What the operating system has counted until now."""
    every = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        # A container may count its own cores from 0, and yet name them as the machine does.
        every = [every[i] for i in os.sched_getaffinity(0) if i < len(every)] or every
    everybody = sum(core.user + core.system + getattr(core, "nice", 0.0) for core in every)
    this = psutil.Process()
    ours = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended just now, and its parent counts it
            ours += sum(process.cpu_times()[:4])  # its own, and of its children that ended
    return Used(time.monotonic(), everybody, ours)


class OtherPrograms:
    """Notices when other programs begin to use cores that the threads of this process compute on.

    Args:
        read: what was used until now.
    """

    def __init__(self, read: Callable[[], Used] = used) -> None:
        self._read = read
        self._before = read()
        self._seconds = FEWEST_SECONDS  # until the next measurement
        self._told = False

    def news(self) -> str | None:
        """One line when it begins; None while nothing is new, or it is too early to know."""
        if time.monotonic() - self._before.clock < self._seconds:
            return None
        before, now = self._before, self._read()
        self._before, self._seconds = now, CHECK_SECONDS
        others = (now.everybody - before.everybody) - (now.ours - before.ours)
        busy = others / (now.clock - before.clock)
        if busy < (FREE if self._told else BUSY):
            self._told = False
            return None
        if self._told:
            return None
        count = max(1, round(busy))
        left = max(1, cores() - count)
        if torch.get_num_threads() <= left:
            return None
        self._told = True
        who = "another program uses one" if count == 1 else f"other programs use {count}"
        return f"{who} of {cores()} cores; --threads {left} may be faster"
