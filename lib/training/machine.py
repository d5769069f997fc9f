"""The machine of a run: its description, and torch's switches."""

import ctypes
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lib.devices import cores
from lib.training.run import SIGNALS, set_signals

import ale_py
import cv2
import gymnasium
import ignite
import numpy as np
import psutil
import torch

LIBRARIES: tuple[Any, ...] = (torch, gymnasium, ale_py, cv2, ignite, np)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def prepare_torch(seed: int) -> None:
    """Seed torch and set its global switches; every process of a run does this first."""
    torch.manual_seed(seed)
    # Numbers below 1e-38 make some CPUs many times slower, and Adam's moments of inactive units get
    # that small. Threads inherit this setting, so it comes before they start.
    torch.set_flush_denormal(True)
    if torch.cuda.is_available():
        # Let matrix products use TF32, as convolutions do by default. GPUs with units for it round
        # the inputs to a mantissa of 10 bits; sums stay float32.
        torch.backends.cuda.matmul.allow_tf32 = True
    keep_freed_memory()


@contextmanager
def process_as_before() -> Iterator[None]:
    """Restore signals, hooks and torch's switches at the end, because a notebook lives on."""
    handlers = {n: handler for n in SIGNALS if (handler := signal.getsignal(n)) is not None}
    hook, matmul = threading.excepthook, torch.backends.cuda.matmul
    tf32, threads = matmul.allow_tf32, torch.get_num_threads()
    flushed = not torch.full((), 1e-39).mul(1)
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    try:
        yield
    finally:
        set_signals(handlers)
        threading.excepthook, matmul.allow_tf32 = hook, tf32
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)
        if "torch._dynamo" in sys.modules:  # see ``lib.learning.compiled_update``
            torch.compiler.set_stance("default")
        if torch.cuda.is_initialized():
            with suppress(RuntimeError):  # the GPU has failed
                torch.cuda.set_device(gpu)


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of 1 to 15 MB, which the next update on the CPU needs again.

    By default the kernel clears thousands of pages per update, which took 8 of 36 ms at 96 samples.
    """
    # glibc has ``mallopt``, musl does not.
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the largest that glibc accepts
        mallopt(M_TRIM_THRESHOLD, 512 * 2**20)


def free_cores() -> int:
    """Count the cores of this process that no other program uses now; 1 or more.

    An update's threads wait for each other: if a program uses one of two cores, 08 keeps 53 to 60 %
    of its FPS with two threads, but 80 % with one.
    """
    busy = psutil.cpu_percent(0.3, percpu=True)
    if hasattr(os, "sched_getaffinity"):  # not on Windows and macOS
        mine = os.sched_getaffinity(0)
        if max(mine) >= len(busy):  # psutil lists fewer in some containers
            return cores()
        busy = [busy[core] for core in mine]
    return min(cores(), max(1, round(len(busy) - sum(busy) / 100)))


def describe_machine(device: torch.device) -> dict[str, str | int]:
    """Describe the machine and the versions of libraries, the most important first."""
    gpu = "Apple" if device.type == "mps" else "none"
    if device.type == "cuda":
        has_tf32 = torch.cuda.get_device_capability(device) >= (8, 0)  # see prepare_torch
        gpu = torch.cuda.get_device_name(device) + " (float32 is TF32)" * has_tf32
    cpu = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):  # not Linux, or an ARM
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    machine: dict[str, str | int] = {
        "device": str(device),
        "gpu": gpu,
        "cpu": cpu,
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
    }
    return machine | {library.__name__: str(library.__version__) for library in LIBRARIES}
