"""How a game becomes the states and actions of a network."""

from dataclasses import dataclass

PONG_ROWS = (13, 78)  # of 84: those between the walls; the score is above them
PONG_ACTIONS = (0, 2, 3)  # of six: those that differ, stay, up and down


@dataclass(frozen=True)
class Recipe:
    """The input that a network expects, and the actions that its values belong to.

    It comes from the settings of a run (``CommonOptions.recipe``), and checkpoints store it. The
    defaults are DeepMind's (Mnih et al., Nature 518 (2015), methods).

    Args:
        env: a NoFrameskip game, such as PongNoFrameskip-v4.
        max_pool: the maximum of the last two of the 4 skipped frames, not the last one alone.
        stack: frames of a state.
        resize: a key of ``lib.games.atari_wrappers.RESIZERS``.
        rows: the rows of the 84 that a state shows: the first, and the one after the last.
        actions: the actions to use, in the order of the network's values; None: all actions of
            the game.
    """

    env: str
    max_pool: bool = True
    stack: int = 4
    resize: str = "opencv-area"
    rows: tuple[int, int] = (0, 84)
    actions: tuple[int, ...] | None = None
