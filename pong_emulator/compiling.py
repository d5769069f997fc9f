"""How the functions of the emulator are compiled, and where the result is kept.

It is kept in a folder that is named by a hash of this package, beside the translation: Numba looks
at the file of a function alone, and would not notice that one it calls has changed.
"""

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite.binding import get_host_cpu_name
from numba import types

# Without `_nrt=False` Numba counts the references to every array that it hands on, which took 87 %
# of the time. `nogil` lets threads play at once. As in C, nobody looks for a division by zero.
OPTIONS: dict[str, Any] = {"_nrt": False, "nogil": True, "error_model": "numpy"}
KEPT = 24 * 3600  # seconds that what was compiled of another version is kept


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when a compiled one calls it; every number it is given is an int64.

    On a GPU, whose registers have 32 bits, it is an int32: see ``cuda.py``. By itself Numba
    compiles it anew for every constant, and for int32 and int64: `write` 24 times.
    """
    if numba.config.DISABLE_JIT:  # Numba's own switch, to look at functions in Python
        return function
    dispatcher = numba.njit(**OPTIONS)(function)
    compile_for = dispatcher.compile

    def compile_once(arguments: Any) -> Any:
        return compile_for(argument_types(arguments, types.int64))

    dispatcher.compile = compile_once
    return dispatcher


def argument_types(arguments: Iterable[types.Type], number: types.Type) -> tuple[types.Type, ...]:
    """The types that a function is compiled for: all its whole numbers are of this one."""
    kinds = map(types.unliteral, arguments)
    whole = types.Integer | types.Boolean
    return tuple(number if isinstance(kind, whole) else kind for kind in kinds)


def entry_point(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, and keep it for the next start."""
    return kept(numba.njit(cache=True, **OPTIONS), function)


def kept(compiler: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a compiler of Numba's keep what it makes of a function in ``folder``."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder())
    try:
        return compiler(function)
    finally:
        numba.config.CACHE_DIR = before


@cache
def folder() -> Path:
    """Where the translation lies, and what was compiled."""
    return kept_in(Path(__file__).parent)


def kept_in(package: Path) -> Path:
    """Where to keep what is compiled of a package: beside it, at home, or until this process ends.

    Args:
        package: the folder of its files. Beside it is its ``__pycache__``, if it can be written.
    """
    # What the translation imports, and what Numba compiles anew for: another place, processor, ...
    text = f"{__package__} {package.absolute()} {get_host_cpu_name()} "
    text += f"{numba.__version__} {sys.implementation.cache_tag}"
    digest = hashlib.sha256(text.encode())
    for file in sorted(package.glob("*.py")):
        digest.update(file.read_bytes())
    name = "pong-" + digest.hexdigest()[:16]
    for parent in (package / "__pycache__", Path("~/.cache/pong-emulator")):
        with suppress(OSError, RuntimeError):  # RuntimeError: nobody knows where home is
            return _made(parent.expanduser(), name)
    parent = Path(tempfile.mkdtemp(prefix="pong-emulator-"))  # nothing will be kept
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    return _made(parent, name)


def _made(parent: Path, name: str) -> Path:
    """A folder; those of former versions go, unless they are so new that somebody may use them."""
    made = parent / name
    if not made.is_dir():
        made.mkdir(parents=True, exist_ok=True)
        for other in parent.glob("pong-*"):
            with suppress(FileNotFoundError):  # another process is doing the same
                if other != made and other.stat().st_mtime < time.time() - KEPT:
                    shutil.rmtree(other, ignore_errors=True)
    if not os.access(made, os.W_OK):
        raise PermissionError(made)
    return made
