"""How the functions of the console are compiled."""

from collections.abc import Callable
from typing import Any

import numba
from numba import types

# Without `_nrt=False` Numba counts the references to every array that it hands on, which took 87 %
# of the time. `nogil` lets threads play at once. As in C, nobody looks for a division by zero.
OPTIONS: dict[str, Any] = {"_nrt": False, "nogil": True, "error_model": "numpy"}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when a compiled one calls it; every number it is given is an int64.

    By itself Numba compiles it anew for every constant, and for int32 and int64: `write` 24 times.
    """
    if numba.config.DISABLE_JIT:  # Numba's own switch, to look at functions in Python
        return function
    dispatcher = numba.njit(**OPTIONS)(function)
    compile_for = dispatcher.compile

    def compile_once(arguments: Any) -> Any:
        return compile_for(tuple(_widened(kind) for kind in arguments))

    dispatcher.compile = compile_once
    return dispatcher


def _widened(kind: types.Type) -> types.Type:
    kind = types.unliteral(kind)
    return types.int64 if isinstance(kind, types.Integer | types.Boolean) else kind
