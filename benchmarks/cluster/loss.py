"""What a killed node costs: how fast the players play before, without it, and afterwards."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import SimpleNamespace

from torch import nn

from benchmarks.cluster.simulated import SimulatedCluster
from lib.cluster import Players

BEFORE_SECONDS, AFTER_SECONDS = 8.0, 8.0


@dataclass
class Loss:
    """What happened when one of two nodes was killed, each with a player."""

    fps_before: float
    fps_without: float  # meanwhile
    seconds: float  # from the kill to the first message of the player in its place
    fps_after: float

    @property
    def cost(self) -> float:
        """Frames that were not played, as seconds at full speed."""
        return self.seconds * (1 - self.fps_without / self.fps_before)


def kill_a_node(players_on: Callable[[str], Players], net: nn.Module) -> Loss:
    """Let two players play on two nodes, kill one of those, and wait until two play again.

    Args:
        players_on: makes the two players, given the address of the cluster.
        net: what they play with.
    """
    with SimulatedCluster(2, 2) as cluster:
        os.environ |= cluster.environment
        with players_on(cluster.address) as players:
            players.broadcast(net, SimpleNamespace(iteration=0, frames=10**9))
            arrivals: list[tuple[float, int, int]] = []  # time, player, frames
            begin = killed = noticed = back = 0.0
            for arrived in players:
                now = perf_counter()
                arrivals += [(now, new.player, new.played) for new in arrived]
                if not begin:
                    begin = now if {player for _, player, _ in arrivals} == {0, 1} else 0.0
                elif not killed:
                    if now > begin + BEFORE_SECONDS:
                        cluster.kill(0)
                        killed = now
                elif not noticed:
                    noticed = now if players.lost else 0.0
                elif not back:
                    back = now if not players.lost else 0.0
                elif now > back + AFTER_SECONDS:
                    break

    def fps(start: float, end: float) -> float:
        return sum(frames for at, _, frames in arrivals if start < at <= end) / (end - start)

    return Loss(fps(begin, killed), fps(killed, back), back - killed, fps(back, now))
