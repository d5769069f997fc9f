"""Measure what one learner of 09_many_machines could take in.

What goes over the network, and how many frames per second the learner takes in from 10, 100 and
1,000 players that only send again what was recorded. Everything listens on 127.0.0.1 alone. FPS
against players: python -m benchmarks sweep players

    python -m benchmarks cluster
"""

import argparse
import runpy
from pathlib import Path

import torch

from benchmarks import UserError
from benchmarks.arguments import add_counts, add_out
from benchmarks.cluster.intake import (
    Intake,
    bytes_per_frame,
    microseconds_per_frame,
    record,
    take_in,
)
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    add_counts(parser, {"seconds": (8, "seconds of taking in from so many simulated players")})
    add_out(parser, "runs/cluster")


def run(args: argparse.Namespace) -> int:
    """Measure; tables are written as it goes."""
    if problem := missing(CLUSTER):
        raise UserError(problem)
    out = output_folder(args.out)
    machine = here(describe_machine(torch.device("cpu")))
    rung = runpy.run_path(str(find_rungs()[CLUSTER]), run_name="many_machines")
    hp = rung["Options"](players=1)
    net = DQN((hp.stack, 84, 84), hp.make_envs(1, 0).n_actions)
    player = Players(rung["Player"], 1, (hp, 0), "", hp.player_timeout)
    messages = record(player, net, RECORDED)
    buffer = MessageReplayBuffer(hp.replay_size, (hp.stack, *messages[0].frames.shape[1:]))
    sizes, costs = bytes_per_frame(messages), microseconds_per_frame(messages, buffer)
    weights = sum(w.numel() * w.element_size() for w in net.state_dict().values())
    about = (
        f"{len(messages)} messages of {hp.message_steps} steps of {hp.envs} games of "
        f"Pong, {hp.n_steps}-step transitions of {hp.stack} stacked frames; weights are broadcast "
        f"every {hp.sync_updates} updates."
    )
    rows = [
        ["bytes of a message per frame, compressed", f"{sizes['packed']:,.0f}"],
        ["the same, not compressed", f"{sizes['plain']:,.0f}"],
        ["bytes per second and 1,000 FPS", f"{sizes['packed'] * 1000:,.0f}"],
        ["bytes of the weights, for each machine and broadcast", f"{weights:,}"],
        *[[f"microseconds to {name} a frame, one core", f"{costs[name]:.1f}"] for name in costs],
    ]
    title, header = "What goes over the network", ["what", "measured"]
    print(write_table(out / "network", title, header, rows, [machine, about]))
    taken: list[Intake] = []
    for count in SIMULATED:
        taken.append(take_in(count, messages, net, buffer, args.seconds))
        table = write_intake(out, machine, sizes, costs, taken)
    print(f"{table}\nwritten to {out}")
    return 0


def write_intake(
    out: Path, machine: str, sizes: dict[str, float], costs: dict[str, float], taken: list[Intake]
) -> str:
    """Write and return the table of what one learner takes in; a frame has so many bytes and us."""
    rows = [
        [
            f"{intake.players:,}",
            f"{intake.frames_per_second:,.0f}",
            f"{intake.messages_per_second:,.0f}",
            f"{intake.frames_per_second * sizes['packed'] / 1e6:,.1f}",
            f"{intake.storing * 100:.0f} %",
        ]
        for intake in taken
    ]
    bounds = {
        "unpacking, one core": 1e6 / costs["unpack"],
        "the buffer, one core": 1e6 / costs["store"],
        "the network at 10 Gbit/s": NETWORK / sizes["packed"],
        "the network without compression": NETWORK / sizes["plain"],
    }
    enough = all(intake.frames_per_second >= ENOUGH_INTAKE for intake in taken)
    target = f"Target: at least {ENOUGH_INTAKE:,} frames per second; "
    notes = [
        machine,
        "Taken in by a learner that makes no updates, from recorded messages that two processes "
        "on the same machine send for all players: they, Ray and the learner share its cores.",
        "Storing: share of the learner's time in the buffer; the rest is Ray's calls, unpacking "
        "and waiting.",
        "By themselves would do: "
        + ", ".join(f"{name} {fps:,.0f} frames per second" for name, fps in bounds.items()),
        target + ("reached" if enough else "not reached"),
    ]
    header = ["players", "frames per second", "messages per second", "MB per second", "storing"]
    return write_table(out / "intake", "What one learner takes in", header, rows, notes)
