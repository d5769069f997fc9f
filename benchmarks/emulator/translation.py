"""What translating buys: a frame of Pong in three ways, with the same state after all of them.

    interpreted  asks about every instruction, every time it comes to it, what it is
    switch       every block translated once; a loop asks which block is next
    structured   translated into if and while, as ``emulator`` has it

All use the same table of instructions, run on the same television, and are compiled in the same
way.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from benchmarks import Failed
from benchmarks.timing import seconds_per_call
from emulator.compiling import OPTIONS, entry_point
from emulator.control_flow import Code, End, Goto, If, Program
from emulator.instructions import OPERAND_BYTES, TABLE, decode
from emulator.memory_map import store_function
from emulator.pong import emulate, end_picture, new_game
from emulator.rom import PICTURE_END
from emulator.semantics import CONDITIONS, VARIABLES
from emulator.state import CYCLES, FIELDS, REGISTER_X
from emulator.translate import Translated, Writer, function, indent, translated_routines
from emulator.translated import HEADER, program

FRAMES = 2_000  # after which the states are compared
END = 0xFFFF  # behind the last block of a routine
FIRST = 0xF0CE  # the instruction after the one that completes a picture
OPERAND = {
    "implied": "",
    "accumulator": "",
    "immediate": "q = pc + 1",
    "zero": "q = bus = rom(pc + 1)",
    "zero,x": "bus = rom(pc + 1); q = (bus + x) & 0xff",
    "zero,y": "bus = rom(pc + 1); q = (bus + y) & 0xff",
    "(zero),y": "q = rom(pc + 1); w = s[q & 0x7f, g] + y; bus = s[(q + 1) & 0x7f, g]; "
    "q = (bus << 8) + w",
    "relative": "q = pc + 2 + (rom(pc + 1) ^ 0x80) - 0x80",
    "absolute": "bus = rom(pc + 2); q = rom(pc + 1) | bus << 8",
    "absolute,x": "bus = rom(pc + 2); w = rom(pc + 1) + x; q = (bus << 8) + w",
    "absolute,y": "bus = rom(pc + 2); w = rom(pc + 1) + y; q = (bus << 8) + w",
    "(absolute)": "q = rom(pc + 1) | rom(pc + 2) << 8; "
    "q = s[q & 0x7f, g] | s[(q + 1) & 0x7f, g] << 8",
}
STATUS = "(n & 0x80) | ((v != 0) << 6) | 0x34 | ((z == 0) << 1) | c"
# What an instruction does; m is its operand, r a result that goes back to where m was.
DOES = {
    **{f"LD{r}": f"{r.lower()} = n = z = m" for r in "AXY"},
    **{f"ST{r}": f"t = put(s, g, t, q, {r.lower()})" for r in "AXY"},
    **{f"T{a}{b}": f"{b.lower()} = n = z = {a.lower()}" for a, b in ("AX", "AY", "XA", "YA")},
    **{f"IN{r}": f"{r.lower()} = n = z = ({r.lower()} + 1) & 0xff" for r in "XY"},
    **{f"DE{r}": f"{r.lower()} = n = z = ({r.lower()} - 1) & 0xff" for r in "XY"},
    **{
        name: f"c = int({r} >= m); n = z = ({r} - m) & 0xff"
        for name, r in (("CMP", "a"), ("CPX", "x"), ("CPY", "y"))
    },
    "AND": "a = n = z = a & m",
    "ORA": "a = n = z = a | m",
    "EOR": "a = n = z = a ^ m",
    "ADC": "w = a + m + c; v = (a ^ w) & (m ^ w) & 0x80; c = w >> 8; a = n = z = w & 0xff",
    "BIT": "n = m; v = m & 0x40; z = a & m",
    "INC": "r = n = z = (m + 1) & 0xff",
    "DEC": "r = n = z = (m - 1) & 0xff",
    "ASL": "r = n = z = m << 1 & 0xff; c = m >> 7",
    "LSR": "r = n = z = m >> 1; c = m & 1",
    "ROL": "r = n = z = m << 1 & 0xff | c; c = m >> 7",
    "ROR": "r = n = z = m >> 1 | c << 7; c = m & 1",
    "CLC": "c = 0",
    "SEC": "c = 1",
    "CLD": "pass",
    "SEI": "pass",
    "TXS": "sp = x",
    "TSX": "x = n = z = sp",
    "PHP": f"t = put(s, g, t, sp, {STATUS}); sp -= 1",
    "JMP": "following = q",
    "JSR": "push(s, g, sp, pc + 2); sp -= 2; following = q",
    "RTS": "following = pull(s, g, sp + 1) + 1; sp += 2",
    "BRK": f"push(s, g, sp, pc + 2); s[(sp - 2) & 0x7f, g] = {STATUS}; sp -= 3; "
    "following = rom(0xFFFE) | rom(0xFFFF) << 8",
    "RTI": "n = m = s[(sp + 1) & 0x7f, g]; z = ~m & 0x02; v = m & 0x40; c = m & 1; "
    "following = pull(s, g, sp + 2); sp += 3",
}
DOES["SBC"] = "m ^= 0xff; " + DOES["ADC"]
CHANGES = ("ASL", "LSR", "ROL", "ROR", "INC", "DEC")
READS = ("LDA", "LDX", "LDY", "AND", "ORA", "EOR", "ADC", "SBC", "CMP", "CPX", "CPY", "BIT")

INTERPRETER = """
from emulator.bus import load, load_far, rom
from emulator.compiling import compiled
from emulator.pong import emulated_frame
from emulator.riot import set_timer, timer
from emulator.state import SWCHA, SWCHB

