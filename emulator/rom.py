"""Pong's cartridge: 2 KB of machine code, read from the installed ale-py."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

SHA256 = "41623e3c26148f96cbe77d56512845d224a63c8fe5bf90e38527155e39ec96d3"
SIZE = 2048  # bytes; the processor sees them twice in the 4 KB of a cartridge
FIRST = 0xF000  # the address of the first byte, as the program uses it


class EmulatorError(Exception):
    """The console cannot be built; the message says why, and what to do, in one line."""


def read_rom(path: Path | None = None) -> bytes:
    """The 2,048 bytes of the cartridge.

    Args:
        path: of the ROM; by default that of the installed ale-py.

    Raises:
        EmulatorError: there is none, or it is not the Pong that this package translates.
    """
    path = path or _installed_rom()
    try:
        rom = path.read_bytes()
    except OSError as error:
        raise EmulatorError(f"no ROM at {path} ({error.strerror}): reinstall ale-py") from None
    if hashlib.sha256(rom).hexdigest() != SHA256:
        raise EmulatorError(
            f"{path} is not the Pong that is translated here, but another ROM of {len(rom):,} "
            "bytes: use ale_py.AtariVectorEnv for it"
        )
    return rom


def _installed_rom() -> Path:
    package = find_spec("ale_py")
    if package is None or package.origin is None:
        raise EmulatorError(
            "Pong's ROM comes with ale-py, which is not installed: pip install ale-py"
        )
    return Path(package.origin).parent / "roms" / "pong.bin"
