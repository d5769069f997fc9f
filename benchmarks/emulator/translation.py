"""What structure buys: a frame of Pong in two ways, with the same state after both of them.

    switch       every block translated once; a loop asks which block is next
    structured   translated into if and while, as ``emulator`` has it

Both run on the same television, and are compiled in the same way.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from benchmarks import Failed
from benchmarks.timing import seconds_per_call
from emulator.compiling import OPTIONS
from emulator.control_flow import Code, End, Goto, If, Program
from emulator.memory_map import store_function
from emulator.pong import end_picture, new_game
from emulator.semantics import VARIABLES
from emulator.state import CYCLES, FIELDS, REGISTER_X
from emulator.translate import Translated, Writer, function, indent, translated_routines
from emulator.translated import HEADER, emulated_frame, program

FRAMES = 2_000  # after which the states are compared
END = 0xFFFF  # behind the last block of a routine


def microseconds(rounds: int, seconds: float) -> dict[str, list[float]]:
    """Of a core for an emulated frame, nothing drawn, by way: a value for each round."""
    switched: dict[str, Any] = {"__name__": "benchmarks.switch"}
    exec(HEADER + switch_source(program()), switched)
    frames = {"switch": switched["emulated_frame"], "structured": emulated_frame}
    ways = {way: _player(frame) for way, frame in frames.items()}
    states = {}
    for way, play in ways.items():
        states[way] = np.zeros((FIELDS, 2), np.int32, order="F")
        states[way][:, 0] = new_game()
        play(states[way], FRAMES)
    differs = states["switch"][:REGISTER_X, 0] != states["structured"][:REGISTER_X, 0]
    if differs.any():
        raise Failed(f"the states differ in the fields {np.flatnonzero(differs)}")
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, play in ways.items():
            work = seconds_per_call(lambda p=play, s=states[way]: p(s, FRAMES), seconds)
            taken[way].append(work / FRAMES * 1e6)
    return taken


def _player(frame: Callable[..., Any]) -> Callable[[np.ndarray, int], None]:
    """Plays frames on a state, int32 (FIELDS, games), given an ``emulated_frame``."""

    @numba.njit(**OPTIONS)
    def play(s, frames):
        for _ in range(frames):
            t, s[REGISTER_X, 0] = frame(s, 0, s[CYCLES, 0], False, s[REGISTER_X, 0])
            end_picture(s, 0, t)

    return play


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
