"""Measure what one learner of 09_many_machines could take in, and what a lost node costs.

Three parts: what goes over the network; how many frames per second the learner takes in from 10,
100 and 1,000 players that only send again what was recorded; and what a lost node costs, on a
simulated cluster. Tables are written as it goes; what is in measured.json is not measured again.
Everything listens on 127.0.0.1 alone. FPS against players: python -m benchmarks sweep players

    python -m benchmarks cluster
"""

import argparse
import json
import runpy
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import UserError
from benchmarks.arguments import add_counts, add_out
from benchmarks.cluster.intake import bytes_per_frame, microseconds_per_frame, record, take_in
from benchmarks.cluster.lost_node import lose_a_node
from benchmarks.report import here, output_folder, write_table
from benchmarks.runner import CLUSTER, find_rungs, missing
from lib.learning.dqn_model import DQN
from lib.players.cluster import Players
from lib.players.message_buffer import MessageReplayBuffer
from lib.running.machine import describe_machine

SIMULATED = (10, 100, 1_000)  # players
RECORDED = 40  # messages
NETWORK = 10e9 / 8  # bytes per second
ENOUGH_INTAKE = 20_000  # frames per second that a learner should take in
MOST_SECONDS = 5  # at full speed that a lost node may cost


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    add_counts(parser, {"seconds": (8, "seconds of taking in from so many simulated players")})
    add_out(parser, "runs/cluster")


def run(args: argparse.Namespace) -> int:
    """Measure what is not measured yet; tables are written as it goes."""
    if problem := missing(CLUSTER):
        raise UserError(problem)
    out = output_folder(args.out)
    network = measured(out, "network", measure_network)
    print(write_network(out, network))
    taken = []
    for count in SIMULATED:
        name = f"intake, {count} players, {args.seconds} s"
        taken.append(measured(out, name, partial(measure_intake, count, args.seconds)))
        table = write_intake(out, network, taken)
    print(table)
    ways = ("killed", "silent")
    losses = {how: measured(out, f"a {how} node", partial(measure_loss, how)) for how in ways}
    print(write_losses(out, losses))
    print(f"written to {out}")
    return 0


