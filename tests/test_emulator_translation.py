"""The parts of the emulator, each by itself, against counts by hand, brute force and OpenCV."""

from typing import Any

from pong_emulator import bus, state, tia
from pong_emulator.control_flow import Program
from pong_emulator.errors import EmulatorError
from pong_emulator.preprocessing import WEIGHTS, shrink
from pong_emulator.riot import set_timer, timer
from pong_emulator.translate import translate

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

BYTE = st.integers(0, 255)


def program(code: str, elsewhere: str = "") -> Program:
    """A cartridge whose program ends its picture with STA 00 and then begins again.

    ``code`` is in hexadecimal, and so is what lies at F1FF.
    """
    rom = bytearray(2048)
    parts = {0: code + "85 00 4C 00 F0", 0x1FF: elsewhere}
    for first, text in {**parts, 0x7FC: "00 F0 00 F7", 0x700: "40"}.items():  # BRK leads to an RTI
        data = bytes.fromhex(text)
        rom[first : first + len(data)] = data
    return Program(bytes(rom), 0xF000 + len(bytes.fromhex(code)), {}, set())


def run(cartridge: Program, before: bytes) -> tuple[np.ndarray, int]:
    """RAM (128,) after the first picture, with what it began with, and cycles."""

    def rom(address: int) -> int:
        return cartridge.rom[address & 0x7FF]

    names: dict[str, Any] = {"compiled": lambda function: function, "rom": rom}
    names["load"] = bus.load.py_func
    names["load_far"] = lambda s, g, t, address: rom(address)
    exec(translate(cartridge), names)
    memory = np.zeros((state.FIELDS, 1), np.int64)
    memory[: len(before), 0] = [*before]
    frame = names["emulated_frame"]
    returned = frame(memory, 0, 0, True, *[0] * (frame.__code__.co_argcount - 4))
    return memory[:128, 0], int(np.ravel(returned)[0])


@pytest.mark.parametrize(
    ("code", "elsewhere", "before", "after", "cycles"),
    [
        # Nested loops. LDX #3; LDY #4; DEY; BNE to DEY; DEX; BNE to LDY; STX 80
        ("A2 03 A0 04 88 D0 FD CA D0 F8 86 80", "", "4D", {0x80: 0}, 2 + 3 * 23 + 2 * 3 + 2 + 3),
        # Ways that meet behind a branch. LDX 80; BEQ to (LDA #11; JMP to STA); LDA #22; STA 81
        ("A6 80 F0 05 A9 22 4C 0B F0 A9 11 85 81", "", "00", {0x81: 0x11}, 3 + 3 + 2 + 3),
        ("A6 80 F0 05 A9 22 4C 0B F0 A9 11 85 81", "", "01", {0x81: 0x22}, 3 + 2 + 2 + 3 + 3),
        # An address in the next page costs a cycle. LDY 82; LDA (80),y; STA 83
        ("A4 82 B1 80 85 83", "AB CD", "F0 F1 0F", {0x83: 0xAB}, 3 + 5 + 3),
        ("A4 82 B1 80 85 83", "AB CD", "F0 F1 10", {0x83: 0xCD}, 3 + 6 + 3),
        # A call leaves the address of its last byte. LDX #FF; TXS; JSR F1FF; STA 80; LDA #07; RTS
        ("A2 FF 9A 20 FF F1 85 80", "A9 07 60", "", {0x80: 7, 0xFF: 0xF0, 0xFE: 5}, 18 + 3),
    ],
)
def test_programs_leave_and_take_what_was_counted_by_hand(code, elsewhere, before, after, cycles):
    ram, taken = run(program(code, elsewhere), bytes.fromhex(before))
    assert {address: ram[address - 0x80] for address in after} == after
    assert taken == cycles + 3  # STA 00, which ends the picture


def test_flags_that_nobody_reads_are_dropped() -> None:
    frame = translate(program("A2 FF 9A 20 FF F1 85 80", "A9 07 60")).split("def sub_F1FF")[1]
    assert "return t, a" in frame
    assert not {"n", "z", "v", "c"} & {word for line in frame.splitlines() for word in line.split()}


