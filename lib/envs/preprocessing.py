"""Preprocessing: how a game begins, and how its frames become states."""

from dataclasses import dataclass, replace
from typing import Any

# 60 of the 64 rows between the walls. The lowest four would only change the mean that is
# subtracted: the second convolution does not read the row that they add to the first one's output.
PONG_ROWS = (13, 73)
PONG_ACTIONS = (0, 2, 3)  # stay, up and down; the other three do the same


@dataclass(frozen=True)
class Preprocessing:
    """What a network sees, and which action of the game each of its outputs stands for.

    Checkpoints store it. The defaults are DeepMind's (Mnih et al., Nature 518 (2015), methods).

    Args:
        env, skip, max_pool, noop_max: as for ``lib.envs.atari_wrappers.make_atari``.
        stack, resize, fire_reset, episodic_life: as for ``wrap_deepmind`` there.
        vector_env: take the maximum in grey, and press FIRE only at the start of a game, as ALE's
            vector environment and our emulator do. False: take it in colour, and press FIRE after
            each lost life, too, as the wrappers do.
        rows: which of the 84 rows a state shows, [first, last).
        actions: the game's actions in the order of the network's values; None: all.
        half: average blocks of 2x2 pixels, which leaves a quarter of the data.
    """

    env: str
    vector_env: bool = False
    skip: int = 4
    max_pool: bool = True
    stack: int = 4
    resize: str = "opencv-area"
    rows: tuple[int, int] = (0, 84)
    actions: tuple[int, ...] | None = None
    half: bool = False
    noop_max: int = 30
    fire_reset: bool = True
    episodic_life: bool = True

    def transform(self, frames: Any) -> Any:
        """Crop frames, uint8 (..., 84, 84), NumPy or torch, and average 2x2 pixels if ``half``."""
        frames = frames[..., slice(*self.rows), :]
        if not self.half:
            return frames
        quarters = frames >> 2  # rounded down, so that the sum of four fits into a byte
        upper, lower = quarters[..., ::2, :], quarters[..., 1::2, :]
        return upper[..., ::2] + upper[..., 1::2] + lower[..., ::2] + lower[..., 1::2]

    @property
    def starts(self) -> "dict[str, Preprocessing]":
        """Kinds of start to test an agent with, by name; DeepMind's is the last.

        An agent trained with other starts may lose after no-ops.
        """
        deepmind = Preprocessing(self.env)
        standard = replace(self, noop_max=deepmind.noop_max, fire_reset=deepmind.fire_reset)
        kinds = {} if self == standard else {"as trained": self}
        return kinds | {f"after up to {standard.noop_max} no-ops": standard}
