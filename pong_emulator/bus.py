"""Reads from addresses that only the running program knows."""

import numpy as np

from .compiling import compiled
from .rom import read_rom
from .tia import read

ROM = np.frombuffer(read_rom(), np.uint8).astype(np.int32)


@compiled
def rom(address):
    """Read the cartridge.

    No other function names ROM, because compiled functions copy the constants that they name, and a
    GPU has room for 64 KB of them.
    """
    return ROM[address & 0x7FF]


@compiled
def load(s, g, t, address, bus):
    """Read RAM, or the television chip, which leaves the previous low bits on the bus."""
    if address & 0x80:
        return s[address & 0x7F, g]
    return read(s, g, t, address & 0x0F) | bus & 0x3F


@compiled
def load_far(s, g, t, address):
    """Read from an address of 13 bits: the cartridge, or what ``load`` reads."""
    if address & 0x1000:
        return rom(address)
    return load(s, g, t, address, address >> 8)
