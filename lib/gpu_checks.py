"""The faster way and the plain one: the rule for all that is only faster.

Nobody has tried most GPUs. So what is only faster is tried once, before it is used: the compiled
update, the update and the choice of actions as CUDA graphs, games on the GPU, and memory of the GPU
in two processes. If it raises, or its first results differ from those of the plain way, the plain
way is used. One line says so, and the column ``left_out`` of the run's records has that line.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from lib.devices import first_line
from lib.printing import say

Way = TypeVar("Way")
Results = dict[str, torch.Tensor]  # by name

left_out: list[str] = []  # by this process, which is one run


def leave_out(part: str, reason: str | Exception) -> None:
    """Say, and keep for the records, that the run goes on without this, and why."""
    if isinstance(reason, Exception):
        kind = "" if isinstance(reason, RuntimeError) else f"{type(reason).__name__}: "
        reason = kind + first_line(reason)[:300]
    left_out.append(f"{part}: {reason}")
    say(f"left out: {part}: {reason}")


def faster_way(
    part: str,
    plain: Way,
    make: Callable[[], Way],
    results: Callable[[Way], Results],
    allowed: float = 0.0,
) -> Way:
    """The faster way if it works here, else the plain one.

    Args:
        part: what to call the faster way in the line that says it is left out.
        plain: what works; an error of it is nobody's fault but its own, and is raised.
        make: makes the faster way.
        results: the first results of a way.
        allowed: how much may differ, see ``difference``.
    """
    expected = results(plain)
    try:
        way = make()
        fault = difference(results(way), expected, allowed)
        if fault is None:
            return way
        leave_out(part, fault)
    except Exception as error:  # whatever it is: the plain way has just worked
        leave_out(part, error)
    return plain


def difference(found: Results, expected: Results, allowed: float) -> str | None:
    """What differs more than is allowed, in words; None if nothing does.

    Of floating-point numbers the error is the length of the difference, as a share of the expected
    length. Of others it is the share of those that are not equal.
    """
    for name, right in expected.items():
        apart = found[name].double() - right.double()
        if right.is_floating_point():
            error = (apart.norm() / right.double().norm().clamp_min(1e-30)).item()
        else:
            error = (apart != 0).double().mean().item()
        if not error <= allowed:  # also if it is no number
            return f"its {name} differ by {error:.2g} ({allowed:.2g} may differ)"
    return None


class Kept:
    """Tensors, and the random states of the CPU and a device, as they are now, to be put back."""

    def __init__(self, device: torch.device, tensors: Iterable[torch.Tensor]) -> None:
        modules = [torch]  # a compiler may draw from the CPU's numbers, too
        if device.type != "cpu":
            modules.append(torch.get_device_module(device))
        self._random = [(module, module.get_rng_state()) for module in modules]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]

    @torch.no_grad()
    def put_back(self) -> None:
        """Make everything as it was."""
        for tensor, kept in self._tensors:
            tensor.copy_(kept)
        for module, state in self._random:
            module.set_rng_state(state)
