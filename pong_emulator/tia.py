"""The television chip (TIA): registers that say what the beam shows, while it shows it.

There is no picture memory: the beam passes 262 lines of 228 colour clocks (the last 160 visible),
three to a cycle of the processor, and the program changes the registers just in time. Changes are
logged with their clocks, for ``television.py``. Collisions of the ball, which the program reads,
are computed at each change.

Only the parts that Pong's first game uses are here: players of one copy, eight pixels wide and not
reflected; missiles that stay locked and unseen; no sound.

Source: Stella Programmer's Guide, Wright 1979; the clocks until a write shows were measured.
"""
# ruff: noqa: F403, F405, all fields of the state

from .compiling import compiled
from .state import *

LINE = 228  # colour clocks
BLANK = 68  # of them before the first pixel
WIDTH = 160  # pixels
FIRST_LINE, LINES = 34, 210  # the lines that are shown
FIRST_CLOCK, LAST_CLOCK = FIRST_LINE * LINE, (FIRST_LINE + LINES) * LINE
COMB = SEEN_END  # in a log: an HMOVE blanks the first 8 pixels of this line
CYCLES_PER_OHM = 1.6e-8 * 1.19e6  # 1.6 time constants of 10 nF until an input reads charged


@compiled
def write(s, g, clock, field, value):
    """Set a visible register from a colour clock on."""
    if s[field, g] != value:
        collide(s, g, clock)
        s[field, g] = value
        record(s, g, clock, field, value)


@compiled
def record(s, g, clock, field, value):
    """Write a change into the log: clock, field and value in one number."""
    log = s[LOG, g]
    if log != 0:
        count = s[log + LOG_COUNT, g]
        s[log + LOG_COUNT, g] = count + 1  # beyond the size, too, so that it is noticed
        if count < LOG_SIZE:
            s[log + LOG_CHANGES + count, g] = clock << 13 | (field - SEEN) << 8 | value


@compiled
def collide(s, g, clock):
    """Find what the ball has touched up to a clock; call it before any change."""
    begin, end = max(s[COLLIDED, g], FIRST_CLOCK), min(clock, LAST_CLOCK)
    s[COLLIDED, g] = clock
    if s[BALL, g] == 0 or s[VBLANK, g] != 0:
        return
    for pixel in range(1 << (s[CTRLPF, g] >> 4 & 3)):
        x = (s[POSBL, g] + pixel) % WIDTH
        before = LINE - 1 - BLANK - x  # (clock + before) // LINE: how often the beam reached x
        if (end + before) // LINE > (begin + before) // LINE:
            if playfield_at(s[CTRLPF, g], s[PF0, g], s[PF1, g], s[PF2, g], x >> 2):
                s[CXPF, g] = 0x80
            if player_at(s[GRP0, g], s[POSP0, g], x):
                s[CXP0, g] = 0x40
            if player_at(s[GRP1, g], s[POSP1, g], x):
                s[CXP1, g] = 0x40


@compiled
def playfield_at(control, pf0, pf1, pf2, block):
    """Return whether the playfield covers a block of 4 pixels: 20 bits, repeated or reflected."""
    if block >= 20:
        block = 39 - block if control & 1 else block - 20
    if block < 4:
        return pf0 >> (4 + block) & 1
    if block < 12:
        return pf1 >> (11 - block) & 1
    return pf2 >> (block - 12) & 1


@compiled
def player_at(graphics, position, x):
    """Return whether a player covers a pixel."""
    offset = (x - position) % WIDTH
    return graphics << offset & 0x80 if offset < 8 else 0


@compiled
def vblank(s, g, t, value):
    """VBLANK: bit 1 turns the beam off; bit 7 discharges the paddles' capacitors."""
    write(s, g, 3 * t, VBLANK, value & 0x02)
    s[CHARGED, g] = -1 if value & 0x80 else t


@compiled
def playfield(s, g, t, field, value):
    """PF0, PF1, PF2: a write shows from the next block of four pixels on."""
    phase = t & 3
    delay = 4 if phase == 0 else 5 if phase == 1 else 2 if phase == 2 else 3
    write(s, g, 3 * t + delay, field, value)


@compiled
def reset_position(s, g, t, field, blank):
    """RESP0, RESP1, RESBL: move the left edge to the beam, or to ``blank`` if that is unseen."""
    x = 3 * t % LINE - BLANK
    write(s, g, 3 * t, field, blank if x < 0 else (x + blank + 2) % WIDTH)


@compiled
def player1_graphics(s, g, t, value):
    """GRP1: set player 1, and let the delayed ball follow."""
    write(s, g, 3 * t + 1, GRP1, value)
    s[ENABL_OLD, g] = s[ENABL, g]
    if s[VDELBL, g] != 0:
        write(s, g, 3 * t + 1, BALL, s[ENABL_OLD, g])


@compiled
def enable_ball(s, g, t, value):
    """ENABL: show or hide the ball."""
    s[ENABL, g] = value & 0x02
    if s[VDELBL, g] == 0:
        write(s, g, 3 * t, BALL, value & 0x02)


@compiled
def delay_ball(s, g, t, value):
    """VDELBL: show the ball as it was at the last write of GRP1."""
    s[VDELBL, g] = value & 0x01
    write(s, g, 3 * t, BALL, s[ENABL_OLD, g] if value & 0x01 else s[ENABL, g])


@compiled
def hmove(s, g, t):
    """HMOVE: move objects by HMP0, HMP1 and HMBL, to the left if positive."""
    move(s, g, t, POSP0, s[HMP0, g])
    move(s, g, t, POSP1, s[HMP1, g])
    move(s, g, t, POSBL, s[HMBL, g])
    record(s, g, 3 * t, COMB, 0)


@compiled
def move(s, g, t, field, motion):
    """Move an object by the signed number in bits 4 to 7."""
    steps = (motion >> 4 ^ 8) - 8
    write(s, g, 3 * t + 3, field, (s[field, g] - steps) % WIDTH)


@compiled
def cxclr(s, g, t):
    """CXCLR: forget what the ball has touched."""
    s[COLLIDED, g] = 3 * t
    s[CXP0, g] = s[CXP1, g] = s[CXPF, g] = 0


@compiled
def read(s, g, t, register):
    """Return the high bits that the chip puts on the bus for one of its 16 readable registers."""
    if 2 <= register <= 6:
        collide(s, g, 3 * t)
        touched = s[CXP1, g] if register == 3 else s[CXPF, g] if register == 6 else 0
        return s[CXP0, g] if register == 2 else touched
    if register == 8:
        return charged(s, g, t, s[PADDLE_B, g])
    if register == 9:
        return charged(s, g, t, s[PADDLE_A, g])
    return 0x80 if register <= 11 else 0


@compiled
def charged(s, g, t, resistance):
    """Return 0x80 once a paddle's capacitor is charged; the program counts lines until then."""
    begun = s[CHARGED, g]
    return 0x80 if begun >= 0 and t > begun + int(CYCLES_PER_OHM * resistance) else 0
