"""What a lost node costs: how fast the players play before, without it, and afterwards."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import SimpleNamespace
from typing import NamedTuple

from torch import nn

from benchmarks.cluster.simulated import SimulatedCluster
from lib.players.cluster import Players
from lib.players.n_step import Transitions
from lib.players.worker import Weights

BEFORE_SECONDS, AFTER_SECONDS = 8.0, 8.0


@dataclass
class Loss:
    """What happened when one of two nodes was lost, each with a player."""

    fps_before: float
    fps_without: float  # meanwhile
    fps_after: float
    noticed: float  # seconds from the loss until the learner knows
    seconds: float  # from the loss to the first message of the player in its place
    transitions: int  # that the other player sent
    transitions_lost: int  # of the other player: sent, but did not arrive

    @property
    def cost(self) -> float:
        """Frames that were not played, as seconds at full speed."""
        return self.seconds * (1 - self.fps_without / self.fps_before)


class Arrival(NamedTuple):
    """A message that arrived."""

    at: float  # seconds
    player: int
    frames: int  # that were played for it
    before: int  # transitions that its player had sent before
    transitions: int


def counting(player: type) -> type:
    """A player whose messages have, for their version, how many transitions it sent before."""

    class Counting(player):  # type: ignore[misc, valid-type]
        sent = 0

        def play(self, weights: Weights) -> Transitions:
            transitions = super().play(weights)
            transitions.version = self.sent
            self.sent += len(transitions.actions)
            return transitions

    return Counting


def lose_a_node(how: str, players_on: Callable[..., Players], net: nn.Module) -> Loss:
    """Let two players play on two nodes, lose one of those, and wait until two play again.

    Args:
        how: the node is "killed" or "silent", see ``SimulatedCluster``.
        players_on: makes the two players, given the address of the cluster and ``counting``.
        net: what they play with.
    """
    with SimulatedCluster(2, 2) as cluster:
        os.environ |= cluster.environment
        lose = {"killed": cluster.kill, "silent": cluster.silence}[how]
        with players_on(cluster.address, counting) as players:
            players.broadcast(net, SimpleNamespace(iteration=0, frames=10**9))
            arrivals: list[Arrival] = []
            begin = lost = noticed = back = 0.0
            for arrived in players:
                now = perf_counter()
                arrivals += [
                    Arrival(now, new.player, new.played, new.version, len(new.actions))
                    for new in arrived
                ]
                if not begin:
                    begin = now if {a.player for a in arrivals} == {0, 1} else 0.0
                elif not lost:
                    if now > begin + BEFORE_SECONDS:
                        lose(0)
                        lost = now
                elif not noticed:
                    if players.lost:
                        noticed, (gone,) = now, players.lost
                elif not back:
                    back = now if not players.lost else 0.0
                elif now > back + AFTER_SECONDS:
                    break

    def fps(start: float, end: float) -> float:
        return sum(a.frames for a in arrivals if start < a.at <= end) / (end - start)

    others = [a for a in arrivals if a.player != gone]
    sent = max(a.before + a.transitions for a in others)
    return Loss(
        fps_before=fps(begin, lost),
        fps_without=fps(lost, back),
        fps_after=fps(back, now),
        noticed=noticed - lost,
        seconds=back - lost,
        transitions=sent,
        transitions_lost=sent - sum(a.transitions for a in others),
    )