def measured(out: Path, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was measured under this name, now or before an interruption."""
    file = out / "measured.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if name in known:
        print(f"{name}: measured already, see {file}")
    else:
        known[name] = measure() | {"machine": here(describe_machine(torch.device("cpu")))}
        part = file.with_suffix(".part")
        part.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        part.replace(file)
    return known[name]


def real_players(count: int) -> tuple[Any, Any, Any]:
    """The rung's settings, its network, and what makes its players.

    That is given an address, and maybe what changes their class.
    """
    rung = runpy.run_path(str(find_rungs()[CLUSTER]), run_name="many_machines")
    hp = rung["Options"](players=count)
    net = DQN((hp.stack, 84, 84), hp.make_envs(1, 0).n_actions)

    def players_on(address: str, change: Callable[[type], type] = lambda same: same) -> Players:
        return Players(change(rung["Player"]), count, (hp, 0), address, hp.player_timeout)

    return hp, net, players_on


@cache
def recorded() -> tuple[Any, Any, list[Any], Any]:
    """Messages of a real player, with the rung's settings, a network, and a buffer for them."""
    hp, net, players_on = real_players(1)
    messages = record(players_on(""), net, RECORDED)
    buffer = MessageReplayBuffer(hp.replay_size, (hp.stack, *messages[0].frames.shape[1:]))
    return hp, net, messages, buffer


def measure_network() -> dict[str, Any]:
    """Bytes and microseconds of recorded messages, per frame."""
    hp, net, messages, buffer = recorded()
    return {
        "messages": f"{len(messages)} messages of {hp.message_steps} steps of {hp.envs} games of "
        f"Pong, {hp.n_steps}-step transitions of {hp.stack} stacked frames; weights are broadcast "
        f"every {hp.sync_updates} updates.",
        "bytes": bytes_per_frame(messages),
        "weights": sum(w.numel() * w.element_size() for w in net.state_dict().values()),
        "microseconds": microseconds_per_frame(messages, buffer),
    }


def measure_intake(count: int, seconds: float) -> dict[str, Any]:
    """What a learner takes in from so many players."""
    _, net, messages, buffer = recorded()
    return asdict(take_in(count, messages, net, buffer, seconds))


def measure_loss(how: str) -> dict[str, Any]:
    """What a node costs that is killed, or does not answer any more."""
    _, net, players_on = real_players(2)
    loss = lose_a_node(how, players_on, net)
    return asdict(loss) | {"cost": loss.cost}


def write_network(out: Path, network: dict[str, Any]) -> str:
    """The table of what goes over the network, which is also returned."""
    sizes, costs = network["bytes"], network["microseconds"]
    rows = [
        ["bytes of a message per frame, compressed", f"{sizes['packed']:,.0f}"],
        ["the same, not compressed", f"{sizes['plain']:,.0f}"],
        ["bytes per second and 1,000 FPS", f"{sizes['packed'] * 1000:,.0f}"],
        ["bytes of the weights, for each machine and broadcast", f"{network['weights']:,}"],
        *[[f"microseconds to {name} a frame, one core", f"{costs[name]:.1f}"] for name in costs],
    ]
    notes = [network["machine"], network["messages"]]
    title = "What goes over the network"
    return write_table(out / "network", title, ["what", "measured"], rows, notes)


def write_intake(out: Path, network: dict[str, Any], taken: list[dict[str, Any]]) -> str:
    """The table of what one learner takes in, which is also returned."""
    costs, sizes = network["microseconds"], network["bytes"]
    rows = [
        [
            f"{intake['players']:,}",
            f"{intake['frames_per_second']:,.0f}",
            f"{intake['messages_per_second']:,.0f}",
            f"{intake['frames_per_second'] * sizes['packed'] / 1e6:,.1f}",
            f"{intake['storing'] * 100:.0f} %",
        ]
        for intake in taken
    ]
    bounds = {
        "unpacking, one core": 1e6 / costs["unpack"],
        "the buffer, one core": 1e6 / costs["store"],
        "the network at 10 Gbit/s": NETWORK / sizes["packed"],
        "the network without compression": NETWORK / sizes["plain"],
    }
    notes = [
        taken[0]["machine"],
        "Taken in by a learner that makes no updates, from recorded messages that two processes "
        "on the same machine send for all players: they, Ray and the learner share its cores.",
        "Storing: share of the learner's time in the buffer; the rest is Ray's calls, unpacking "
        "and waiting.",
        "By themselves would do: "
        + ", ".join(f"{name} {fps:,.0f} frames per second" for name, fps in bounds.items()),
        f"Target: at least {ENOUGH_INTAKE:,} frames per second; "
        + reached(all(intake["frames_per_second"] >= ENOUGH_INTAKE for intake in taken)),
    ]
    header = ["players", "frames per second", "messages per second", "MB per second", "storing"]
    return write_table(out / "intake", "What one learner takes in", header, rows, notes)


def write_losses(out: Path, losses: dict[str, dict[str, Any]]) -> str:
    """The table of lost nodes, which is also returned."""
    speeds = ("fps_before", "fps_without", "fps_after")
    header = ["the node is", "FPS before", "FPS without", "FPS after", "noticed", "full speed"]
    header += ["cost", "lost transitions of the others"]
    rows = [
        [
            how,
            *(f"{loss[name]:,.0f}" for name in speeds),
            *(f"{loss[name]:.1f} s" for name in ("noticed", "seconds", "cost")),
            f"{loss['transitions_lost']:,} of {loss['transitions']:,}",
        ]
        for how, loss in losses.items()
    ]
    good = [
        loss["cost"] < MOST_SECONDS and not loss["transitions_lost"] for loss in losses.values()
    ]
    notes = [
        losses["killed"]["machine"],
        "A cluster of a head and two nodes on this machine, a player on each, a learner that makes "
        "no updates. One node is lost; its player is placed on the other one.",
        "Killed: others see at once that its processes are gone. Silent: it does not answer any "
        "more, as after a power cut.",
        "Seconds are counted from then on. FPS without: of the other player, until full speed. "
        "Cost: the frames that were not played, as seconds at full speed.",
        f"Target: less than {MOST_SECONDS} s, no transition of the others; {reached(all(good))}",
    ]
    return write_table(out / "loss", "A lost node", header, rows, notes)


def reached(target: bool) -> str:
    """Whether a target is reached, as a word."""
    return "reached" if target else "not reached"
