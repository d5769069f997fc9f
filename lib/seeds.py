"""The random streams of a run. No two overlap, within or across runs, if --seed < 1,000,000.

If game ``i`` had ``seed + i``, runs with neighbouring seeds would share most of their games.
"""

import numpy as np

ACTIONS, REPLAY, GAMES, TRIAL, PLAYERS, RESUMED = range(1, 7)  # purposes of streams


def stream(seed: int, purpose: int, *numbers: int) -> np.random.Generator:
    """Return the stream for a purpose; numbers tell streams of the same purpose apart."""
    return np.random.default_rng((seed, purpose, *numbers))


def resumed_seed(seed: int, frames: int) -> int:
    """Return the seed of games and actions, which changes when a run is resumed."""
    return int(stream(seed, RESUMED, frames).integers(2**62)) if frames else seed


def game_seeds(seed: int, count: int, purpose: int = GAMES, *numbers: int) -> np.ndarray:
    """Draw seeds of games, int64 (count,), from [2**30, 2**31).

    ALE takes 31-bit seeds, and games after training use those below 2**30.
    """
    return stream(seed, purpose, *numbers).integers(2**30, 2**31, size=count)
