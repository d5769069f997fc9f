"""The tables of what goes over the network, and of what one learner takes in."""

import argparse
import pickle
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.cluster.intake import microseconds_per_frame, record, take_in
from benchmarks.cluster.shared import measured, real_players, target
from benchmarks.report import markdown, write_table
from lib.bulk_replay import BulkReplayBuffer

SIMULATED = (10, 100, 1_000)
RECORDED = 40  # messages
NETWORK = 10e9 / 8  # bytes per second
ENOUGH_INTAKE = 20_000  # frames per second


def measure_intake(args: argparse.Namespace, out: Path) -> list[list[str]]:
    """Bytes of the messages, what a frame costs, and what a learner takes in."""
    network = measured(args.run_dir, "network", measure_network)
    sizes, costs, frames = network["bytes"], network["microseconds"], network["frames"]
    rows = [
        ["bytes of a message per frame, compressed", f"{sizes['packed'] / frames:,.0f}"],
        ["the same, not compressed", f"{sizes['plain'] / frames:,.0f}"],
        ["bytes per second and 1,000 FPS", f"{sizes['packed'] / frames * 1000:,.0f}"],
        ["bytes of the weights, for each machine and broadcast", f"{sizes['weights']:,}"],
        *[[f"microseconds to {name} a frame, one core", f"{costs[name]:.1f}"] for name in costs],
    ]
    header = ["what", "measured"]
    notes = [network["machine"], network["messages"]]
    write_table(out / "network", "What goes over the network", header, rows, notes)
    print(markdown("What goes over the network", header, rows, notes))

    taken = {}
    for count in SIMULATED:

        def measure(count: int = count) -> dict[str, Any]:
            _, net, messages, buffer = recorded()
            return asdict(take_in(count, messages, net, buffer, args.seconds))

        taken[count] = measured(args.run_dir, f"intake, {count} players, {args.seconds} s", measure)
        table = write_intake(out, network, list(taken.values()))
    print(table)
    return [
        target(
            f"frames per second that the learner takes in from {count:,} recorded players",
            f">= {ENOUGH_INTAKE:,}",
            f"{intake['frames_per_second']:,.0f}",
            intake["frames_per_second"] >= ENOUGH_INTAKE,
        )
        for count, intake in taken.items()
    ]


def measure_network() -> dict[str, Any]:
    """Bytes and microseconds of recorded messages."""
    hp, net, messages, buffer = recorded()
    microseconds_per_frame(messages, buffer)  # until the buffer has its memory
    weights = sum(w.numel() * w.element_size() for w in net.state_dict().values())
    return {
        "messages": f"{len(messages)} messages of {hp.message_steps} steps of {hp.envs} games of "
        f"Pong, {hp.n_steps}-step transitions of {hp.stack} stacked frames; weights are broadcast "
        f"every {hp.sync_updates} updates.",
        "frames": sum(message.played for message in messages),
        "bytes": sizes_of(messages) | {"weights": weights},
        "microseconds": microseconds_per_frame(messages, buffer),
    }


@cache
def recorded() -> tuple[Any, Any, list[Any], Any]:
    """Messages of a real player, with the rung's settings, a network, and a buffer for them."""
    hp, net, players_on = real_players(1)
    messages = record(players_on(""), net, RECORDED)
    buffer = BulkReplayBuffer(hp.replay_size, (hp.stack, *messages[0].frames.shape[1:]))
    return hp, net, messages, buffer


def write_intake(out: Path, network: dict[str, Any], taken: list[dict[str, Any]]) -> str:
    """The table of what one learner takes in, which is also returned."""
    costs, frames = network["microseconds"], network["frames"]
    packed, plain = (network["bytes"][name] / frames for name in ("packed", "plain"))
    table = [
        [
            f"{intake['players']:,}",
            f"{intake['frames_per_second']:,.0f}",
            f"{intake['messages_per_second']:,.0f}",
            f"{intake['frames_per_second'] * packed / 1e6:,.1f}",
            f"{intake['storing'] * 100:.0f} %",
        ]
        for intake in taken
    ]
    header = ["players", "frames per second", "messages per second", "MB per second", "storing"]
    bounds = {
        "unpacking, one core": 1e6 / costs["unpack"],
        "the buffer, one core": 1e6 / costs["store"],
        "the network at 10 Gbit/s": NETWORK / packed,
        "the network without compression": NETWORK / plain,
    }
    notes = [
        taken[0]["machine"],
        "Taken in by a learner that makes no updates, from recorded messages that two processes "
        "on the same machine send for all players: they, Ray and the learner share its cores.",
        "Storing: share of the learner's time in the buffer; the rest is Ray's calls, unpacking "
        "and waiting.",
        "By themselves would do: "
        + ", ".join(f"{name} {fps:,.0f} frames per second" for name, fps in bounds.items())
        + ". An update of 128 per 8 frames is the FPS of the other table.",
    ]
    write_table(out / "intake", "What one learner takes in", header, table, notes)
    return markdown("What one learner takes in", header, table, notes)


def sizes_of(messages: list[Any]) -> dict[str, int]:
    """Bytes of all messages, as they are sent and as they would be without compression."""
    packed = sum(len(pickle.dumps(message, pickle.HIGHEST_PROTOCOL)) for message in messages)
    shrunk = sum(
        message.frames.nbytes - len(message.__getstate__()["frames"][1]) for message in messages
    )
    return {"packed": packed, "plain": packed + shrunk}
