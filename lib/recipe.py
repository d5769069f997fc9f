"""How a game becomes the states and actions that a network is trained on."""

from dataclasses import dataclass

PONG_ROWS = (13, 78)  # of 84, those between the walls; above them is the score
PONG_ACTIONS = (0, 2, 3)  # of six, those that differ: stay, up, down


@dataclass(frozen=True)
class Recipe:
    """What a network has to be given, and what its values stand for.

    The settings of a run say it (``CommonOptions.recipe``), and its checkpoints keep it. The
    defaults are DeepMind's (Mnih et al., Nature 518 (2015), methods).

    Args:
        env: a NoFrameskip game, such as PongNoFrameskip-v4.
        max_pool: the maximum of the last two of the 4 skipped frames, not the last one alone.
        stack: frames of a state.
        resize: a key of ``lib.atari_wrappers.RESIZERS``.
        rows: the part of the 84 rows that a state shows, from the first to before the second.
        actions: the actions of the game that are played, in the order of the network's values;
            None for all of them.
    """

    env: str
    max_pool: bool = True
    stack: int = 4
    resize: str = "opencv-area"
    rows: tuple[int, int] = (0, 84)
    actions: tuple[int, ...] | None = None
