"""The faster way and the plain one: the rule for all that is only faster.

Nobody has tried most GPUs. So what is only faster is tried once, before it is used: the compiled
update, the update and the choice of actions as CUDA graphs, games on the GPU, and memory of the GPU
in two processes. If it raises, or its games are not those of the CPU, the plain way is used. One
line says so, and the column ``left_out`` of the run's records has that line.
"""

from collections.abc import Callable
from typing import TypeVar

from lib.devices import first_line
from lib.printing import say

Way = TypeVar("Way")

left_out: list[str] = []  # by this process, which is one run


def leave_out(part: str, reason: str | Exception) -> None:
    """Say, and keep for the records, that the run goes on without this, and why."""
    if isinstance(reason, Exception):
        kind = "" if isinstance(reason, RuntimeError) else f"{type(reason).__name__}: "
        reason = kind + first_line(reason)[:300]
    left_out.append(f"{part}: {reason}")
    say(f"left out: {part}: {reason}")


def faster_way(part: str, plain: Way, make: Callable[[], Way]) -> Way:
    """The faster way if it can be made and tried here, else the plain one.

    Args:
        part: what to call the faster way in the line that says it is left out.
        plain: what works.
        make: makes the faster way, and tries it.
    """
    try:
        return make()
    except Exception as error:  # whatever it is: the plain way goes on
        leave_out(part, error)
        return plain
