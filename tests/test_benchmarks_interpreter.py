"""The translation with switches, which is measured beside the structured one."""

import pytest
from test_emulator_translation import NESTED, program, run

from benchmarks.interpreter import switch_source
from emulator.control_flow import Program

# Calls of a routine that branches, at two depths of the stack: LDX #FF; TXS; JSR F100; JSR F110;
# STA 80. F100: DEC 81; BNE over (LDA #07; RTS); INC 82; RTS. F110: JSR F100; LDA #08; RTS
CALLS = program(
    "A2 FF 9A 20 00 F1 20 10 F1 85 80",
    xF100="C6 81 D0 03 A9 07 60 E6 82 60",
    xF110="20 00 F1 A9 08 60",
)
MEETING = program("A6 80 F0 05 A9 22 4C 0B F0 A9 11 85 81")  # LDX 80; A = 11 or 22; STA 81


@pytest.mark.parametrize(
    ("cartridge", "ram"),
    [
        (NESTED, {"x80": 77}),
        (MEETING, {"x80": 0}),
        (MEETING, {"x80": 1}),
        *((CALLS, {"x81": n}) for n in (1, 2, 3)),
    ],
)
def test_with_switches_it_does_the_same_in_the_same_time(
    cartridge: Program, ram: dict[str, int]
) -> None:
    source = switch_source(cartridge)
    assert source.count("while ") == source.count("def ") - 1  # a loop for each, but for `store`
    after, cycles = run(cartridge, **ram)
    switched, cycles_switched = run(cartridge, switch_source, **ram)
    assert switched.tolist() == after.tolist()
    assert cycles_switched == cycles
