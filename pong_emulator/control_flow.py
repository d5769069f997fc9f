"""The program's control flow: from jumps to blocks, and from blocks to if and while.

Between the jumps lie *blocks*, which run from top to bottom. A block *dominates* another one if
every way to that one leads through it. A block belongs into a branch if only that branch leads to
it, and behind its dominator if several ways meet in it. A jump back to a dominating block is a
loop.

Source: Ramsey, Beyond Relooper, ICFP 2022, doi:10.1145/3547621.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .errors import EmulatorError
from .instructions import Instruction, decode

POWER_ON = 0  # the block before the first, which asks whether the Atari was just switched on
BRANCHES = ("BPL", "BMI", "BVC", "BVS", "BCC", "BCS", "BNE", "BEQ")


class Program(NamedTuple):
    """A ROM, and facts about it that its jumps do not tell."""

    rom: bytes
    picture_end: int  # the instruction that completes a picture
    indirect: dict[int, int]  # targets of the indirect jumps, by their address
    always: set[int]  # branches that are always taken

    def word(self, address: int) -> int:
        low, high = (self.rom[(address + i) % len(self.rom)] for i in (0, 1))
        return low | high << 8

    @property
    def reset(self) -> int:
        return self.word(0xFFFC)

    @property
    def interrupt(self) -> int:
        """The address that BRK leads to, in Pong a subroutine of its own."""
        return self.word(0xFFFE)


@dataclass
class Block:
    """Instructions that run from top to bottom, and where they lead.

    ``targets`` has two addresses after a branch (taken, not taken), one after a jump, none at the
    end of a routine or a picture. ``tail_call`` is the routine that this one ends with.
    """

    start: int
    instructions: list[Instruction] = field(default_factory=list)
    targets: tuple[int, ...] = ()
    tail_call: int | None = None


@dataclass
class Routine:
    """A subroutine, or the main program: the blocks that its entry reaches without a call."""

    entry: int
    blocks: dict[int, Block]


# A routine in structured form is a list of these statements.


class Code(NamedTuple):
    """The instructions of a block."""

    block: Block


class Goto(NamedTuple):
    """Continue with the block at this address."""

    target: int


class If(NamedTuple):
    """The statements after a branch that is taken, and after one that is not."""

    block: Block
    taken: list
    otherwise: list


class Loop(NamedTuple):
    """Repeat on a ``Goto`` to the header; every other ``Goto`` leaves the loop."""

    header: int
    body: list


class Follow(NamedTuple):
    """The statements that earlier ones reach by a ``Goto`` to this address; others skip them."""

    target: int
    body: list


class End(NamedTuple):
    """Return from the routine, or complete the picture."""

    block: Block


def find_routines(program: Program) -> tuple[Routine, dict[int, Routine]]:
    """Return the main program, and the subroutines by their entry."""
    entries = {program.interrupt}
    seen: set[int] = set()
    waiting = [program.reset, program.interrupt, *program.indirect.values()]
    while waiting:  # look at every instruction once
        address = waiting.pop()
        if address in seen:
            continue
        seen.add(address)
        instruction = decode(program.rom, address)
        if instruction.name == "JSR":
            entries.add(instruction.operand)
            waiting.append(instruction.operand)
        waiting += _next_addresses(program, instruction)
    after_picture = decode(program.rom, program.picture_end).following
    main = _routine(program, program.reset, entries, after_picture)
    main.entry = POWER_ON
    main.blocks[POWER_ON] = Block(POWER_ON, targets=(program.reset, after_picture))
    return main, {entry: _routine(program, entry, entries - {entry}) for entry in sorted(entries)}


def _next_addresses(program: Program, instruction: Instruction) -> list[int]:
    if instruction.address in program.always:
        return [instruction.operand]
    if instruction.name in BRANCHES:
        return [instruction.operand, instruction.following]
    if instruction.name == "JMP":
        return [program.indirect.get(instruction.address, instruction.operand)]
    if instruction.name in ("RTS", "RTI"):
        return []
    return [instruction.following]


def _routine(program: Program, entry: int, others: set[int], *entries: int) -> Routine:
    """Return the code that the entries reach, in blocks; ``others`` enter other routines."""
    code: dict[int, Instruction] = {}
    starts, waiting = {entry, *entries}, [entry, *entries]
    while waiting:
        address = waiting.pop()
        if address in code or address in others:
            continue
        code[address] = instruction = decode(program.rom, address)
        if address == program.picture_end:
            continue
        following = _next_addresses(program, instruction)
        waiting += following
        if following != [instruction.following]:
            starts.update(following)
    blocks: dict[int, Block] = {}
    for start in sorted(starts - others):
        block = blocks[start] = Block(start)
        address = start
        while True:
            block.instructions.append(code[address])
            if address == program.picture_end:
                break
            following = _next_addresses(program, code[address])
            if following == [code[address].following] and following[0] not in starts | others:
                address = following[0]
                continue
            if len(following) == 1 and following[0] in others:
                block.tail_call = following[0]
            else:
                block.targets = tuple(following)
            break
        for target in set(block.targets) & others:  # a branch to another routine
            blocks[target] = Block(target, tail_call=target)
    return Routine(entry, blocks)


class Structure:
    """Dominators and loops of a routine, and the statements that follow from them.

    Raises EmulatorError if a loop is entered at two places, which if and while cannot express.
    """

    def __init__(self, routine: Routine) -> None:
        self.blocks = routine.blocks
        order = list(_postorder(routine.blocks, routine.entry, set()))[::-1]
        self.rank = {start: number for number, start in enumerate(order)}
        self.before: dict[int, list[int]] = {start: [] for start in order}
        for start in order:
            for target in self.blocks[start].targets:
                self.before[target].append(start)
        self.dominators = self._dominators(order)
        self.loops = self._loops(order)
        self.children: dict[int, list[int]] = {start: [] for start in order}
        for start in order[1:]:
            self.children[self._place(start)].append(start)

    def _dominators(self, order: list[int]) -> dict[int, set[int]]:
        dominators = {start: set(order) for start in order} | {order[0]: {order[0]}}
        before: dict[int, set[int]] = {}
        while before != dominators:
            before = dominators.copy()
            for start in order[1:]:
                ways = (dominators[block] for block in self.before[start])
                dominators[start] = set.intersection(*ways) | {start}
        return dominators

    def _loops(self, order: list[int]) -> dict[int, set[int]]:
        """Return the blocks of every loop, by its header; the outer ones first."""
        loops: dict[int, set[int]] = {}
        for start in order:
            for target in self.blocks[start].targets:
                if self.rank[target] > self.rank[start]:
                    continue
                if target not in self.dominators[start]:
                    raise EmulatorError(f"the loop at {target:04X} is entered at two places")
                body = loops.setdefault(target, {target})
                waiting = [start]
                while waiting:
                    block = waiting.pop()
                    if block not in body:
                        body.add(block)
                        waiting += self.before[block]
        return dict(sorted(loops.items(), key=lambda item: self.rank[item[0]]))

    def _place(self, start: int) -> int:
        """Return the block that this one belongs to: its dominator, or the loop that it follows."""
        above = max(self.dominators[start] - {start}, key=self.rank.__getitem__)
        for header, body in self.loops.items():
            if above in body and start not in body:
                return header
        return above

    def statements(self, start: int) -> list:
        body = self.loops.get(start, {start})
        children = sorted(self.children[start], key=self.rank.__getitem__)
        inside = [c for c in children if start not in self.loops or c in body]
        joins = [c for c in inside if sum(self.rank[b] < self.rank[c] for b in self.before[c]) > 1]
        block = self.blocks[start]
        alone = set(inside) - set(joins)
        statements: list = [Code(block), *self._leave(block, alone)]
        statements += [Follow(c, self.statements(c)) for c in joins]
        if start not in self.loops:
            return statements
        behind = [Follow(c, self.statements(c)) for c in children if c not in inside]
        return [Loop(start, statements), *behind]

    def _leave(self, block: Block, alone: set[int]) -> list:
        ways = [self.statements(t) if t in alone else [Goto(t)] for t in block.targets]
        if len(ways) == 2:
            return [If(block, ways[0], ways[1])]
        return ways[0] if ways else [End(block)]


def _postorder(blocks: dict[int, Block], start: int, seen: set[int]) -> Iterator[int]:
    seen.add(start)
    for target in blocks[start].targets:
        if target not in seen:
            yield from _postorder(blocks, target, seen)
    yield start


def ways_out(statements: list) -> set[int]:
    """Return the targets of every ``Goto`` that leads out of these statements."""
    out: set[int] = set()
    for statement in statements:
        match statement:
            case Goto(target):
                out.add(target)
            case If(_, taken, otherwise):
                out |= ways_out(taken) | ways_out(otherwise)
            case Loop(header, body):
                out |= ways_out(body) - {header}
            case Follow(target, body):
                out = (out - {target}) | ways_out(body)
    return out
