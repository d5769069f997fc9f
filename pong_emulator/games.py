"""Many games at once: steps of the agent, and resets."""
# ruff: noqa: F403, F405, all fields of the state

import numpy as np

from .compiling import compiled, entry_point
from .pong import FIRE, NOOP, act
from .preprocessing import lines_of, shrink
from .state import *
from .television import LOOK, begin_log, draw
from .tia import LINES, WIDTH

# The working memory of a thread, for any game.
Scratch = tuple[np.ndarray, ...]


def scratch() -> Scratch:
    """Return working memory for ``step_games`` and ``reset_games``."""
    a, b, c = ((np.zeros((LINES, WIDTH), np.uint8), np.zeros(LINES, np.int32)) for _ in range(3))
    return (np.zeros(LOOK, np.int32), *a, *b, np.zeros(WIDTH + 2, np.int32), *c)


@entry_point
def reset_games(s, begin, end, beginning, noops, shades, seen, work, observations):
    """Begin new games, and return the most changes logged for a picture.

    Args:
        s: int32 (FIELDS, games), the state.
        begin, end: the games to reset, [begin, end).
        beginning: int32 (FIELDS,), the state of a new game.
        noops: int32 (draws, games), frames of FIRE and no-ops; row ``n`` is for reset ``n``.
        shades: uint8 (256,), how colours are shown.
        seen: the rows of an observation that are drawn, [first, last).
        work: from ``scratch``.
        observations: uint8 (games, stack, 84, 84), output.
    """
    most = 0
    for g in range(begin, end):
        reset(s, g, beginning, noops)
        most = max(most, most_changes(s, g))
        observations[g] = 0
        observe(s, g, shades, seen, work, True, observations[g, -1])
    return most


@entry_point
def step_games(
    s, begin, end, shades, seen, work, actions, settings, before, observations, rewards, over, cut
):
    """Step games, and return the most changes logged for a picture; ended games stay ended.

    Args:
        s, begin, end, shades, seen, work: as for ``reset_games``.
        actions: int64 (games,).
        settings: frame_skip, max_pool and max_num_frames_per_episode of ``PongVectorEnv``.
        before: uint8 (games, stack, 84, 84), the previous observations.
        observations: output: the new ones.
        rewards: int32 (games,), output: points.
        over, cut: bool (games,), output: which games ended, or were truncated.
    """
    most = 0
    skip, max_pool, limit = settings
    for g in range(begin, end):
        rewards[g], over[g], cut[g], played = step(s, g, actions[g], skip, max_pool, limit)
        most = max(most, most_changes(s, g))
        for i in range(1, before.shape[1]):
            copy(before[g, i], observations[g, i - 1])
        newest = observations[g, -1]
        if not over[g] and not cut[g]:
            s[BANK, g] = 1 - s[BANK, g]
            observe(s, g, shades, seen, work, max_pool, newest)
        elif played == skip and max_pool:
            observe_cut_step(s, g, shades, seen, work, newest)
        else:
            copy(before[g, -1], newest)  # nothing new was seen
    return most


@entry_point
def draw_game(s, g, shades, work, picture):
    """Draw a game's last picture, uint8 (210, 160)."""
    look, rows, row_of = work[:3]
    draw(s, g, s[LOG, g], shades, look, rows, row_of, (0, LINES), (0, WIDTH))
    for line in range(LINES):
        for x in range(WIDTH):
            picture[line, x] = rows[row_of[line], x]


@compiled
def copy(source, target):
    """Copy a picture."""
    for y in range(source.shape[0]):
        for x in range(source.shape[1]):
            target[y, x] = source[y, x]


@compiled
def step(s, g, action, skip, max_pool, limit):
    """Hold an action for some emulated frames, and log the last ones.

    Return the points, whether the game ended or was truncated, and the emulated frames played.
    """
    points, over, cut, played = 0, False, False, 0
    while played < skip and not over and not cut:
        seen = played >= skip - (2 if max_pool else 1)
        if seen:
            begin_log(s, g, log_of(1 - s[BANK, g], played - skip + 2))
        else:
            s[LOG, g] = 0
        more, over = act(s, g, action)
        points += more
        played += 1
        s[PLAYED_FRAMES, g] += 1
        cut = s[PLAYED_FRAMES, g] >= limit
    return points, over, cut, played


@compiled
def most_changes(s, g):
    """Return the largest number of changes in a game's logs, including those not kept."""
    most = 0
    for log in range(LOGS, FIELDS, LOG_FIELDS):
        most = max(most, s[log + LOG_COUNT, g])
    return most


@compiled
def log_of(bank, number):
    """Return the first field of one of a bank's two logs."""
    return LOGS + (2 * bank + number) * LOG_FIELDS


@compiled
def reset(s, g, beginning, noops):
    """Begin a new game, and play its no-ops; the first of its two pictures is black."""
    drawn = s[NOOPS_DRAWN, g]
    count = noops[drawn, g]
    for field in range(len(beginning)):
        s[field, g] = beginning[field]
    s[NOOPS_DRAWN, g] = drawn + 1
    black = log_of(0, 0)
    s[black + LOG_COUNT, g], s[black + VBLANK - SEEN, g] = 0, 2
    for number in range(count):
        if number == count - 1:
            begin_log(s, g, log_of(0, 1))
        act(s, g, NOOP if number else FIRE)


@compiled
def observe(s, g, shades, seen, work, max_pool, small):
    """Draw an observation, uint8 (84, 84)."""
    lines, columns = lines_of(seen), (0, WIDTH)
    look, rows_a, row_of_a, rows_b, row_of_b, sums = work[:6]
    draw(s, g, log_of(s[BANK, g], 1), shades, look, rows_b, row_of_b, lines, columns)
    if max_pool:
        draw(s, g, log_of(s[BANK, g], 0), shades, look, rows_a, row_of_a, lines, columns)
        shrink(rows_a, row_of_a, rows_b, row_of_b, seen, sums, small)
    else:
        shrink(rows_b, row_of_b, rows_b, row_of_b, seen, sums, small)


@compiled
def observe_cut_step(s, g, shades, seen, work, small):
    """Draw the last observation of a game that ended in the last emulated frame of a step.

    Instead of that frame, it shows the two pictures of the previous observation.
    """
    lines, columns = lines_of(seen), (0, WIDTH)
    look, rows_a, row_of_a, rows_b, row_of_b, sums, rows_c, row_of_c = work
    draw(s, g, log_of(s[BANK, g], 0), shades, look, rows_a, row_of_a, lines, columns)
    draw(s, g, log_of(s[BANK, g], 1), shades, look, rows_b, row_of_b, lines, columns)
    for line in range(lines[0], lines[1]):
        row_of_c[line] = line
        for x in range(WIDTH):
            rows_c[line, x] = max(rows_a[row_of_a[line], x], rows_b[row_of_b[line], x])
    draw(s, g, log_of(1 - s[BANK, g], 0), shades, look, rows_a, row_of_a, lines, columns)
    shrink(rows_a, row_of_a, rows_c, row_of_c, seen, sums, small)
