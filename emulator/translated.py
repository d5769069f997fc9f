"""Pong's program as compiled functions, translated on the first start and then kept.

The translation lies in a folder named by a hash of this package, and beside it what Numba compiled:
Numba looks at the file of a function alone, and would not notice that one it calls has changed.
"""

import atexit
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba

from emulator.compiling import OPTIONS
from emulator.control_flow import Program
from emulator.rom import read_rom
from emulator.translate import translate

# Three things that following the jumps does not tell, but running the program does.
FRAME_END = 0xF0CC  # clears VSYNC
INDIRECT = {0xF19B: 0xF386, 0xF1A4: 0xF3F5}  # in the first of the cartridge's games
ALWAYS = {0xF01D}  # BEQ behind LDY #00

KEPT = 24 * 3600  # seconds that what was compiled of another version is kept

HEADER = '''"""Pong, translated from its machine code by emulator.translate. Not to be edited."""

from emulator.bus import load_far, rom
from emulator.compiling import compiled
from emulator.riot import set_timer, timer
from emulator.state import *
from emulator.tia import *


'''


def entry_point(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, and keep it for the next start."""
    return kept(numba.njit(cache=True, **OPTIONS), function)


def kept(compiler: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a compiler of Numba's keep what it makes of a function beside the translation."""
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

    The name of the folder is a hash of the package.
    """
    digest = hashlib.sha256()
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


def program() -> Program:
    """Pong."""
    return Program(read_rom(), FRAME_END, INDIRECT, ALWAYS)


def source() -> str:
    """The translation, as Python."""
    return HEADER + translate(program())


def _load() -> Any:
    file = folder() / "pong.py"
    if not file.exists():
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(source())
        part.replace(file)
    spec = importlib.util.spec_from_file_location("emulator.pong_translated", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


frame = _load().frame
