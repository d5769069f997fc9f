"""Pong's cartridge: 2 KB of machine code, read from the installed ale-py, and facts about it."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from .errors import EmulatorError

SHA256 = "41623e3c26148f96cbe77d56512845d224a63c8fe5bf90e38527155e39ec96d3"

# Facts that the code does not show, found by running the program.
PICTURE_END = 0xF0CC  # the instruction that clears VSYNC
INDIRECT = {0xF19B: 0xF386, 0xF1A4: 0xF3F5}  # indirect jumps, in the cartridge's first game
ALWAYS = {0xF01D}  # branches that are always taken: BEQ behind LDY #00

# Bytes of RAM, counted from 0x80; their meaning was found by watching them.
CLOCK = 9  # emulated frames // 256; byte 8 has the rest. When it reaches 256, after 18
# minutes, the program assumes that nobody plays: no ball, other points, changing colours.
POINTS_B, POINTS_A = 13, 14  # of the program's player and the agent
BALL_Y = 54  # 0: there is no ball
PADDLE_Y_A = 51  # upper edge of the agent's
LAST_POINT = 21  # a player with so many points wins


def read_rom(path: Path | None = None) -> bytes:
    """Return the 2,048 bytes of the cartridge, by default from the installed ale-py.

    Raises:
        EmulatorError: there is no ROM, or another one than this package translates.
    """
    if path is None:
        package = find_spec("ale_py")
        if package is None or package.origin is None:
            raise EmulatorError(
                "Pong's ROM comes with ale-py, which is not installed: pip install ale-py"
            )
        path = Path(package.origin).parent / "roms" / "pong.bin"
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
