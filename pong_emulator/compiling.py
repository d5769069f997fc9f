"""Compilation of the emulator's functions, and its cache.

The cache folder is named by a hash of this package, because Numba looks only at a function's own
file and would not notice a change in a function that it calls.
"""

import atexit
import hashlib
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
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba import types

# Without `_nrt=False` Numba counts the references to every array that it passes on, which took 87 %
# of the time. `nogil` lets threads play at once. As in C, division by zero is not checked.
OPTIONS: dict[str, Any] = {"_nrt": False, "nogil": True, "error_model": "numpy"}
KEPT = 24 * 3600  # seconds for which other versions' folders are kept


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function, with int64 for all integers, when a compiled one first calls it.

    A GPU, whose registers have 32 bits, gets int32. By default, Numba compiles a function for every
    constant and integer type: `write` 24 times.
    """
    if numba.config.DISABLE_JIT:  # Numba's own switch, to debug functions in Python
        return function
    dispatcher = numba.njit(**OPTIONS)(function)
    compile_for = dispatcher.compile

    def compile_once(arguments: Any) -> Any:
        return compile_for(argument_types(arguments, types.int64))

    dispatcher.compile = compile_once
    return dispatcher


def argument_types(arguments: Iterable[types.Type], number: types.Type) -> tuple[types.Type, ...]:
    """Return the types to compile a function for, with ``number`` for integers and bools."""
    kinds = map(types.unliteral, arguments)
    whole = types.Integer | types.Boolean
    return tuple(number if isinstance(kind, whole) else kind for kind in kinds)


def entry_point(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, and cache it for the next start."""
    return kept(numba.njit(cache=True, **OPTIONS), function)


def kept(compiler: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function with a compiler of Numba's, and cache the result in ``folder``."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder())
    try:
        return compiler(function)
    finally:
        numba.config.CACHE_DIR = before


@cache
def folder() -> Path:
    """Return the folder that caches the translation and the compiled functions."""
    return kept_in(Path(__file__).parent)


def kept_in(package: Path) -> Path:
    """Return a package's cache folder: in its ``__pycache__``, at home, or a temporary one."""
    # Everything that makes another translation or compilation necessary.
    text = f"{__package__} {package.absolute()} {get_host_cpu_name()} "
    text += f"{get_host_cpu_features().flatten()} {numba.__version__} "
    text += f"{sys.implementation.cache_tag}"
    digest = hashlib.sha256(text.encode())
    for file in sorted(package.glob("*.py")):
        digest.update(file.read_bytes())
    name = "pong-" + digest.hexdigest()[:16]
    for parent in (package / "__pycache__", Path("~/.cache/pong-emulator")):
        with suppress(OSError, RuntimeError):  # RuntimeError: home is unknown
            return _made(parent.expanduser(), name)
    parent = Path(tempfile.mkdtemp(prefix="pong-emulator-"))  # nothing will be kept
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    return _made(parent, name)


def _made(parent: Path, name: str) -> Path:
    made = parent / name
    if not made.is_dir():
        made.mkdir(parents=True, exist_ok=True)
        for other in parent.glob("pong-*"):
            with suppress(FileNotFoundError):  # another process is doing the same
                if other != made and other.stat().st_mtime < time.time() - KEPT:
                    shutil.rmtree(other, ignore_errors=True)
    tempfile.TemporaryFile(dir=made).close()  # on Windows, ``os.access`` knows no permissions
    return made