@given(a=BYTE, b=BYTE, carry=st.booleans(), subtract=st.booleans())
@settings(max_examples=60, deadline=None)
def test_arithmetic_and_comparison(a: int, b: int, carry: bool, subtract: bool) -> None:
    # CLC or SEC; LDA 80; ADC or SBC 81; STA 82; LDX #0; BVC over INX; STX 83; LDA #0; ROL; STA 84
    code = f"{'38' if carry else '18'} A5 80 {'E5' if subtract else '65'} 81 85 82 A2 00 50 01 E8"
    code += "86 83 A9 00 2A 85 84"
    # LDA 80; CMP 81; LDA #0; ROL; STA 85
    # LDX #0; LDA 80; CMP 81; BNE over INX; STX 86; LDX #0; CMP 81; BPL over DEX; STX 87
    code += "A5 80 C5 81 A9 00 2A 85 85"
    code += "A2 00 A5 80 C5 81 D0 01 E8 86 86 A2 00 C5 81 10 01 CA 86 87"
    ram, _ = run(program(code), bytes([a, b]))
    operand = 255 - b if subtract else b
    total = a + operand + carry
    signed = sum(v - 256 if v > 127 else v for v in (a, operand)) + carry
    assert [*ram[2:5]] == [total % 256, not -128 <= signed <= 127, total > 255]
    assert [*ram[5:8]] == [a >= b, a == b, 255 if (a - b) & 0x80 else 0]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("08", "PHP does not push into"),  # with the stack in RAM
        ("0E 00 F0", None),  # ASL absolute is not among Pong's instructions
        ("8D 00 F0", "the operand of F000 STA F000 is not translated"),
        # A loop: LDA 80; BEQ to DEX; INX; DEX; BNE to INX
        ("A5 80 F0 01 E8 CA D0 FC", r"F00[45] is entered at two places"),
    ],
)
def test_what_is_not_translated_is_said(code: str, message: str | None) -> None:
    with pytest.raises(EmulatorError if message else KeyError, match=message):
        translate(program(code))


@pytest.mark.parametrize(("shift", "period"), [(3, 8), (6, 64)])
def test_the_timer_counts_down_slowly_and_after_zero_every_cycle(shift: int, period: int) -> None:
    memory = np.zeros((state.FIELDS, 1), np.int64)
    set_timer.py_func(memory, 0, 100, shift, 2)
    read = [int(timer.py_func(memory, 0, t)) for t in range(101, 101 + 2 * period + 4)]
    assert read == [1] * period + [0] * period + [255, 254, 253, 252]


@given(
    st.integers(0, 60), st.integers(0, 700), st.integers(0, 159), st.integers(0, 3),
    st.tuples(BYTE, BYTE, st.integers(-9, 9), st.integers(-9, 9)), st.tuples(BYTE, BYTE, BYTE),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_collisions_are_those_of_pixels(begin, length, ball, width, players, playfield, reflected):
    s = np.zeros((state.FIELDS, 2), np.int32, order="F")
    begin += tia.FIRST_CLOCK - 30
    players = (*players[:2], *((ball + near) % tia.WIDTH for near in players[2:]))
    s[state.COLLIDED], s[state.BALL], s[state.POSBL] = begin, 2, ball
    s[state.CTRLPF] = reflected | width << 4
    s[state.GRP0], s[state.GRP1], s[state.POSP0], s[state.POSP1] = np.array(players)[:, None] & 255
    s[state.PF0], s[state.PF1], s[state.PF2] = np.array(playfield)[:, None]
    pf0, pf1, pf2 = (f"{number:08b}" for number in playfield)
    left = pf0[3::-1] + pf1 + pf2[::-1]  # 20 blocks: PF0 has four, and two are mirrored
    blocks = left + (left[::-1] if reflected else left)
    pictures = ["".join(block * 4 for block in blocks)]
    for bits, place in zip(players[:2], players[2:], strict=True):
        line = f"{bits:08b}".ljust(tia.WIDTH, "0")
        pictures.append(line[-place:] + line[:-place])
    clocks = range(max(begin, tia.FIRST_CLOCK), begin + length)
    seen = [x for clock in clocks if (x := clock % tia.LINE - tia.BLANK) >= 0]
    touched = [x for x in seen if (x - ball) % tia.WIDTH < 1 << width]
    tia.collide(s, 0, begin + length)
    found = s[[state.CXPF, state.CXP0, state.CXP1], 0] != 0
    assert found.tolist() == [any(picture[x] == "1" for x in touched) for picture in pictures]
    assert s[state.COLLIDED, 0] == begin + length


@given(st.integers(0, 2**32 - 1), st.integers(2, 256))
@settings(max_examples=25, deadline=None)
def test_preprocessing_is_that_of_opencv(seed: int, greys: int) -> None:
    random = np.random.default_rng(seed)
    palette = random.integers(256, size=greys, dtype=np.uint8)
    a, b = palette[random.integers(greys, size=(2, tia.LINES, tia.WIDTH))]
    expected = cv2.resize(np.maximum(a, b), (84, 84), interpolation=cv2.INTER_AREA)
    small, lines = np.zeros((84, 84), np.uint8), np.arange(tia.LINES, dtype=np.int32)
    shrink(a, lines, b, lines, (0, 84), np.zeros(tia.WIDTH + 2, np.int32), small)
    difference = small.astype(int) - expected
    assert np.abs(difference).max() <= 1
    # OpenCV adds up fractions of 32 bits: where the exact mean lies half way between two greys, its
    # sum may be on either side. The sums of the pixels, times what is covered of them in 1/200:
    columns = np.maximum(a, b).repeat(21, axis=1).reshape(210, 84, 40).sum(2)
    exact = columns.repeat(2, axis=0).reshape(84, 5, 84).sum(1)
    assert not difference[exact % WEIGHTS != WEIGHTS // 2].any()
