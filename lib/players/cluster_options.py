"""The settings of players on Ray.

Players have them, too. So this module is separate from ``lib.players.cluster``, as is
``lib.players.worker``.
"""

from dataclasses import dataclass

from lib.games.vector_env import StackedVectorEnv, one_thread_games
from lib.running.options import ReplayOptions, option


@dataclass(frozen=True)
class ClusterOptions(ReplayOptions):
    """Settings of rungs whose players are Ray actors."""

    # A resumed run may use another cluster, or a larger one.
    address: str = option(
        "",
        "host:port of the Ray cluster to join (default: start Ray here)",
        group="playing",
        free=True,
    )
    players: int = option(
        1, "number of players (Ray actors)", 1, 10_000, group="playing", free=True
    )
    envs: int = option(8, "environments of each player, stepped together", 1, 256, group="playing")
    message_steps: int = option(
        32, "steps of each game per message to the learner", 10, 1_000, group="playing"
    )
    max_pool: bool = option(
        False, "frame skip takes the maximum of the last two frames", group="wrappers"
    )
    stack: int = option(2, "stacked frames per state", 1, 16, group="wrappers")
    sync_updates: int = option(
        50, "updates between broadcasts of the weights", 1, 10**9, group="playing"
    )
    player_timeout: float = option(
        60.0, "fail after so many seconds without a frame", 1, 10**6, group="playing", free=True
    )

    @property
    def samples(self) -> int:
        """As ``CommonOptions.samples``; it does not depend on how many games there are."""
        return self.batch_size

    def make_envs(self, count: int, seed: int) -> StackedVectorEnv:
        """Some games, in one thread."""
        games = one_thread_games(self.env, count, self.max_pool)
        return StackedVectorEnv(games, self.recipe, seed)
