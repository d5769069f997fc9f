"""The translation: from machine code to Python functions that say the same.

Registers become variables (``a``, ``x``, ``y``), and so do the processor's flags: ``n`` is a
number whose bit 7 says negative, ``z`` one that is 0 for zero, ``c`` is 0 or 1, ``v`` is not 0
for an overflow. ``m`` is an operand, ``w`` a result before it is cut to eight bits. ``t`` counts
the processor's cycles in this frame, and is brought up to date only where somebody looks at the
clock. A value that nobody uses is not computed, and a routine takes what it uses and returns what
is used of it, so most flags vanish. A routine is translated once for every depth of the stack at
which it is called, so addresses on the stack are constants, too.

Where a block leads to one of several places further down, ``at`` says to which.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from emulator.control_flow import (
    POWER_ON,
    Block,
    Code,
    End,
    Follow,
    Goto,
    If,
    Loop,
    Program,
    Routine,
    find_routines,
    structured,
    ways_out,
)
from emulator.instructions import Instruction
from emulator.rom import EmulatorError

VARIABLES = "axynzcvmw"
NAME = re.compile(rf"\b[{VARIABLES}]\b")
Routines = dict[tuple[int, int | None], "Translated"]

# What a write to the television's registers does; {} is the value. The numbers of colour clocks are
# how long it takes to show.
TIA_WRITES = {
    0x00: "pass",  # VSYNC; where the picture is complete is known from the program
    0x01: "vblank(s, g, t, {})",
    0x02: "t = wsync(t)",
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
    0x2B: "hmclr(s, g)",
    0x2C: "cxclr(s, g, t)",
}
PORTS = {0x280: "s[SWCHA, g]", 0x282: "s[SWCHB, g]", 0x284: "timer(s, g, t)"}
TIMERS = {0x295: 3, 0x296: 6}  # cycles of a count, as a power of two

REGISTER = {"A": "a", "X": "x", "Y": "y"}
CONDITIONS = {
    "BPL": ("n & 0x80 == 0", "n & 0x80 != 0"),
    "BMI": ("n & 0x80 != 0", "n & 0x80 == 0"),
    "BVC": ("v == 0", "v != 0"),
    "BVS": ("v != 0", "v == 0"),
    "BCC": ("c == 0", "c != 0"),
    "BCS": ("c != 0", "c == 0"),
    "BNE": ("z != 0", "z == 0"),
    "BEQ": ("z == 0", "z != 0"),
}


class Step(NamedTuple):
    """A statement: it sets ``targets`` to what ``text`` comes to; or does what ``text`` says."""

    text: str
    targets: tuple[str, ...] = ()
    call: "Translated | None" = None

    @property
    def has_effect(self) -> bool:
        """It cannot be left out even if nobody uses its targets."""
        return not self.targets or self.call is not None

    @property
    def uses(self) -> set[str]:
        """The variables that it reads."""
        return self.call.takes if self.call else set(NAME.findall(self.text))

    @property
    def needs_time(self) -> bool:
        """``t`` must be up to date before it."""
        return self.call is not None or re.search(r"\bt\b(?! \+=)", self.text) is not None


class Translated:
    """A routine at a depth of the stack: the steps of its blocks, and the variables they use."""

    def __init__(self, routine: Routine, stack: int | None) -> None:
        self.routine, self.stack = routine, stack
        self.name = "frame" if routine.entry == POWER_ON else f"sub_{routine.entry:04X}_{stack:02X}"
        self.steps: dict[int, list[tuple[Instruction | None, list[Step]]]] = {}
        self.live: dict[int, set[str]] = {start: set() for start in routine.blocks}  # on entry
        self.wanted: set[str] = set()  # of what it may change, by those who call it
        self.changes: set[str] = set()

    @property
    def takes(self) -> set[str]:
        """The variables that it uses."""
        return self.live[self.routine.entry]

    @property
    def returns(self) -> list[str]:
        """The variables that it returns, after ``t``."""
        return sorted(self.wanted & self.changes)


def translate(program: Program) -> str:
    """The source of a Python module with the function ``frame(s, g, t, boot, ...)``.

    It needs the names of ``emulator.bus``, ``emulator.tia`` and ``emulator.riot``.
    ``s`` is the console's state, int32 (fields, games), and ``g`` the game. ``frame`` runs from
    where the last picture was complete, or, if ``boot``, from power-on, until the next one is. It
    returns ``t`` and the registers that the next frame needs.

    Raises:
        EmulatorError: the program does what this translation does not know.
    """
    main, subroutines = find_routines(program)
    routines: Routines = {}
    top = Translated(main, 0xFF)
    _translate_blocks(top, program, subroutines, routines)
    _find_changes([top, *routines.values()])
    after_frame = top.routine.blocks[POWER_ON].targets[1]
    while _liveness([top, *routines.values()], after_frame):
        pass
    lines = [*_store_function()]
    for routine in [*routines.values(), top]:
        lines += ["", "", *_function(routine)]
    return "\n".join(lines) + "\n"


def _translate_blocks(
    done: Translated, program: Program, subroutines: dict[int, Routine], routines: Routines
) -> None:
    """Fill in the steps of a routine, and translate those that it calls before it."""

    def called(entry: int, stack: int | None) -> Translated:
        if (entry, stack) not in routines:
            routine = Translated(subroutines[entry], stack)
            _translate_blocks(routine, program, subroutines, routines)
            routines[entry, stack] = routine
        return routines[entry, stack]

    blocks = done.routine.blocks
    stacks = {done.routine.entry: done.stack}
    waiting = [done.routine.entry]
    while waiting:
        block = blocks[waiting.pop()]
        if block.start in done.steps:
            continue
        stack, previous = stacks[block.start], None
        steps = done.steps[block.start] = []
        for instruction in block.instructions:
            if instruction.name in ("JSR", "BRK"):
                entry = program.interrupt if instruction.name == "BRK" else instruction.operand
                pushed = _return_address(instruction, stack)
                depth = stack - (2 if instruction.name == "JSR" else 3)
                steps.append((instruction, [*pushed, _call(called(entry, depth))]))
            else:
                steps.append((instruction, list(_steps(instruction, stack))))
            stack = _stack_after(instruction, previous, stack)
            previous = instruction
        if block.tail_call is not None:
            steps.append((None, [_call(called(block.tail_call, stack))]))
        for target in block.targets:
            if stacks.setdefault(target, stack) != stack:
                raise EmulatorError(f"the stack at {target:04X} may be at two places")
            waiting.append(target)


def _call(routine: Translated) -> Step:
    return Step("", (), routine)


def _stack_after(
    instruction: Instruction, previous: Instruction | None, stack: int | None
) -> int | None:
    if instruction.name == "PHP":
        return stack - 1
    if instruction.name == "TXS":
        known = previous is not None and (previous.name, previous.mode) == ("LDX", "immediate")
        return previous.operand if known else None  # None: restored, and only used to return
    return stack


def _return_address(instruction: Instruction, stack: int | None) -> Iterator[Step]:
    """What a call leaves on the stack, which lies in RAM where everybody can see it."""
    address = instruction.following - (1 if instruction.name == "JSR" else 0)
    yield Step(f"{_ram(stack)} = {address >> 8:#04x}")
    yield Step(f"{_ram(stack - 1)} = {address & 0xFF:#04x}")
    if instruction.name == "BRK":
        yield Step(f"{_ram(stack - 2)} = {_status(0xFF)}")


def _ram(address: int) -> str:
    return f"s[{address & 0x7F:#04x}, g]"


def _status(mask: int) -> str:
    """The bits of the status register, as the processor pushes it; only those of the mask."""
    bits = {
        0x80: "(n & 0x80)",
        0x40: "((v != 0) << 6)",
        0x34: "0x34",  # interrupts are off; a push sets the two bits that no flag has
        0x02: "((z == 0) << 1)",
        0x01: "c",
    }
    return " | ".join(text for bit, text in bits.items() if bit & mask)


def _steps(i: Instruction, stack: int | None) -> Iterator[Step]:
    """What an instruction does, as statements."""
    name, register = i.name, REGISTER.get(i.name[-1], "")
    value = ""
    if i.mode not in ("implied", "relative") and not name.startswith(("ST", "J")):
        value, before = _operand(i)
        yield from before
    match name:
        case "LDA" | "LDX" | "LDY":
            yield Step(value, (register, "n", "z"))
        case "STA" | "STX" | "STY":
            yield from _store(i, register)
        case "TAX" | "TAY" | "TXA" | "TYA":
            yield Step(REGISTER[name[1]], (register, "n", "z"))
        case "TSX":
            yield Step(f"{stack:#04x}", ("x", "n", "z"))
        case "AND" | "ORA" | "EOR":
            operator = {"AND": "&", "ORA": "|", "EOR": "^"}[name]
            yield Step(f"a {operator} {value}", ("a", "n", "z"))
        case "ADC" | "SBC":
            yield Step(value if name == "ADC" else f"{value} ^ 0xff", ("m",))
            yield Step("a + m + c", ("w",))
            yield Step("(a ^ w) & (m ^ w) & 0x80", ("v",))
            yield Step("w >> 8", ("c",))
            yield Step("w & 0xff", ("a", "n", "z"))
        case "CMP" | "CPX" | "CPY":
            register = {"CMP": "a", "CPX": "x", "CPY": "y"}[name]
            yield Step(value, ("m",))
            yield Step(f"int({register} >= m)", ("c",))
            yield Step(f"({register} - m) & 0xff", ("n", "z"))
        case "BIT":
            yield Step(value, ("m", "n"))
            yield Step("m & 0x40", ("v",))
            yield Step("a & m", ("z",))
        case "INX" | "INY" | "DEX" | "DEY":
            yield Step(
                f"({register} {'+' if name[0] == 'I' else '-'} 1) & 0xff", (register, "n", "z")
            )
        case "INC" | "DEC":
            yield Step(f"({value} {'+' if name == 'INC' else '-'} 1) & 0xff", ("w", "n", "z"))
            yield from _store(i, "w")
        case "ASL" | "LSR" | "ROL" | "ROR":
            left = name in ("ASL", "ROL")
            yield Step(value, ("m",))
            shifted = "m << 1 & 0xff" if left else "m >> 1"
            if name[0] == "R":
                shifted += " | c" if left else " | c << 7"
            yield Step(shifted, ("w", "n", "z"))
            yield Step("m >> 7" if left else "m & 1", ("c",))
            if i.mode == "accumulator":
                yield Step("w", ("a",))
            else:
                yield from _store(i, "w")
        case "CLC" | "SEC":
            yield Step("0" if name == "CLC" else "1", ("c",))
        case "PHP":
            yield from _push_status(i, stack)
        case "RTI":
            yield Step(_ram(stack + 1), ("m", "n"))
            yield Step("~m & 0x02", ("z",))
            yield Step("m & 0x40", ("v",))
            yield Step("m & 1", ("c",))
        case "CLD" | "SEI" | "RTS" | "JMP" | "TXS":
            pass  # decimal mode and interrupts are never on; the rest is control flow
        case _ if name in CONDITIONS:
            pass
        case _:
            raise EmulatorError(f"the instruction {i} is not translated")


def _operand(i: Instruction) -> tuple[str, list[Step]]:
    """The operand that an instruction reads, and what must be done before."""
    address = i.operand
    index = i.mode[-1]
    match i.mode:
        case "immediate":
            return f"{address:#04x}", []
        case "accumulator":
            return "a", []
        case "zero" if address >= 0x80:
            return _ram(address), []
        case "zero":
            return f"load(s, g, t, {address:#04x}, {address & 0x3F:#04x})", []
        case "zero,x" | "zero,y":
            return f"load(s, g, t, ({address:#04x} + {index}) & 0xff, {address & 0x3F:#04x})", []
        case "absolute" if address in PORTS:
            return PORTS[address], []
        case "absolute,x" | "absolute,y" if address >= 0xF000:
            crossed = Step(f"t += ({address & 0xFF:#04x} + {index}) >> 8")
            before = [crossed] if address & 0xFF else []
            return f"rom({address & 0x7FF:#05x} + {index})", before
        case "absolute,x" | "absolute,y" if address < 0x100:
            return f"load(s, g, t, {address:#04x} + {index}, 0)", []
        case "(zero),y":
            low = Step(f"{_ram(address)} + y", ("w",))
            far = f"({_ram(address + 1)} << 8) + w"
            return f"load_far(s, g, t, {far})", [low, Step("t += w >> 8")]
    raise EmulatorError(f"the operand of {i} is not translated")


def _store(i: Instruction, value: str) -> Iterator[Step]:
    address = i.operand
    match i.mode:
        case "zero" if address >= 0x80:
            yield Step(f"{_ram(address)} = {value}")
        case "zero":
            yield from _tia_write(address, value)
        case "zero,x" | "zero,y":
            yield Step(f"t = store(s, g, t, ({address:#04x} + {i.mode[-1]}) & 0xff, {value})")
        case "absolute,x" | "absolute,y" if address < 0x100:
            yield Step(f"t = store(s, g, t, {address:#04x} + {i.mode[-1]}, {value})")
        case "absolute" if address in TIMERS:
            yield Step(f"set_timer(s, g, t, {TIMERS[address]}, {value})")
        case _:
            raise EmulatorError(f"the operand of {i} is not translated")


def _tia_write(register: int, value: str) -> Iterator[Step]:
    text = TIA_WRITES.get(register, "pass")  # the others make sound, or are not connected
    if text != "pass":
        yield Step(text.format(value))


def _push_status(i: Instruction, stack: int | None) -> Iterator[Step]:
    """Pong points the stack at the television and so writes the zero flag into an enable bit."""
    if stack is None or not 0x1D <= stack <= 0x1F:
        raise EmulatorError(f"{i} does not push into ENAM0, ENAM1 or ENABL")
    yield from _tia_write(stack, _status(0x02))


def _store_function() -> list[str]:
    """The write to an address that only the running program knows."""
    lines = ["@compiled", "def store(s, g, t, address, value):"]
    lines += ["    if address & 0x80:", "        s[address & 0x7f, g] = value"]
    for register, text in TIA_WRITES.items():
        lines += [f"    elif address == {register:#04x}:", f"        {text.format('value')}"]
    return [*lines, "    return t"]


def _find_changes(routines: list[Translated]) -> None:
    """Which variables a routine, or what it calls, may change."""
    for routine in routines:  # what is called comes first, but for the main program
        for step in _all_steps(routine):
            routine.changes |= step.call.changes if step.call else set(step.targets)
    top = routines[0]
    for step in _all_steps(top):
        if step.call:
            top.changes |= step.call.changes


def _all_steps(routine: Translated) -> Iterator[Step]:
    for rows in routine.steps.values():
        for _, steps in rows:
            yield from steps


def _liveness(routines: list[Translated], after_frame: int) -> bool:
    """A round of working out which variables are used later; whether anything was new."""
    changed = False
    top = routines[0]
    top.wanted = top.live[after_frame]  # the next picture goes on with them
    for routine in routines:
        for start in reversed(list(routine.steps)):
            live = _live_at_end(routine, routine.routine.blocks[start])
            for _, steps in reversed(routine.steps[start]):
                for step in reversed(steps):
                    live, new = _live_before(step, live)
                    changed |= new
            changed |= live != routine.live[start]
            routine.live[start] = live
    return changed


def _live_at_end(routine: Translated, block: Block) -> set[str]:
    """The variables that are used after a block."""
    if not block.targets:
        return set(routine.wanted)
    live = set().union(*(routine.live[target] for target in block.targets))
    if len(block.targets) == 2 and block.instructions:
        live |= set(NAME.findall(CONDITIONS[block.instructions[-1].name][0]))
    return live


def _live_before(step: Step, live: set[str]) -> tuple[set[str], bool]:
    """The variables used from a step on; and whether its call was asked for more than before."""
    if step.call:
        asked = live & step.call.changes
        new = not asked <= step.call.wanted
        step.call.wanted |= asked
        return step.call.takes | (live - step.call.changes), new
    if not step.has_effect and not live & set(step.targets):
        return live, False
    return (live - set(step.targets)) | step.uses, False


def _function(routine: Translated) -> list[str]:
    """The source of a routine."""
    takes = ["s", "g", "t", *sorted(routine.takes)]
    if routine.routine.entry == POWER_ON:
        takes.insert(3, "boot")
    statements = structured(routine.routine)
    body = _indent(_Writer(routine, statements).write(statements))
    return ["@compiled", f"def {routine.name}({', '.join(takes)}):", *body]


class _Writer:
    """Writes the statements of a routine as lines of Python."""

    def __init__(self, routine: Translated, statements: list) -> None:
        self.routine = routine
        self.guarded: set[int] = set()  # targets whose Goto must say so in ``at``
        self._find_guarded(statements)

    def _find_guarded(self, statements: list) -> None:
        out: set[int] = set()
        for statement in statements:
            match statement:
                case If(_, taken, otherwise):
                    self._find_guarded(taken)
                    self._find_guarded(otherwise)
                case Loop(_, body):
                    self._find_guarded(body)
                case Follow(target, body):
                    if out != {target}:
                        self.guarded |= out
                    self._find_guarded(body)
                    out -= {target}
            out |= ways_out([statement])

    def write(self, statements: list, cycles: int = 0, loop: Loop | None = None) -> list[str]:
        """The lines of statements that begin so many cycles after ``t``, maybe in a loop."""
        lines: list[str] = []
        out: set[int] = set()
        for statement in statements:
            match statement:
                case Code(block):
                    more, cycles = self._code(block, cycles)
                    lines += more
                case If():
                    lines += self._branch(statement, cycles, loop)
                    cycles = 0
                case Goto(target):
                    lines += [*_tick(cycles), *self._goto(target, loop)]
                case Loop(_, body):
                    inside = _indent(self.write(body, 0, statement))
                    lines += [*_tick(cycles), "while True:", *inside]
                    cycles = 0
                case Follow(target, body):
                    inner = self.write(body, 0, loop)
                    alone = out == {target}
                    lines += inner if alone else [f"if at == {target:#06x}:", *_indent(inner)]
                    out -= {target}
                case End():
                    lines += [*_tick(cycles), "return " + ", ".join(["t", *self.routine.returns])]
            out |= ways_out([statement])
        return lines

    def _code(self, block: Block, cycles: int) -> tuple[list[str], int]:
        """The lines of a block, and the cycles since ``t`` at its end."""
        live = _live_at_end(self.routine, block)
        kept: list[tuple[Instruction | None, list[Step]]] = []
        for instruction, steps in reversed(self.routine.steps[block.start]):
            used: list[Step] = []
            for step in reversed(steps):
                alive = tuple(name for name in step.targets if name in live)
                if alive or step.has_effect:
                    used.insert(0, step._replace(targets=alive))
                live, _ = _live_before(step, live)
            kept.insert(0, (instruction, used))
        lines: list[str] = []
        for instruction, used in kept:
            cycles += instruction.cycles if instruction else 0
            for number, step in enumerate(used):
                if step.needs_time:
                    lines += _tick(cycles)
                    cycles = 0
                lines.append(_line(step) + (f"  # {instruction}" if number == 0 else ""))
        return lines, cycles

    def _branch(self, branch: If, cycles: int, loop: Loop | None) -> list[str]:
        """A branch; one that is taken costs a cycle, and another one where it leaves its page."""
        cycles_taken, condition, opposite = cycles, "boot", "not boot"
        if branch.block.start != POWER_ON:
            instruction = branch.block.instructions[-1]
            condition, opposite = CONDITIONS[instruction.name]
            cycles_taken += 1 + (instruction.operand >> 8 != instruction.following >> 8)
        taken = _indent(self.write(branch.taken, cycles_taken, loop))
        otherwise = _indent(self.write(branch.otherwise, cycles, loop))
        if not taken:
            return [f"if {opposite}:", *otherwise]
        return [f"if {condition}:", *taken, *(["else:", *otherwise] if otherwise else [])]

    def _goto(self, target: int, loop: Loop | None) -> list[str]:
        if loop is not None and target == loop.header:
            return ["continue"]
        lines = [f"at = {target:#06x}"] if target in self.guarded else []
        if loop is not None and target in ways_out([loop]):
            lines.append("break")
        return lines


def _indent(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def _tick(cycles: int) -> list[str]:
    return [f"t += {cycles}"] if cycles else []


def _line(step: Step) -> str:
    if step.call is None:
        return " = ".join([*step.targets, step.text])
    arguments = ["s", "g", "t", *sorted(step.call.takes)]
    results = ["t", *step.call.returns]
    return f"{', '.join(results)} = {step.call.name}({', '.join(arguments)})"
