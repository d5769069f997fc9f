"""Pong as ALE plays it: paddles, emulated frames, points, the end of a game, and the reset.

The agent is player A, on the right; the program's own player is on the left.
"""
# ruff: noqa: F403, F405, all fields of the state

import numpy as np

from .compiling import compiled, entry_point
from .rom import LAST_POINT, POINTS_A, POINTS_B
from .state import *
from .tia import collide
from .translated import emulated_frame

# Actions, by their number in the environments.
NOOP, FIRE, RIGHT, LEFT, RIGHT_FIRE, LEFT_FIRE = range(6)
ACTIONS = ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")

# Paddles are resistors of up to a megohm; ALE turns them at this speed, and not to their ends.
LEAST_OHM, MOST_OHM, START_OHM = 27_450, 790_196, 408_823
OHM_PER_EMULATED_FRAME = 23_000
FIRE_A = 0x40  # of SWCHA; 0 when pressed
ALL_SWITCHES, RESET_PRESSED = 0x3F, 0x3E  # of SWCHB


@compiled
def act(s, g, action):
    """Play an emulated frame; return the change of the score, and whether the game has ended."""
    ohm = s[PADDLE_A, g]
    if action in (RIGHT, RIGHT_FIRE):
        ohm -= OHM_PER_EMULATED_FRAME
    elif action in (LEFT, LEFT_FIRE):
        ohm += OHM_PER_EMULATED_FRAME
    s[PADDLE_A, g] = min(max(ohm, LEAST_OHM), MOST_OHM)
    fire = action in (FIRE, RIGHT_FIRE, LEFT_FIRE)
    s[SWCHA, g] = 0xFF & ~FIRE_A if fire else 0xFF
    emulate(s, g, False)
    s[EMULATED_FRAMES, g] += 1
    score = s[POINTS_A, g] - s[POINTS_B, g]
    reward = score - s[SCORE, g]
    s[SCORE, g] = score
    return reward, s[POINTS_A, g] == LAST_POINT or s[POINTS_B, g] == LAST_POINT


@compiled
def emulate(s, g, boot):
    """Run the program until the next picture is complete, from power-on or from the last one."""
    t, s[REGISTER_X, g] = emulated_frame(s, g, s[CYCLES, g], boot, s[REGISTER_X, g])
    collide(s, g, 3 * t)
    passed = t // 76 * 76  # the next picture counts from the beginning of this line
    s[CYCLES, g] = t - passed
    s[TIMER_SET, g] -= passed
    s[CHARGED, g] -= passed
    s[COLLIDED, g] = 3 * (t - passed)


@entry_point
def _power_on(s):
    """Switch the Atari on, wait for a second, and press RESET, as ALE does."""
    s[PADDLE_A, 0] = s[PADDLE_B, 0] = START_OHM
    s[SWCHA, 0] = 0xFF
    for number in range(72):  # emulated frames
        s[SWCHB, 0] = ALL_SWITCHES if number < 60 else RESET_PRESSED
        emulate(s, 0, number == 0)
    s[SWCHB, 0] = ALL_SWITCHES


def new_game() -> np.ndarray:
    """Return the state at the beginning of a game, int32 (FIELDS,)."""
    state = np.zeros((FIELDS, 2), np.int32, order="F")  # one column would be in C order, too
    _power_on(state)
    return state[:, 0]
