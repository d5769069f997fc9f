"""The instructions of the processor: a 6507, a 6502 with fewer address lines.

An instruction is one byte that says what to do and how to find the operand, followed by up to two
bytes of operand. Its cycles depend on both.

Source: MOS Technology, MCS6500 Microcomputer Family Programming Manual, 1976, appendix B.
"""

import re
from typing import NamedTuple

# How an operand is found: its bytes, and the cycles of an instruction that reads it. At run time,
# crossing a page of 256 bytes or taking a branch costs another cycle.
MODES = {
    "implied": (0, 2),
    "accumulator": (0, 2),
    "immediate": (1, 2),
    "zero": (1, 3),
    "zero,x": (1, 4),
    "(zero),y": (1, 5),
    "relative": (1, 2),
    "absolute": (2, 4),
    "absolute,x": (2, 4),
    "absolute,y": (2, 4),
    "(absolute)": (2, 5),
}
SPECIAL_CYCLES = {"BRK": 7, "JSR": 6, "PHP": 3, "RTI": 6, "RTS": 6}

# Opcodes by operand mode, for the instructions that Pong and the tests use.
OPCODES = {
    "implied": "00 BRK 08 PHP 18 CLC 38 SEC 40 RTI 60 RTS 78 SEI 88 DEY 8A TXA 98 TYA 9A TXS "
    "A8 TAY AA TAX BA TSX C8 INY CA DEX D8 CLD E8 INX",
    "accumulator": "0A ASL 2A ROL 4A LSR 6A ROR",
    "immediate": "09 ORA 29 AND 49 EOR 69 ADC A0 LDY A2 LDX A9 LDA C0 CPY C9 CMP E0 CPX E9 SBC",
    "zero": "05 ORA 24 BIT 25 AND 45 EOR 65 ADC 84 STY 85 STA 86 STX A4 LDY A5 LDA A6 LDX C5 CMP "
    "C6 DEC E4 CPX E5 SBC E6 INC",
    "zero,x": "35 AND 75 ADC 95 STA B4 LDY B5 LDA F6 INC",
    "(zero),y": "B1 LDA",
    "relative": "10 BPL 30 BMI 50 BVC 70 BVS 90 BCC B0 BCS D0 BNE F0 BEQ",
    "absolute": "0D ORA 20 JSR 2C BIT 4C JMP 8D STA AD LDA",
    "absolute,x": "3D AND 7D ADC BD LDA",
    "absolute,y": "39 AND 79 ADC 99 STA B9 LDA",
    "(absolute)": "6C JMP",
}
TABLE = {
    int(opcode, 16): (name, mode)
    for mode, pairs in OPCODES.items()
    for opcode, name in zip(pairs.split()[::2], pairs.split()[1::2], strict=True)
}


class Instruction(NamedTuple):
    """An instruction of the program."""

    address: int
    name: str
    mode: str  # how the operand is found
    operand: int  # a number or an address, such as a branch's target
    cycles: int  # at least
    following: int  # the address of the next instruction

    def __str__(self) -> str:
        if self.mode in ("implied", "accumulator"):
            return f"{self.address:04X} {self.name}"
        number = f"{self.operand:0{4 if self.operand > 0xFF else 2}X}"
        number = "#" * (self.mode == "immediate") + number
        return f"{self.address:04X} {self.name} {re.sub('[a-z]{2,}', number, self.mode)}"


def decode(rom: bytes, address: int) -> Instruction:
    """Return the instruction at an address; raise KeyError if ``OPCODES`` lacks it."""
    opcode, low, high = (rom[(address + i) % len(rom)] for i in range(3))
    name, mode = TABLE[opcode]
    size, cycles = MODES[mode]
    operand = low | high << 8 if size == 2 else low
    following = address + 1 + size
    if mode == "relative":
        operand = following + low - (256 if low > 127 else 0)
    if name == "BRK":
        following = address + 2  # a byte for the programmer's use comes after it
    cycles = SPECIAL_CYCLES.get(name, cycles)
    if (name, mode) == ("JMP", "absolute"):
        cycles = 3  # it reads nothing there
    if name in ("INC", "DEC"):
        cycles += 2  # to write it back
    if name == "STA" and mode == "absolute,y":
        cycles += 1  # a write always waits for the carry into the high byte
    return Instruction(address, name, mode, operand, cycles, following)
