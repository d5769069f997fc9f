"""Fall back to eager code where an optimisation fails.

Nobody has tried most GPUs. So each optimisation is tried once, before it is used: torch.compile,
CUDA graphs, games on the GPU, and CUDA IPC (memory of the GPU in two processes). If it raises, or
its games are not those of the CPU, the run goes on without. One line says so, and TensorBoard's
HPARAMS tab has that line as "left_out".
"""

from collections.abc import Callable
from typing import TypeVar

from lib.devices import first_line
from lib.printing import print_line

Version = TypeVar("Version")

fallbacks: list[str] = []  # by this process, which is one run


def fall_back(part: str, reason: str | Exception) -> None:
    """Print, and keep for HPARAMS, which optimisation the run goes on without, and why."""
    if isinstance(reason, Exception):
        kind = "" if isinstance(reason, RuntimeError) else f"{type(reason).__name__}: "
        reason = kind + first_line(reason)[:300]
    fallbacks.append(f"{part}: {reason}")
    print_line(f"left out: {part}: {reason}")


def try_optimised(part: str, eager: Version, make: Callable[[], Version]) -> Version:
    """What ``make`` makes and tries, if it works here; else the eager version, and a line."""
    try:
        return make()
    except Exception as error:  # whatever it is: eager code works
        fall_back(part, error)
        return eager
