"""What a device can do: from its features, not from timing, so a seed always gives the same run."""

import os
import re
import sys
import warnings
from importlib.util import find_spec

import torch

PRECISIONS = ("auto", "float32", "bfloat16")
# Instructions that multiply bfloat16 numbers, as torch names them: on x86, and on ARM.
BFLOAT16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")
TRITON = (7, 0)  # the compute capability from which on torch compiles, by torch's own error message


def cores() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on Windows and macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def missing_device(name: str) -> str | None:
    """Why torch cannot use this device, in one line; None if it can.

    Args:
        name: cpu, cuda, cuda:1 or mps.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        return f"{name!r} is not cpu, cuda, cuda:1 (the second GPU) or mps (Apple's)"
    if device.type == "mps" and not torch.backends.mps.is_available():
        return f"torch {torch.__version__} finds no GPU {name} that it can use on this machine"
    return gpu_fault(device) if device.type == "cuda" else None


def gpu_fault(device: torch.device) -> str | None:
    """Why torch cannot compute on this NVIDIA GPU, and what helps, in one line; None if it can.

    Nobody keeps a list of GPUs: torch is asked, and then the GPU adds two numbers.
    """
    refused = f"torch {torch.__version__} cannot use the GPU {device}: "
    try:
        with warnings.catch_warnings(action="ignore"):  # of what is told below, over many lines
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # no driver, an old one, no CUDA in this torch
        told = first_line(error)
        if "not compiled with CUDA" in told:
            told += "; install one for CUDA, see pytorch.org/get-started"
        return refused + told
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        return f"{refused}it finds {count} GPU{'s' * (count != 1)}"
    capability, built = torch.cuda.get_device_capability(device), torch.cuda.get_arch_list()
    if not has_kernels(capability, built):
        return (
            f"{refused}it has no kernels for compute capability {_dotted(capability)}, only for "
            f"{', '.join(built)}; install a torch that has them, for another version of CUDA (see "
            "pytorch.org/get-started), or train without --cuda"
        )
    try:
        torch.ones(2, device=device).sum().item()
    except RuntimeError as error:
        told = first_line(error)
        full = "; other programs fill its memory, nvidia-smi lists them" * ("memory" in told)
        return refused + told + full
    return None


def has_kernels(capability: tuple[int, int], built: list[str]) -> bool:
    """Whether code that was built for these architectures runs on a GPU.

    Machine code (sm) runs on the same major version from its minor version on. The driver
    translates intermediate code (compute) for every newer GPU.

    Args:
        capability: compute capability of the GPU, such as (6, 1).
        built: as ``torch.cuda.get_arch_list`` gives them, such as sm_75 and compute_120.
    """
    codes = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", name) for name in built]
    known = [(code[1], (int(code[2]), int(code[3]))) for code in codes if code]
    return not known or any(
        version <= capability and (kind == "compute" or version[0] == capability[0])
        for kind, version in known
    )


def compiler_fault(device: torch.device) -> str | None:
    """Why nothing can be compiled for this NVIDIA GPU, in one line; None if it can be tried."""
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton (on Windows: triton-windows)"
    capability = torch.cuda.get_device_capability(device)
    if capability < TRITON:
        return (
            f"Triton compiles for compute capability {_dotted(TRITON)} and above, and this GPU has "
            f"{_dotted(capability)}"
        )
    return None


def first_line(error: BaseException) -> str:
    """The line of an error's message that says what is wrong, or the error's kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if "raised:" not in line]  # torch's compiler begins with it
    return next((line for line in lines if "error: " in line), (*lines, type(error).__name__)[0])


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def shares_memory(device: torch.device) -> bool:
    """Whether two processes can share weights on this device.

    On NVIDIA GPUs they share memory through CUDA IPC, which Windows does not have.
    """
    return device.type == "cpu" or (device.type == "cuda" and sys.platform != "win32")


def compiles(device: torch.device) -> bool:
    """Whether to try ``torch.compile`` there; for Apple's GPUs it is experimental."""
    return device.type != "mps"


def has_bfloat16_units(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 numbers in hardware, and torch uses that.

    NVIDIA GPUs do so from compute capability 8.0 (Ampere) on. A CPU also needs oneDNN, which torch
    for Apple's processors does not include.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu" and torch.backends.mkldnn.is_available():
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name, False) for name in BFLOAT16_INSTRUCTIONS)
    return False


def choose_precision(device: torch.device) -> str:
    """The precision that ``auto`` stands for: bfloat16 if there are units for it, else float32."""
    return "bfloat16" if has_bfloat16_units(device) else "float32"
