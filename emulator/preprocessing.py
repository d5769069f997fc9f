"""The preprocessing of DeepMind: the maximum of two pictures, grey, 84 by 84 pixels.

OpenCV's ``INTER_AREA`` averages: a pixel of the small picture covers 40/21 columns and 5/2 lines of the
large one. In units of 1/21 column and 1/2 line all weights are whole numbers, and add up to 200; so
whole numbers give what OpenCV's rounding of fractions gives, and many fit into one register.

Source: Mnih et al., Nature 518 (2015), methods.
"""

import numpy as np

from emulator.compiling import compiled
from emulator.tia import LINES, WIDTH

SIZE = 84
COLUMN_UNITS, LINE_UNITS = 40, 5  # what a pixel covers; there are 21 to a column, 2 to a line
WEIGHTS = COLUMN_UNITS * LINE_UNITS
# A small pixel's first column, and the weights of that and the next two.
FIRST_COLUMN = np.arange(SIZE) * COLUMN_UNITS // 21
_begin = 21 * FIRST_COLUMN - np.arange(SIZE) * COLUMN_UNITS
COLUMN_WEIGHTS = np.stack(
    [np.clip(_begin + 21 * i + 21, 0, COLUMN_UNITS) - np.clip(_begin + 21 * i, 0, COLUMN_UNITS) for i in range(3)]
).astype(np.int32)


@compiled
def shrink(rows_a, row_of_a, rows_b, row_of_b, sums, small):
    """Write the maximum of two pictures into ``small``, uint8 (84, 84).

    Args:
        rows_a, row_of_a: a picture, of ``television.draw``.
        rows_b, row_of_b: the other one.
        sums: uint16 (WIDTH + 2,), to work in; the last two stay 0.
        small: uint8 (84, 84), gets the small picture.
    """
    for y in range(SIZE):
        # Two and a half lines; the weights of the three that take part.
        top = y * LINE_UNITS // 2
        a0, a1, a2 = row_of_a[top], row_of_a[top + 1], row_of_a[top + 2]
        b0, b1, b2 = row_of_b[top], row_of_b[top + 1], row_of_b[top + 2]
        if y > 0 and a0 == a2 and b0 == b2:
            above = (y - 1) * LINE_UNITS // 2
            if row_of_a[above] == a2 and row_of_b[above] == b2:
                for x in range(SIZE):
                    small[y, x] = small[y - 1, x]
                continue
        w0, w2 = (1, 2) if y & 1 else (2, 1)
        for x in range(WIDTH):
            p0 = max(rows_a[a0, x], rows_b[b0, x])
            p1 = max(rows_a[a1, x], rows_b[b1, x])
            p2 = max(rows_a[a2, x], rows_b[b2, x])
            sums[x] = w0 * p0 + 2 * p1 + w2 * p2
        for x in range(SIZE):
            first = FIRST_COLUMN[x]
            total = np.uint32(0)
            for i in range(3):
                total += COLUMN_WEIGHTS[i, x] * sums[first + i]
            small[y, x] = rounded(total)


@compiled
def rounded(total):
    """A weighted sum, divided; halves go to the even number."""
    quotient = (total + WEIGHTS // 2) // WEIGHTS
    if quotient * WEIGHTS == total + WEIGHTS // 2:
        quotient &= ~1
    return quotient
