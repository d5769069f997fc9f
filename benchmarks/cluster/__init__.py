"""Measure 09_many_machines on this machine, and what one learner could take in from a cluster.

Four parts: FPS against players, beside 04_new_wrappers_parallel in the same run; what goes over the
network; what a killed node costs, on a simulated cluster; and how many frames per second the
learner takes in from 10, 100 and 1,000 players that only send again what was recorded. What is
complete in --run-dir is not run again. Everything listens on 127.0.0.1 alone.

    python -m benchmarks cluster --seeds 2
"""

import argparse
import importlib.util
import math
import runpy
from pathlib import Path
from statistics import mean
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks import UserError
from benchmarks.arguments import add_counts, positive
from benchmarks.records import Record, read_records
from benchmarks.report import change, join_machine, markdown, output_folder, spread, write_table
from benchmarks.runner import Job, find_rungs, run_suite

RUNG, PARALLEL = "09_many_machines", "04_new_wrappers_parallel"
PLAYERS = (1, 2, 4)
SIMULATED = (10, 100, 1_000)
RATIOS = (8, 64)  # frames per update: as 04 where updates are the bound; where players matter
RECORDED = 40  # messages
INITIAL = 2_000
NETWORK = 10e9 / 8  # bytes per second


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    counts = {
        "seeds": (2, "runs of each, with seeds 0 to N-1"),
        "frames": (5_000, "frames of each run, filling included; four times as many for the last"),
        "seconds": (8, "seconds of taking in from so many simulated players"),
    }
    add_counts(parser, counts)
    parser.add_argument(
        "--players",
        type=positive,
        nargs="+",
        default=list(PLAYERS),
        metavar="N",
        help="how many play (default: 1 2 4)",
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        default=Path("runs/cluster"),
        metavar="FOLDER",
        help="where the runs are written (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where the tables and the figure are written (default: --run-dir)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure all four, and write their tables."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("Ray is not installed: pip install -r requirements-cluster.txt")
    if args.frames <= INITIAL:
        raise UserError(f"--frames {args.frames} leaves nothing to train after {INITIAL} frames")
    out = output_folder(args.out or args.run_dir)
    failures = measure_fps(args, out)
    measure_intake(args, out)
    measure_loss(out)
    print(f"written to {out}")
    return 1 if failures else 0


def measure_fps(args: argparse.Namespace, out: Path) -> int:
    """FPS against players, and the age of their weights; returns how many runs failed."""
    common = ["--run-dir", str(args.run_dir.resolve()), "--replay-initial", str(INITIAL)]
    common += ["--epsilon-frames", "1"]  # a random action costs no forward pass
    scripts = find_rungs()
    cases = {
        (PARALLEL, 0, 0): ["--max-frames", str(args.frames)],
        **{
            (RUNG, players, ratio): [
                *("--max-frames", str(args.frames * (4 if ratio == RATIOS[-1] else 1))),
                *("--players", str(players), "--frames-per-update", str(ratio)),
            ]
            for ratio in RATIOS
            for players in args.players
        },
    }
    jobs = {
        case: [Job(scripts[case[0]], seed, [*common, *flags]) for seed in range(args.seeds)]
        for case, flags in cases.items()
    }
    suite = [entry[seed] for seed in range(args.seeds) for entry in jobs.values()]
    failures = run_suite(suite, args.run_dir)

    records = read_records(args.run_dir)
    runs = {
        case: [record for job in entry for record in records if job.done_by(record)]
        for case, entry in jobs.items()
    }
    base = fps_of(runs[PARALLEL, 0, 0])
    rows = [
        [
            script,
            str(players or ""),
            str(ratio or "1 to 8"),
            spread(fps_of(runs[script, players, ratio])),
            change(fps_of(runs[script, players, ratio]), base) if script == RUNG else "",
            spread([weights_age(record) for record in runs[script, players, ratio]])
            if script == RUNG
            else "",
        ]
        for script, players, ratio in cases
    ]
    header = ["rung", "players", "frames per update of 128", "FPS", "against 04", "age of weights"]
    notes = [
        machine_note(records),
        "FPS: frames per second of wall clock while training; median over seeds (and their range).",
        "Age of weights: updates made between a message's weights and its arrival, mean of a run.",
    ]
    write_table(out / "fps", "FPS against players", header, rows, notes)
    print(markdown("FPS against players", header, rows, notes))
    draw_fps(out, {case: fps_of(entry) for case, entry in runs.items()}, notes[0])
    return failures


def draw_fps(out: Path, fps: dict[tuple[str, int, int], list[float]], machine: str) -> None:
    """The figure of ``measure_fps``."""
    from benchmarks import plots

    bars = [
        plots.Bar(
            f"{players} players, {ratio} frames per update" if ratio else script,
            values,
            plots.rung_colour(script),
        )
        for (script, players, ratio), values in fps.items()
    ]
    unit = "FPS (frames per second of wall clock, while training; updates of 128)"
    plots.bar_figure(out / "fps.png", "FPS against players", unit, bars, machine)


def measure_intake(args: argparse.Namespace, out: Path) -> None:
    """Bytes of the messages, what a frame costs, and what a learner takes in."""
    from benchmarks.cluster.intake import microseconds_per_frame, record, take_in
    from lib.bulk_replay import BulkReplayBuffer

    hp, net, players_on = real_players(1)
    messages = record(players_on(""), net, RECORDED)
    buffer = BulkReplayBuffer(hp.replay_size, (hp.stack, *messages[0].frames.shape[1:]))
    costs = microseconds_per_frame(messages, buffer)
    costs = microseconds_per_frame(messages, buffer)  # once its memory is there
    sizes = sizes_of(messages)
    weights = sum(w.numel() * w.element_size() for w in net.state_dict().values())
    frames = sum(message.played for message in messages)
    rows = [
        ["bytes of a message per frame, compressed", f"{sizes['packed'] / frames:,.0f}"],
        ["the same, not compressed", f"{sizes['plain'] / frames:,.0f}"],
        ["bytes per second and 1,000 FPS", f"{sizes['packed'] / frames * 1000:,.0f}"],
        [f"bytes of the weights, for each machine every {hp.sync_updates} updates", f"{weights:,}"],
        *[[f"microseconds to {name} a frame, one core", f"{costs[name]:.1f}"] for name in costs],
    ]
    header = ["what", "measured"]
    notes = [
        machine_note([]),
        f"{len(messages)} messages of {hp.message_steps} steps of {hp.envs} games of Pong, "
        f"{hp.n_steps}-step transitions of {hp.stack} stacked frames.",
    ]
    write_table(out / "network", "What goes over the network", header, rows, notes)
    print(markdown("What goes over the network", header, rows, notes))

    table = []
    for count in SIMULATED:
        taken = take_in(count, messages, net, buffer, args.seconds)
        table.append(
            [
                f"{count:,}",
                f"{taken.frames_per_second:,.0f}",
                f"{taken.messages_per_second:,.0f}",
                f"{taken.frames_per_second * sizes['packed'] / frames / 1e6:,.1f}",
                f"{taken.storing * 100:.0f} %",
            ]
        )
    header = ["players", "frames per second", "messages per second", "MB per second", "storing"]
    bounds = {
        "unpacking, one core": 1e6 / costs["unpack"],
        "the buffer, one core": 1e6 / costs["store"],
        "the network at 10 Gbit/s": NETWORK / (sizes["packed"] / frames),
        "the network without compression": NETWORK / (sizes["plain"] / frames),
    }
    notes = [
        machine_note([]),
        "Taken in by a learner that makes no updates, from recorded messages that two processes "
        "on the same machine send for all players: they, Ray and the learner share its cores.",
        "Storing: share of the learner's time in the buffer; the rest is Ray's calls, unpacking "
        "and waiting.",
        "By themselves would do: "
        + ", ".join(f"{name} {fps:,.0f} frames per second" for name, fps in bounds.items())
        + ". An update of 128 per 8 frames is the FPS of the other table.",
    ]
    write_table(out / "intake", "What one learner takes in", header, table, notes)
    print(markdown("What one learner takes in", header, table, notes))


def measure_loss(out: Path) -> None:
    """What a killed node costs."""
    from benchmarks.cluster.loss import kill_a_node

    _, net, players_on = real_players(2)
    loss = kill_a_node(players_on, net)
    header = ["when", "FPS"]
    rows = [
        ["before", f"{loss.fps_before:,.0f}"],
        [f"the {loss.seconds:.1f} seconds without one player", f"{loss.fps_without:,.0f}"],
        ["afterwards", f"{loss.fps_after:,.0f}"],
        ["cost, as seconds at full speed", f"{loss.cost:.1f}"],
    ]
    notes = [
        machine_note([]),
        "A cluster of a head and two nodes on this machine, a player on each, a learner that makes "
        "no updates. One node is killed; its player is placed on the other one.",
    ]
    write_table(out / "loss", "A killed node", header, rows, notes)
    print(markdown("A killed node", header, rows, notes))


def real_players(count: int) -> tuple[Any, Any, Any]:
    """The rung's settings, its network, and what makes its players, given an address."""
    from lib.cluster import Players
    from lib.dqn_model import DQN

    rung = runpy.run_path(str(find_rungs()[RUNG]), run_name="many_machines")
    hp = rung["Options"](players=count)
    net = DQN((hp.stack, 84, 84), hp.make_envs(1, 0).n_actions)

    def players_on(address: str) -> Players:
        return Players(rung["Player"], count, (hp, 0), address, hp.player_timeout)

    return hp, net, players_on


def sizes_of(messages: list[Any]) -> dict[str, int]:
    """Bytes of all messages, as they are sent and as they would be without compression."""
    import pickle

    packed = sum(len(pickle.dumps(message, pickle.HIGHEST_PROTOCOL)) for message in messages)
    shrunk = sum(
        message.frames.nbytes - len(message.__getstate__()["frames"][1]) for message in messages
    )
    return {"packed": packed, "plain": packed + shrunk}


def fps_of(records: list[Record]) -> list[float]:
    """Of the runs that began to train."""
    return [record.fps for record in records if record.fps is not None]


def weights_age(record: Record) -> float:
    """Mean over a run, in updates."""
    events = EventAccumulator(str(record.folder), size_guidance={"scalars": 0}).Reload()
    tag = "players/weights_age"  # missing in a run of less than 100 updates
    points = events.Scalars(tag) if tag in events.Tags()["scalars"] else []
    return mean(point.value for point in points) if points else math.nan


def machine_note(records: list[Record]) -> str:
    """Where it was measured."""
    import torch

    from lib.run import describe_machine

    machine = records[0].machine if records else describe_machine(torch.device("cpu"))
    return f"Machine: {join_machine(machine)}"
