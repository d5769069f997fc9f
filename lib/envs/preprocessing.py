"""Preprocessing: how a game begins, and how its frames become states."""

from dataclasses import dataclass, replace
from typing import Any

# The rows between the walls, without the lowest four of 64. After halving, those would add a row to
# the first convolution's output that the second one, of stride 2, does not reach.
PONG_ROWS = (13, 73)
PONG_ACTIONS = (0, 2, 3)  # stay, up and down; the other three do the same


@dataclass(frozen=True)
class Preprocessing:
    """The input that a network expects, and the actions that its values belong to.

    It comes from a run's settings (``CommonOptions.preprocessing``), and checkpoints store it. The
    defaults are DeepMind's (Mnih et al., Nature 518 (2015), methods).

    Args:
        env: a NoFrameskip game, such as PongNoFrameskip-v4.
        vector_env: preprocess like ALE's vector environment and our emulator: maximum of two grey
            frames, FIRE only at the start of a game. False: like ``lib.envs.atari_wrappers``:
            maximum of two colour frames, then grey, FIRE after each lost life, too.
        skip: emulated frames per agent step.
        max_pool: take the maximum of the last two of them, not the last one alone.
        stack: frames per state.
        resize: a key of ``lib.envs.atari_wrappers.RESIZERS``.
        rows: the first of the 84 rows that a state shows, and the one after the last.
        actions: the game's actions in the order of the network's values; None: all.
        half: average blocks of 2x2 pixels, which leaves a quarter of the data.
        noop_max: begin games with 1 to this many no-ops; 0: none.
        fire_reset: begin games with FIRE, if the game has it.
        episodic_life: a lost life ends the episode.
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

        An agent that knows only other starts may play well as trained and badly after no-ops.
        """
        deepmind = Preprocessing(self.env)
        standard = replace(self, noop_max=deepmind.noop_max, fire_reset=deepmind.fire_reset)
        kinds = {} if self == standard else {"as trained": self}
        return kinds | {f"after up to {standard.noop_max} no-ops": standard}
