"""Features of the device and the machine."""

import os
import re
import sys
import warnings
from contextlib import suppress
from pathlib import Path

from lib.printing import plural

import psutil
import torch

Device = torch.device | str

# torch's names of the instructions that multiply bfloat16 numbers, on x86 and on ARM.
BFLOAT16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")
CONTAINER = Path("/sys/fs/cgroup")  # Linux: the limits of a container
ADVICE = {  # appended to torch's errors
    "not compiled with CUDA": "; install a torch for CUDA, see pytorch.org/get-started; on a Mac, "
    "try --device mps",
    "no kernel image": "; install a torch for this GPU, see pytorch.org/get-started",
    "out of memory": "; other programs fill its memory, nvidia-smi lists them",
}


def cores() -> int:
    """Return the number of CPUs that this process and its container may use."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on Windows and macOS
        count = len(os.sched_getaffinity(0))
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # v2, v1
        with suppress(OSError, ValueError):  # no such file; "max": no limit
            text = " ".join((CONTAINER / name).read_text() for name in names)
            quota, period = map(int, text.split())
            count = min(count, quota // period) if quota > 0 else count
    return max(1, count)


def memory() -> int:
    """Return the bytes of memory of this machine, or of its container if that has less."""
    total: int = psutil.virtual_memory().total
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        with suppress(OSError, ValueError):
            total = min(total, int((CONTAINER / name).read_text()))
    return total


def playing_threads(games: int) -> int:
    """Return how many threads play in our emulator; more would mostly wait."""
    return min(cores(), 4, 1 + games // 16)


def missing_device(name: str) -> str | None:
    """Return a one-line reason why torch cannot use a device (cpu, cuda, cuda:1, mps), or None."""
    if not re.fullmatch("cpu|mps|cuda(:(0|[1-9][0-9]?))?", name):
        return f"{name!r} is not cpu, cuda, cuda:1 (the second GPU) or mps (Apple's)"
    if (device := torch.device(name)).type == "cpu":
        return None
    refused = f"torch {torch.__version__} cannot use the GPU {name}: "
    if device.type == "mps":
        found = torch.backends.mps.is_available()
        return None if found else refused + "it finds none on this machine"
    # There is no list of usable GPUs, so ask torch, then let the GPU add two numbers.
    try:
        with warnings.catch_warnings(action="ignore"):  # the returned line tells the reason
            torch.cuda.init()
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            return f"{refused}it finds {plural(count, 'GPU')}"
        torch.ones(2, device=device).sum().item()
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        message = first_line(error)
        return refused + message + next((ADVICE[words] for words in ADVICE if words in message), "")
    return None


def first_line(error: BaseException) -> str:
    """Return the line of an error's message that says what is wrong, or the error's type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if "raised:" not in line]  # torch's compiler puts it first
    return next((line for line in lines if "error: " in line), (*lines, type(error).__name__)[0])


def shares_memory(device: torch.device) -> bool:
    """Return whether processes can share weights on a device. Windows and mps have no CUDA IPC."""
    return device.type == "cpu" or (device.type == "cuda" and sys.platform != "win32")


def compiles(device: torch.device) -> bool:
    """Return whether to try ``torch.compile``, which is experimental for Apple's GPUs."""
    return device.type != "mps"


def choose_precision(device: torch.device) -> str:
    """Choose bfloat16 if the device has units for it, otherwise float32.

    NVIDIA GPUs have them from compute capability 8.0 (Ampere) on. CPUs also need oneDNN, which
    torch for Apple's processors lacks.
    """
    has_units = False
    if device.type == "cuda":
        has_units = torch.cuda.get_device_capability(device) >= (8, 0)
    elif device.type == "cpu" and torch.backends.mkldnn.is_available():
        has_units = any(map(torch.cpu.get_capabilities().get, BFLOAT16_INSTRUCTIONS))
    return "bfloat16" if has_units else "float32"
