"""What a device can do: asked of its features, not timed, so the same seed gives the same run."""

import torch

PRECISIONS = ("auto", "float32", "bfloat16")
# Instructions that multiply bfloat16 numbers, as torch names them: on x86, and on ARM.
BFLOAT16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")


def has_bfloat16_units(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 numbers in hardware, and torch makes use of it.

    A GPU of NVIDIA does from compute capability 8.0 (Ampere) on. On a CPU oneDNN has to be part of
    torch, too: that of macOS comes without it, and what replaces it is slower than float32.
    """
    if device.type == "cuda":
        present = (device.index or 0) < torch.cuda.device_count()
        return present and torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu" and torch.backends.mkldnn.is_available():
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name, False) for name in BFLOAT16_INSTRUCTIONS)
    return False


def choose_precision(device: torch.device) -> str:
    """What ``auto`` stands for: bfloat16 where there are units for it, or else float32."""
    return "bfloat16" if has_bfloat16_units(device) else "float32"
