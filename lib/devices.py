"""What a device can do: from its features, not from timing, so a seed always gives the same run."""

import os
import re
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from lib.printing import plural

Device = torch.device | str

# Instructions that multiply bfloat16 numbers, as torch names them: on x86, and on ARM.
BFLOAT16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")
CONTAINER = Path("/sys/fs/cgroup")  # Linux: the limits of a container
ADVICE = {  # to torch's errors
    "not compiled with CUDA": "; install a torch for CUDA, see pytorch.org/get-started",
    "no kernel image": "; install a torch for this GPU, see pytorch.org/get-started",
    "out of memory": "; other programs fill its memory, nvidia-smi lists them",
}


def cores() -> int:
    """Number of processors that this process may use, and its container may keep busy."""
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
    """Bytes of memory that this machine has, or of its container if that has fewer."""
    total: int = psutil.virtual_memory().total
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        with suppress(OSError, ValueError):
            total = min(total, int((CONTAINER / name).read_text()))
    return total


def playing_threads(games: int) -> int:
    """Number of threads for so many games of ours; more would wait longer than they play."""
    return min(cores(), 4, 1 + games // 16)


def missing_device(name: str) -> str | None:
    """Why torch cannot use this device, in one line; None if it can.

    Args:
        name: cpu, cuda, cuda:1 or mps.
    """
    if not re.fullmatch("cpu|mps|cuda(:(0|[1-9][0-9]?))?", name):
        return f"{name!r} is not cpu, cuda, cuda:1 (the second GPU) or mps (Apple's)"
    if (device := torch.device(name)).type == "cpu":
        return None
    refused = f"torch {torch.__version__} cannot use the GPU {name}: "
    if device.type == "mps":
        found = torch.backends.mps.is_available()
        return None if found else refused + "it finds none on this machine"
    # Nobody keeps a list of GPUs: torch is asked, and then the GPU adds two numbers.
    try:
        with warnings.catch_warnings(action="ignore"):  # of what is told below, over many lines
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
    """The line of an error's message that says what is wrong, or the error's kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if "raised:" not in line]  # torch's compiler begins with it
    return next((line for line in lines if "error: " in line), (*lines, type(error).__name__)[0])


def shares_memory(device: torch.device) -> bool:
    """Whether two processes can share weights there; Windows has no CUDA IPC, mps nothing alike."""
    return device.type == "cpu" or (device.type == "cuda" and sys.platform != "win32")


def compiles(device: torch.device) -> bool:
    """Whether to try ``torch.compile`` there; for Apple's GPUs it is experimental."""
    return device.type != "mps"


def choose_precision(device: torch.device) -> str:
    """The precision that ``auto`` stands for: bfloat16 if there are units for it, else float32.

    NVIDIA GPUs have them from compute capability 8.0 (Ampere) on. A CPU also needs oneDNN, which
    torch for Apple's processors does not include.
    """
    has_units = False
    if device.type == "cuda":
        has_units = torch.cuda.get_device_capability(device) >= (8, 0)
    elif device.type == "cpu" and torch.backends.mkldnn.is_available():
        has_units = any(map(torch.cpu.get_capabilities().get, BFLOAT16_INSTRUCTIONS))
    return "bfloat16" if has_units else "float32"
