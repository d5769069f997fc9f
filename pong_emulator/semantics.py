"""Instructions as statements of Python.

Registers become variables (``a``, ``x``, ``y``), and so do flags: bit 7 of ``n`` is set if
negative, ``z`` is 0 for zero, ``c`` is 0 or 1, ``v`` is not 0 after an overflow. ``m`` is an
operand, ``w`` a result before it is cut to eight bits. ``t`` is the processor's cycle in this
picture, ``s`` the state, ``g`` the game.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from .errors import EmulatorError
from .instructions import Instruction
from .memory_map import PORTS, TIA_WRITES, TIMERS

NAME = re.compile(r"\b[axynzcvmw]\b")  # a variable

REGISTER = {"A": "a", "X": "x", "Y": "y"}
CONDITIONS = {
    "BPL": "n & 0x80 == 0",
    "BMI": "n & 0x80 != 0",
    "BVC": "v == 0",
    "BVS": "v != 0",
    "BCC": "c == 0",
    "BCS": "c != 0",
    "BNE": "z != 0",
    "BEQ": "z == 0",
}


class Step(NamedTuple):
    """A statement: ``text``, whose value goes to ``targets`` if there are any."""

    text: str
    targets: tuple[str, ...] = ()
    call: Any = None  # a ``Translated`` routine

    @property
    def has_effect(self) -> bool:
        return not self.targets or self.call is not None

    @property
    def uses(self) -> set[str]:
        return self.call.takes if self.call else set(NAME.findall(self.text))

    @property
    def needs_time(self) -> bool:
        return self.call is not None or re.search(r"\bt\b(?! \+=)", self.text) is not None


def return_address(instruction: Instruction, stack: int) -> Iterator[Step]:
    """Yield what a call pushes onto the stack, which is visible in RAM."""
    address = instruction.following - (1 if instruction.name == "JSR" else 0)
    yield Step(f"{_ram(stack)} = {address >> 8:#04x}")
    yield Step(f"{_ram(stack - 1)} = {address & 0xFF:#04x}")
    if instruction.name == "BRK":
        yield Step(f"{_ram(stack - 2)} = {_status(0xFF)}")


def _ram(address: int) -> str:
    return f"s[{address & 0x7F:#04x}, g]"


def _status(mask: int) -> str:
    bits = {
        0x80: "(n & 0x80)",
        0x40: "((v != 0) << 6)",
        0x34: "0x34",  # interrupts are off; a push sets the two bits that no flag has
        0x02: "((z == 0) << 1)",
        0x01: "c",
    }
    return " | ".join(text for bit, text in bits.items() if bit & mask)


def meaning(i: Instruction, stack: int | None) -> Iterator[Step]:
    """Yield what an instruction does, as statements."""
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
            yield Step(shifted, ("a", "n", "z"))
            yield Step("m >> 7" if left else "m & 1", ("c",))
        case "CLC" | "SEC":
            yield Step("0" if name == "CLC" else "1", ("c",))
        case "PHP":
            yield from _push_status(i, stack)
        case "RTI":
            assert stack is not None
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
        case "zero,x":
            return f"load(s, g, t, ({address:#04x} + x) & 0xff, {address & 0x3F:#04x})", []
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
        case "zero,x":
            yield Step(f"t = store(s, g, t, ({address:#04x} + x) & 0xff, {value})")
        case "absolute,x" | "absolute,y" if address < 0x100:
            yield Step(f"t = store(s, g, t, {address:#04x} + {i.mode[-1]}, {value})")
        case "absolute" if address in TIMERS:
            yield Step(f"set_timer(s, g, t, {TIMERS[address]}, {value})")
        case _:
            raise EmulatorError(f"the operand of {i} is not translated")


def _tia_write(register: int, value: str) -> Iterator[Step]:
    if register in TIA_WRITES:  # Pong's first game needs no others
        yield Step(TIA_WRITES[register].format(value))


def _push_status(i: Instruction, stack: int | None) -> Iterator[Step]:
    """Yield a PHP: Pong points the stack at the television, to write Z into an enable bit."""
    if stack is None or not 0x1D <= stack <= 0x1F:
        raise EmulatorError(f"{i} does not push into ENAM0, ENAM1 or ENABL")
    yield from _tia_write(stack, _status(0x02))
