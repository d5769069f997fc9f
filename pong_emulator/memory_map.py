"""The memory map: each address of the processor, as a statement for the translation.

``bus.py`` reads from the addresses that only the running program knows.
"""

# Writes to the television's registers; {} is the value. Numbers added to ``3 * t`` are the colour
# clocks until a write shows. VSYNC is not here: ``rom.py`` tells where a picture is complete.
TIA_WRITES = {
    0x01: "vblank(s, g, t, {})",
    0x02: "t = (t + 75) // 76 * 76",  # WSYNC: the processor waits for the next line
    0x06: "write(s, g, 3 * t, COLUP0, {} & 0xFE)",
    0x07: "write(s, g, 3 * t, COLUP1, {} & 0xFE)",
    0x08: "write(s, g, 3 * t, COLUPF, {} & 0xFE)",
    0x09: "write(s, g, 3 * t, COLUBK, {} & 0xFE)",
    0x0A: "write(s, g, 3 * t, CTRLPF, {} & 0x37)",
    0x0D: "playfield(s, g, t, PF0, {} & 0xF0)",
    0x0E: "playfield(s, g, t, PF1, {})",
    0x0F: "playfield(s, g, t, PF2, {})",
    0x10: "reset_position(s, g, t, POSP0, 3)",
    0x11: "reset_position(s, g, t, POSP1, 3)",
    0x14: "reset_position(s, g, t, POSBL, 2)",
    0x1B: "write(s, g, 3 * t + 1, GRP0, {})",
    0x1C: "player1_graphics(s, g, t, {})",
    0x1F: "enable_ball(s, g, t, {})",
    0x20: "s[HMP0, g] = {}",
    0x21: "s[HMP1, g] = {}",
    0x24: "s[HMBL, g] = {}",
    0x27: "delay_ball(s, g, t, {})",
    0x2A: "hmove(s, g, t)",
    0x2B: "s[HMP0, g] = s[HMP1, g] = s[HMBL, g] = 0",  # HMCLR: nothing will move
    0x2C: "cxclr(s, g, t)",
}
PORTS = {0x280: "s[SWCHA, g]", 0x282: "s[SWCHB, g]", 0x284: "timer(s, g, t)"}
TIMERS = {0x295: 3, 0x296: 6}  # log2 of the cycles per count


def store_function() -> list[str]:
    """Return the source of ``store``, for addresses that only the running program knows."""
    lines = ["@compiled", "def store(s, g, t, address, value):"]
    lines += ["    if address & 0x80:", "        s[address & 0x7f, g] = value"]
    for register, text in TIA_WRITES.items():
        lines += [f"    elif address == {register:#04x}:", f"        {text.format('value')}"]
    return [*lines, "    return t"]
