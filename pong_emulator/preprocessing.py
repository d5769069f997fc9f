"""DeepMind's preprocessing: the maximum of two pictures, grey, 84 by 84 pixels.

OpenCV's ``INTER_AREA`` averages: a small pixel covers 40/21 columns and 5/2 lines of the picture.
In units of 1/21 column and 1/2 line, all weights are integers and add up to 200, so integers give
OpenCV's rounded results. Only if the mean lies half way between two greys, OpenCV's float32 sum may
fall to either side, and ``half_way`` computes the same sum.

Source: Mnih et al., Nature 518 (2015), methods, but with the maximum of greys, as in ALE's vector
environment, not of colours.
"""

import numpy as np

from .compiling import compiled
from .tia import WIDTH

SIZE = 84
COLUMN_UNITS, LINE_UNITS = 40, 5  # covered by a pixel; a column has 21, a line 2
WEIGHTS = COLUMN_UNITS * LINE_UNITS
# A small pixel's first column, and the weights of that and the next two.
FIRST_COLUMN = np.arange(SIZE) * COLUMN_UNITS // 21
_edges = 21 * (FIRST_COLUMN + np.arange(4)[:, None]) - np.arange(SIZE) * COLUMN_UNITS
WEIGHT_0, WEIGHT_1, WEIGHT_2 = np.diff(np.clip(_edges, 0, COLUMN_UNITS), axis=0).astype(np.int32)
# Every weighted sum, divided (-1: half way between two greys), because a table is faster.
QUOTIENTS = np.rint(np.arange(255 * WEIGHTS + 1) / WEIGHTS).astype(np.int16)
QUOTIENTS[WEIGHTS // 2 :: WEIGHTS] = -1
# OpenCV's weights of a small pixel's columns, and of its lines by ``y & 1``.
COLUMN_SHARES = (np.stack([WEIGHT_0, WEIGHT_1, WEIGHT_2]) / COLUMN_UNITS).astype(np.float32)
LINE_SHARES = (np.array([[2, 2, 1], [1, 2, 2]]) / LINE_UNITS).astype(np.float32)


@compiled
def lines_of(seen):
    """Return the lines that rows of the small picture cover; both are [first, last)."""
    first, last = seen
    return first * LINE_UNITS >> 1, ((last - 1) * LINE_UNITS >> 1) + 3


@compiled
def shrink(rows_a, row_of_a, rows_b, row_of_b, seen, sums, small):
    """Shrink the maximum of two pictures into the rows ``seen``; the others are black.

    Args:
        rows_a, row_of_a, rows_b, row_of_b: the pictures, from ``television.draw``.
        seen: the rows that are not black, [first, last).
        sums: int32 (WIDTH + 2,), working memory; the last two stay 0.
        small: uint8 (84, 84), output.
    """
    first, last = seen
    small[:first] = 0
    small[last:] = 0
    halves = False  # whether the row above has a mean half way between two greys
    for y in range(first, last):
        top = y * LINE_UNITS >> 1  # the first of three lines
        a0, a1, a2 = row_of_a[top], row_of_a[top + 1], row_of_a[top + 2]
        b0, b1, b2 = row_of_b[top], row_of_b[top + 1], row_of_b[top + 2]
        above = max(y - 1, 0) * LINE_UNITS >> 1
        alike = y > first and row_of_a[above] == a2 and row_of_b[above] == b2  # the same as above
        if alike and not halves:
            for x in range(SIZE):
                small[y, x] = small[y - 1, x]
            continue
        halves = False
        weight_0, weight_2 = (1, 2) if y & 1 else (2, 1)
        for x in range(WIDTH):
            pixel_0 = np.int32(max(rows_a[a0, x], rows_b[b0, x]))
            pixel_1 = np.int32(max(rows_a[a1, x], rows_b[b1, x]))
            pixel_2 = np.int32(max(rows_a[a2, x], rows_b[b2, x]))
            sums[x] = weight_0 * pixel_0 + 2 * pixel_1 + weight_2 * pixel_2
        for x in range(SIZE):
            i = FIRST_COLUMN[x]
            total = WEIGHT_0[x] * sums[i] + WEIGHT_1[x] * sums[i + 1] + WEIGHT_2[x] * sums[i + 2]
            quotient = QUOTIENTS[total]
            if quotient < 0:
                halves = True
                quotient = half_way(rows_a, row_of_a, rows_b, row_of_b, y, x)
            small[y, x] = quotient


@compiled
def half_way(rows_a, row_of_a, rows_b, row_of_b, y, x):
    """Return a pixel of ``shrink``, summed and rounded as in OpenCV: float32, columns first."""
    top, total = y * LINE_UNITS >> 1, np.float32(0)
    for i in range(3):
        a, b, mean = row_of_a[top + i], row_of_b[top + i], np.float32(0)
        for k in range(3):
            column = min(FIRST_COLUMN[x] + k, WIDTH - 1)  # the one beyond has no weight
            pixel = max(rows_a[a, column], rows_b[b, column])
            # Without abs a GPU would fuse product and sum, and round once.
            mean += abs(COLUMN_SHARES[k, x] * np.float32(pixel))
        total += abs(LINE_SHARES[y & 1, i] * mean)
    return round(total)
