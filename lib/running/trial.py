"""The trial of the agent that would be saved: it must win whole games, and no longer learns.

avg_reward speaks of an agent that goes on learning. Frozen, the same agent can lose a point, get
the same serve again, and lose in the same way until the game is over.
"""

from dataclasses import dataclass

from ignite.engine import Engine

from lib.learning.agents import QFunction
from lib.running.evaluation import EPSILON, make_games, play_games
from lib.running.run import Run

SEED = 2_000_000  # of the first game of the first trial; far from those after training


@dataclass(frozen=True)
class Trial:
    """What an agent made of its games; they end when one is lost."""

    games: int
    won: int
    lost: int
    mean: float  # reward of the games that ended; 0 if none has
    bound: float  # of the mean

    @property
    def passed(self) -> bool:
        """Whether all were won, and by enough points."""
        return self.won == self.games and self.mean >= self.bound


def try_agent(agent: QFunction, engine: Engine, run: Run) -> Trial:
    """Play ``--trial-games`` new games at once, with epsilon 0.01; signals end them, too.

    Args:
        agent: maps uint8 states (n, stack, height, width) to values (n, actions).
        engine: tells the frame; a later trial plays other games.
        run: the mean of its games must be 1 more than ``--stop-reward``.
    """
    options = run.options
    seed = SEED + engine.state.frames
    games = make_games(options.recipe, options.trial_games, seed)
    rewards: list[float] = []
    for ended in play_games(games, agent, EPSILON, run.device, seed):
        rewards += [game.reward for _, game in ended]
        if engine.should_terminate or min(rewards, default=0) < 0:
            break
    return Trial(
        games=options.trial_games,
        won=sum(reward > 0 for reward in rewards),
        lost=sum(reward < 0 for reward in rewards),
        mean=sum(rewards) / max(len(rewards), 1),
        bound=min(options.stop_reward + 1, 20),
    )
