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


def try_optimised(part: str, eager: Version, make: Callable[[], Version]) -> Version:
    """What ``make`` makes and tries, if it works here; else the eager version, and a line."""
    try:
        return make()
    except Exception as error:  # whatever it is: eager code works
        kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
        fallbacks.append(f"{part}: {kind}{first_line(error)[:300]}")
        print_line(f"left out: {fallbacks[-1]}")
        return eager
