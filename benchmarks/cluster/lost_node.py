"""The tables of what a lost node costs."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cluster.loss import lose_a_node
from benchmarks.cluster.shared import measured, real_players, target
from benchmarks.report import markdown, write_table

MOST_SECONDS = 5


def measure_loss(args: argparse.Namespace, out: Path) -> list[list[str]]:
    """What a node costs that is killed, and one that does not answer any more."""
    losses = {}
    for how in ("killed", "silent"):

        def measure(how: str = how) -> dict[str, Any]:
            _, net, players_on = real_players(2)
            loss = lose_a_node(how, players_on, net)
            return asdict(loss) | {"cost": loss.cost}

        losses[how] = measured(args.run_dir, f"a {how} node", measure)
    header = ["the node is", "FPS before", "FPS without", "FPS after", "noticed", "full speed"]
    rows = [
        [
            how,
            *(f"{loss[name]:,.0f}" for name in ("fps_before", "fps_without", "fps_after")),
            *(f"{loss[name]:.1f} s" for name in ("noticed", "seconds")),
        ]
        for how, loss in losses.items()
    ]
    notes = [
        losses["killed"]["machine"],
        "A cluster of a head and two nodes on this machine, a player on each, a learner that makes "
        "no updates. One node is lost; its player is placed on the other one.",
        "Killed: others see at once that its processes are gone. Silent: it does not answer any "
        "more, as after a power cut.",
        "Seconds are counted from then on. FPS without: of the other player, until full speed.",
    ]
    write_table(out / "loss", "A lost node", header, rows, notes)
    print(markdown("A lost node", header, rows, notes))
    lines = []
    for how, loss in losses.items():
        cost, lost = loss["cost"], loss["transitions_lost"]
        what = f"seconds at full speed that a {how} node costs"
        lines.append(target(what, f"< {MOST_SECONDS}", f"{cost:.1f}", cost < MOST_SECONDS))
        what = f"transitions of the others that a {how} node costs"
        lines.append(target(what, "0", f"{lost:,} of {loss['transitions']:,}", lost == 0))
    return lines
