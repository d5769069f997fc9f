"""The picture: drawn from the registers at its beginning and the log of their changes.

Between two changes the beam shows the same, line after line. So each different row is drawn once,
about 35 for a picture of Pong, and each of the 210 lines refers to one of them.
"""
# ruff: noqa: F403, F405, all fields of the state

import numpy as np

from .compiling import compiled
from .state import *
from .tia import BLANK, COMB, FIRST_CLOCK, FIRST_LINE, LINE, LINES, WIDTH, playfield_at

COMB_WIDTH = 8  # pixels
LOOK = SEEN_END - SEEN  # number of visible registers

# Red, green and blue of the television's 128 colours, as ALE shows them; measured. A row is a hue,
# from dark to bright. The chip ignores the lowest bit of a colour's number.
PALETTE = """
    000000 4a4a4a 6f6f6f 8e8e8e aaaaaa c0c0c0 d6d6d6 ececec
    484800 69690f 86861d a2a22a bbbb35 d2d240 e8e84a fcfc54
    7c2c00 904811 a26221 b47a30 c3903d d2a44a dfb755 ecc860
    901c00 a33915 b55328 c66c3a d5824a e39759 f0aa67 fcbc74
    940000 a71a1a b83232 c84848 d65c5c e46f6f f08080 fc9090
    840064 97197a a8308f b846a2 c659b3 d46cc3 e07cd2 ec8ce0
    500084 68199a 7d30ad 9246c0 a459d0 b56ce0 c57cee d48cfc
    140090 331aa3 4e32b5 6848c6 7f5cd5 956fe3 a980f0 bc90fc
    000094 181aa7 2d32b8 4248c8 545cd6 656fe4 7580f0 8490fc
    001c88 183b9d 2d57b0 4272c2 548ad2 65a0e1 75b5ef 84c8fc
    003064 185080 2d6d98 4288b0 54a0c5 65b7d9 75cceb 84e0fc
    004030 18624e 2d8169 429e82 54b899 65d1ae 75e7c2 84fcd4
    004400 1a661a 328432 48a048 5cba5c 6fd26f 80e880 90fc90
    143c00 355f18 527e2d 6e9c42 87b754 9ed065 b4e775 c8fc84
    303800 505916 6d762b 88923e a0ab4f b7c25f ccd86e e0ec7c
    482c00 694d14 866a26 a28638 bb9f47 d2b656 e8cc63 fce070
"""
RGB = np.frombuffer(bytes.fromhex(PALETTE), np.uint8).reshape(-1, 3).repeat(2, axis=0)
GREYS = np.rint(RGB @ (0.2989, 0.587, 0.114)).astype(np.uint8)
COLOURS = np.arange(256, dtype=np.uint8)  # shades that show the colours' numbers


@compiled
def begin_log(s, g, log):
    """Begin this log with the registers as they are."""
    s[LOG, g] = log
    s[log + LOG_COUNT, g] = 0
    for field in range(SEEN, SEEN_END):
        s[log + field - SEEN, g] = s[field, g]


@compiled
def draw(s, g, log, shades, look, rows, row_of, lines, columns):
    """Draw the picture of a log, or some lines and columns of it.

    Args:
        s, g, log: the state, the game, and the log's first field.
        shades: uint8 (256,), how colours are shown.
        look: int32 (LOOK,), working memory.
        rows: uint8 (rows, WIDTH), output: the different rows.
        row_of: int32 (LINES,), output: the row of each line.
        lines, columns: those to draw, [first, last).

    Returns:
        The number of different rows; those that do not fit go into the last one.
    """
    for field in range(LOOK):
        look[field] = s[log + field, g]
    count = min(s[log + LOG_COUNT, g], LOG_SIZE)
    left, right = columns
    done, last = lines[0] * WIDTH, lines[1] * WIDTH
    row, comb = 0, -1
    for number in range(count + 1):
        change = s[log + LOG_CHANGES + number, g] if number < count else 0
        to = min(pixel_of(change >> 13), last) if number < count else last
        while done < to:
            x = done % WIDTH
            line = done // WIDTH
            end = min(WIDTH, x + to - done)
            place = min(row, len(rows) - 1)
            paint(look, shades, rows[place], max(x, left), min(end, right))
            if line == comb:
                rows[place, max(x, left) : min(end, right, COMB_WIDTH)] = shades[0]
            row_of[line] = place
            done += end - x
            if x == 0 and end == WIDTH and line != comb:  # the following lines look the same
                while done + WIDTH <= to:
                    row_of[done // WIDTH] = place
                    done += WIDTH
            if done % WIDTH == 0:
                row += 1
        field = change >> 8 & 0x1F
        if number < count and SEEN + field == COMB:
            comb = max((change >> 13) // LINE - FIRST_LINE, 0)  # the next one that is shown
        elif number < count:
            look[field] = change & 0xFF
    return row


@compiled
def pixel_of(clock):
    """Return the number of pixels that the beam has passed by a clock."""
    shown = min(max(clock - FIRST_CLOCK, 0), LINES * LINE)
    return shown // LINE * WIDTH + max(shown % LINE - BLANK, 0)


@compiled
def paint(look, shades, row, begin, end):
    """Paint a part of a row, from back to front."""
    if look[VBLANK - SEEN] != 0:
        row[begin:end] = shades[0]
        return
    row[begin:end] = shades[look[COLUBK - SEEN]]
    in_front = look[CTRLPF - SEEN] & 4
    if not in_front:
        paint_playfield(look, shades, row, begin, end)
    paint_player(look, shades, row, begin, end, GRP1 - SEEN, POSP1 - SEEN, COLUP1 - SEEN)
    paint_player(look, shades, row, begin, end, GRP0 - SEEN, POSP0 - SEEN, COLUP0 - SEEN)
    if in_front:
        paint_playfield(look, shades, row, begin, end)


@compiled
def paint_playfield(look, shades, row, begin, end):
    """Paint playfield and ball in one colour, or a score in the players' colours."""
    colour = shades[look[COLUPF - SEEN]]
    control = look[CTRLPF - SEEN]
    score = control & 2
    pf0, pf1, pf2 = look[PF0 - SEEN], look[PF1 - SEEN], look[PF2 - SEEN]
    if pf0 | pf1 | pf2 != 0:
        for block in range(begin >> 2, (end + 3) >> 2):
            if playfield_at(control, pf0, pf1, pf2, block):
                shade = colour
                if score:
                    shade = shades[look[(COLUP0 if block < 20 else COLUP1) - SEEN]]
                for x in range(max(begin, 4 * block), min(end, 4 * block + 4)):
                    row[x] = shade
    if look[BALL - SEEN] != 0:
        for pixel in range(1 << (control >> 4 & 3)):
            x = (look[POSBL - SEEN] + pixel) % WIDTH
            if begin <= x < end:
                row[x] = colour


@compiled
def paint_player(look, shades, row, begin, end, graphics, position, colour):
    """Paint a player's eight pixels."""
    bits = look[graphics]
    if bits != 0:
        for pixel in range(8):
            x = (look[position] + pixel) % WIDTH
            if bits << pixel & 0x80 and begin <= x < end:
                row[x] = shades[look[colour]]