store = emulated_frame.py_func.__globals__["store"]


@compiled
def get(s, g, t, address, bus):
    if address & 0x1000:
        return rom(address)
    if address & 0x280 == 0x280:
        return s[SWCHA, g] if address == 0x280 else (
            s[SWCHB, g] if address == 0x282 else timer(s, g, t))
    return load(s, g, t, address, bus)


@compiled
def put(s, g, t, address, value):
    if address & 0x280 == 0x280:
        set_timer(s, g, t, 3 if address == 0x295 else 6, value)
        return t
    return store(s, g, t, address, value)


@compiled
def push(s, g, sp, address):
    s[sp & 0x7f, g] = address >> 8
    s[(sp - 1) & 0x7f, g] = address & 0xff


@compiled
def pull(s, g, sp):
    return s[sp & 0x7f, g] | s[(sp + 1) & 0x7f, g] << 8


@compiled
def interpreted(s, g, t, pc, a, x, y, n, z, c, v, sp):
    q = m = w = r = bus = 0
    while True:
        opcode = rom(pc)
"""


def source() -> str:
    """The interpreter, as Python."""
    text = INTERPRETER
    for number, opcode in enumerate(sorted(TABLE)):
        text += f"        {'elif' if number else 'if'} opcode == {opcode:#04x}:\n"
        text += "".join(f"            {line}\n" for line in _lines(opcode))
    text += "        else:\n            return -1, pc, a, x, y, n, z, c, v, sp\n"
    text += f"        if pc == {PICTURE_END:#06x}:\n"
    text += "            return t, following, a, x, y, n, z, c, v, sp\n"
    return text + "        pc = following\n"


def _lines(opcode: int) -> list[str]:
    name, mode = TABLE[opcode]
    plain = decode(bytes([opcode, 0, 0]), 0)
    size = 2 if name == "BRK" else 1 + OPERAND_BYTES[mode]
    lines = [f"following = pc + {size}", f"t += {plain.cycles}"]
    lines += OPERAND[mode].split("; ") if OPERAND[mode] else []
    if name in CONDITIONS:
        taken = "t += 1 + (q >> 8 != following >> 8)"
        return [*lines, f"if {CONDITIONS[name][0]}:", f"    {taken}", "    following = q"]
    if name in READS or (name in CHANGES and mode != "accumulator"):
        if mode in ("absolute,x", "absolute,y", "(zero),y"):
            lines.append("t += w >> 8")  # into the next page
        lines.append("m = rom(q)" if mode == "immediate" else "m = get(s, g, t, q, bus)")
    elif mode == "accumulator":
        lines.append("m = a")
    lines += DOES[name].split("; ")
    if name in CHANGES:
        lines.append("a = r" if mode == "accumulator" else "t = put(s, g, t, q, r)")
    return lines


def microseconds(rounds: int, seconds: float) -> dict[str, list[float]]:
    """Of a core for an emulated frame, nothing drawn, by way: a value for each round."""
    ways = {"interpreted": _interpreter(), "switch": _switch(), "structured": _structured}
    states = {}
    for way, play in ways.items():
        states[way] = np.zeros((FIELDS, 2), np.int32, order="F")
        states[way][:, 0] = new_game()
        play(states[way], FRAMES)
    for way, state in states.items():
        differs = state[:REGISTER_X, 0] != states["structured"][:REGISTER_X, 0]
        if differs.any():
            raise Failed(f"{way}: the state differs in the fields {np.flatnonzero(differs)}")
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, play in ways.items():
            work = seconds_per_call(lambda p=play, s=states[way]: p(s, FRAMES), seconds)
            taken[way].append(work / FRAMES * 1e6)
    return taken


@entry_point
def _structured(s, frames):
    """Play frames as ``emulator`` does; s is its state, int32 (FIELDS, games)."""
    for _ in range(frames):
        emulate(s, 0, False)


def switch_source(program: Program) -> str:
    """As ``emulator.translate.translate``, with switches in loops for ``if`` and ``while``."""
    lines = store_function()
    for routine in translated_routines(program):
        unset = sorted(set(VARIABLES) - routine.takes)
        body = [" = ".join([*unset, "0"]), f"at = {routine.routine.entry:#06x}"]
        body += [f"while at != {END:#06x}:", *indent(_search(list(_blocks(routine).items())))]
        body += Writer(routine, []).write([End(routine.routine.blocks[routine.routine.entry])])
        lines += function(routine, body)
    return "\n".join(lines) + "\n"


def _blocks(routine: Translated) -> dict[int, list[str]]:
    """The lines of every block of a routine; they set ``at`` to the next one, or to ``END``."""
    blocks = routine.routine.blocks
    writer = Writer(routine, [])
    writer.guarded = {*blocks, END}  # who goes somewhere says so
    lines = {}
    for start, block in sorted(blocks.items()):
        ways = [[Goto(target)] for target in block.targets or (END,)]
        leave = If(block, *ways) if len(ways) == 2 else ways[0][0]
        lines[start] = writer.write([Code(block), leave])
    return lines


def _search(blocks: list[tuple[int, list[str]]]) -> list[str]:
    """The lines of the block at ``at``, looked up by halves."""
    if len(blocks) == 1:
        return blocks[0][1]
    half = len(blocks) // 2
    first, second = indent(_search(blocks[:half])), indent(_search(blocks[half:]))
    return [f"if at < {blocks[half][0]:#06x}:", *first, "else:", *second]


def _switch() -> Callable[[np.ndarray, int], None]:
    """Play frames with the translation of ``switch_source``."""
    names: dict[str, Any] = {"__name__": "benchmarks.switch"}
    exec(HEADER + switch_source(program()), names)
    frame = names["emulated_frame"]

    @numba.njit(**OPTIONS)
    def play(s, frames):
        for _ in range(frames):
            t, s[REGISTER_X, 0] = frame(s, 0, s[CYCLES, 0], False, s[REGISTER_X, 0])
            end_picture(s, 0, t)

    return play


def _interpreter() -> Callable[[np.ndarray, int], None]:
    """Play frames by interpreting."""
    names: dict[str, Any] = {"__name__": "benchmarks.interpreted"}
    exec(source(), names)
    interpreted = names["interpreted"]

    @numba.njit(**OPTIONS)
    def play(s, frames):
        pc, a, x, y, n, z, c, v, sp = FIRST, 0, s[REGISTER_X, 0], 0, 0, 0, 0, 0, 0xFF
        for _ in range(frames):
            t, pc, a, x, y, n, z, c, v, sp = interpreted(
                s, 0, s[CYCLES, 0], pc, a, x, y, n, z, c, v, sp
            )
            end_picture(s, 0, t)

    return play
