"""Fall back to eager code where an optimisation fails, because most GPUs are untested.

A run tries torch.compile, CUDA graphs, games on the GPU, and CUDA IPC (GPU memory shared by two
processes) once before using them. If one raises, or the GPU's games differ from the CPU's, the run
continues without it and prints one line, which is "left_out" in TensorBoard's HPARAMS tab.
"""

from collections.abc import Callable
from typing import TypeVar

from lib.devices import first_line
from lib.printing import print_line

Version = TypeVar("Version")

fallbacks: list[str] = []  # of the run in this process


def try_optimised(part: str, eager: Version, make: Callable[[], Version]) -> Version:
    """Return what ``make`` builds; if it fails, print one line and return ``eager``."""
    try:
        return make()
    except Exception as error:  # whatever failed, eager code works
        kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
        reason = f"{part}: {kind}{first_line(error)[:300]}"
        if reason not in fallbacks:  # each trial tries it again
            fallbacks.append(reason)
            print_line(f"left out: {reason}")
        return eager
