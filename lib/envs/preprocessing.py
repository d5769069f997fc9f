"""Preprocessing: how a game begins, and becomes states and actions."""

from dataclasses import dataclass, replace
from typing import Any

# Of 84, to be halved: those between the walls, without the lowest four of 64. These would add a row
# to the first convolution's output that the second one, of stride 2, does not reach.
PONG_ROWS = (13, 73)
PONG_ACTIONS = (0, 2, 3)  # of six: those that differ, stay, up and down


@dataclass(frozen=True)
class Preprocessing:
    """The input that a network expects, and the actions that its values belong to.

    It comes from the settings of a run (``CommonOptions.preprocessing``), and checkpoints store it.
    The defaults are DeepMind's (Mnih et al., Nature 518 (2015), methods).

    Args:
        env: a NoFrameskip game, such as PongNoFrameskip-v4.
        vector_env: states are those of ALE's vector environment, which our emulator plays, too: the
            maximum is that of two grey frames, and FIRE is pressed at the start of a game alone.
            Else they are those of ``lib.envs.atari_wrappers``: the maximum of two colour frames,
            then grey, and FIRE after a lost life, too.
        skip: emulated frames of an agent step.
        max_pool: the maximum of the last two of these, not the last one alone.
        stack: frames of a state.
        resize: a key of ``lib.envs.atari_wrappers.RESIZERS``.
        rows: the rows of the 84 that a state shows: the first, and the one after the last.
        actions: the actions to use, in the order of the network's values; None: all actions of
            the game.
        half: whether states show means of 2x2 pixels, a quarter of the data.
        noop_max: games begin with 1 to this many no-ops; 0: with none.
        fire_reset: games begin with FIRE, where the game has it.
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
        quarters = frames >> 2  # rounded down, so that the sum of four still fits into a byte
        upper, lower = quarters[..., ::2, :], quarters[..., 1::2, :]
        return upper[..., ::2] + upper[..., 1::2] + lower[..., ::2] + lower[..., 1::2]

    @property
    def starts(self) -> "dict[str, Preprocessing]":
        """The kinds of start to test an agent with, by name; the last is DeepMind's.

        An agent that knows other starts alone may play badly after no-ops, and well as trained.
        """
        deepmind = Preprocessing(self.env)
        standard = replace(self, noop_max=deepmind.noop_max, fire_reset=deepmind.fire_reset)
        kinds = {} if self == standard else {"as trained": self}
        return kinds | {f"after up to {standard.noop_max} no-ops": standard}
