"""The translation: from machine code to Python functions that do the same.

``semantics.py`` has the statements of every instruction; this file puts them together. The cycle
``t`` is updated only before a statement that needs it. Unused values are neither computed nor
passed between routines, so most flags vanish. A routine is translated once per depth of the stack,
so addresses on the stack are constants, too.

Where a block leads to one of several places further down, ``at`` says to which.
"""

from itertools import chain

from .control_flow import (
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
    Structure,
    find_routines,
    ways_out,
)
from .errors import EmulatorError
from .instructions import Instruction
from .memory_map import store_function
from .semantics import CONDITIONS, NAME, Step, meaning, return_address


class Translated:
    """A routine at a depth of the stack: the steps of its blocks, and the variables they use."""

    def __init__(self, routine: Routine, stack: int | None) -> None:
        self.routine, self.stack = routine, stack
        self.name = f"sub_{routine.entry:04X}_{stack:02X}"
        if routine.entry == POWER_ON:
            self.name = "emulated_frame"
        self.steps: dict[int, list[tuple[Instruction | None, list[Step]]]] = {}
        self.live: dict[int, set[str]] = {start: set() for start in routine.blocks}  # on entry
        self.wanted: set[str] = set()  # changed variables that its callers use
        self.changes: set[str] = set()

    @property
    def takes(self) -> set[str]:
        return self.live[self.routine.entry]

    @property
    def arguments(self) -> list[str]:
        boot = ["boot"] * (self.routine.entry == POWER_ON)
        return ["s", "g", "t", *boot, *sorted(self.takes)]

    @property
    def results(self) -> list[str]:
        return ["t", *sorted(self.wanted & self.changes)]


def translate(program: Program) -> str:
    """Return the source of a module with the function ``emulated_frame(s, g, t, boot, ...)``.

    It needs the names of ``bus.py``, ``tia.py``, ``riot.py`` and ``state.py``. ``emulated_frame``
    runs game ``g`` of the state ``s``, int32 (fields, games), until the next picture is complete,
    from the last one, or from power-on if ``boot``. It returns ``t`` and the registers that the
    next call needs.

    Raises:
        EmulatorError: the program does something that this translation does not know.
    """
    main, subroutines = find_routines(program)
    routines: dict[tuple[int, int | None], Translated] = {}  # each after those that it calls
    top = Translated(main, 0xFF)
    _translate_blocks(top, program, subroutines, routines)
    _find_changes([top, *routines.values()])
    after_picture = top.routine.blocks[POWER_ON].targets[1]
    while _liveness([top, *routines.values()], after_picture):
        pass
    lines = store_function()
    for routine in (*routines.values(), top):
        statements = Structure(routine.routine).statements(routine.routine.entry)
        lines += ["", "", "@compiled", f"def {routine.name}({', '.join(routine.arguments)}):"]
        lines += indent(Writer(routine, statements).write(statements))
    return "\n".join(lines) + "\n"


def _translate_blocks(
    done: Translated, program: Program, subroutines: dict[int, Routine], routines: dict
) -> None:
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
                assert stack is not None
                entry = program.interrupt if instruction.name == "BRK" else instruction.operand
                pushed = return_address(instruction, stack)
                depth = stack - (2 if instruction.name == "JSR" else 3)
                steps.append((instruction, [*pushed, Step("", (), called(entry, depth))]))
            else:
                steps.append((instruction, list(meaning(instruction, stack))))
            stack = _stack_after(instruction, previous, stack)
            previous = instruction
        if block.tail_call is not None:
            steps.append((None, [Step("", (), called(block.tail_call, stack))]))
        for target in block.targets:
            if stacks.setdefault(target, stack) != stack:
                raise EmulatorError(f"the stack at {target:04X} may be at two places")
            waiting.append(target)


def _stack_after(
    instruction: Instruction, previous: Instruction | None, stack: int | None
) -> int | None:
    if instruction.name == "PHP":
        return None if stack is None else stack - 1
    if instruction.name == "TXS":
        if previous is not None and (previous.name, previous.mode) == ("LDX", "immediate"):
            return previous.operand
        return None  # restored, and only used to return
    return stack


def _find_changes(routines: list[Translated]) -> None:
    for routine in [*routines[1:], routines[0]]:  # what is called comes first
        for _, steps in chain.from_iterable(routine.steps.values()):
            for step in steps:
                routine.changes |= step.call.changes if step.call else set(step.targets)


def _liveness(routines: list[Translated], after_picture: int) -> bool:
    """Run one round of liveness analysis; return whether anything was new."""
    changed = False
    top = routines[0]
    top.wanted = top.live[after_picture]  # the next picture uses them
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
    if not block.targets:
        return set(routine.wanted)
    live = set().union(*(routine.live[target] for target in block.targets))
    if len(block.targets) == 2 and block.instructions:
        live |= set(NAME.findall(CONDITIONS[block.instructions[-1].name]))
    return live


def _live_before(step: Step, live: set[str]) -> tuple[set[str], bool]:
    """Return the variables used from a step on, and whether its call must return more of them."""
    if step.call:
        asked = live & step.call.changes
        new = not asked <= step.call.wanted
        step.call.wanted |= asked
        return step.call.takes | (live - step.call.changes), new
    if not step.has_effect and not live & set(step.targets):
        return live, False
    return (live - set(step.targets)) | step.uses, False


class Writer:
    """Write the statements of a routine as lines of Python."""

    def __init__(self, routine: Translated, statements: list) -> None:
        self.routine = routine
        self.guarded: set[int] = set()  # targets whose Goto must set ``at``
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
        """Return the lines of statements inside ``loop``; ``t`` still lacks ``cycles``."""
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
                    inside = indent(self.write(body, 0, statement))
                    lines += [*_tick(cycles), "while True:", *inside]
                    cycles = 0
                case Follow(target, body):
                    inner = self.write(body, 0, loop)
                    alone = out == {target}
                    lines += inner if alone else [f"if at == {target:#06x}:", *indent(inner)]
                    out -= {target}
                case End():
                    lines += [*_tick(cycles), "return " + ", ".join(self.routine.results)]
            out |= ways_out([statement])
        return lines

    def _code(self, block: Block, cycles: int) -> tuple[list[str], int]:
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
        """Return a branch; taking it costs a cycle, and another one if it leaves its page."""
        cycles_taken, condition = cycles, "boot"
        if branch.block.start != POWER_ON:
            instruction = branch.block.instructions[-1]
            condition = CONDITIONS[instruction.name]
            cycles_taken += 1 + (instruction.operand >> 8 != instruction.following >> 8)
        taken = indent(self.write(branch.taken, cycles_taken, loop) or ["pass"])
        otherwise = indent(self.write(branch.otherwise, cycles, loop))
        return [f"if {condition}:", *taken, *(["else:", *otherwise] if otherwise else [])]

    def _goto(self, target: int, loop: Loop | None) -> list[str]:
        if loop is not None and target == loop.header:
            return ["continue"]
        lines = [f"at = {target:#06x}"] if target in self.guarded else []
        if loop is not None and target in ways_out([loop]):
            lines.append("break")
        return lines


def indent(lines: list[str]) -> list[str]:
    """Return indented lines."""
    return ["    " + line for line in lines]


def _tick(cycles: int) -> list[str]:
    return [f"t += {cycles}"] if cycles else []


def _line(step: Step) -> str:
    if step.call is None:
        return " = ".join([*step.targets, step.text])
    call = step.call
    return f"{', '.join(call.results)} = {call.name}({', '.join(call.arguments)})"
