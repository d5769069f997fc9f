"""The random numbers of a run, in streams that share nothing: with each other, and between seeds.

Neighbouring seeds, as of repeated runs, would share most of their games if game ``i`` had
``seed + i``. torch's generator is of another kind, see ``lib.training.machine``.
"""

import numpy as np

ACTIONS, REPLAY, GAMES, TRIAL, PLAYERS, RESUMED = range(1, 7)  # what a stream is for


def stream(seed: int, purpose: int, *numbers: int) -> np.random.Generator:
    """The stream for a purpose; numbers tell several for the same purpose apart."""
    return np.random.default_rng((seed, purpose, *numbers))


def resumed_seed(seed: int, frames: int) -> int:
    """The seed of games and actions after so many frames: new ones whenever a run is resumed."""
    return int(stream(seed, RESUMED, frames).integers(2**62)) if frames else seed


def game_seeds(seed: int, count: int, purpose: int = GAMES, *numbers: int) -> np.ndarray:
    """Seeds of games, int64 (count,), in [2**30, 2**31).

    ALE takes 31-bit seeds, and those of ``lib.training.evaluation`` are below 2**30.
    """
    return stream(seed, purpose, *numbers).integers(2**30, 2**31, size=count)
