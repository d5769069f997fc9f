"""Measure 09_many_machines on this machine, and what one learner could take in from a cluster.

Four parts: FPS against players, beside 04_new_wrappers_parallel in the same run; what goes over the
network; how many frames per second the learner takes in from 10, 100 and 1,000 players that only
send again what was recorded; and what a lost node costs, on a simulated cluster. targets.md tells
which targets are reached. Tables are written as it goes, and what is complete in --run-dir is not
measured again. Everything listens on 127.0.0.1 alone.

    python -m benchmarks cluster --seeds 2
"""

import argparse
import importlib.util
import json
import math
import runpy
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from statistics import mean, median
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
# What it must reach.
ENOUGH_FPS, ENOUGH_INTAKE, MOST_SECONDS = 0.95, 20_000, 5
TARGETS_HEADER = ["what", "target", "measured", "reached"]

Case = tuple[str, int, int]  # script, players, frames per update; 0 where it has no such setting


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
    """Measure everything that is not in --run-dir yet; tables are written as it goes."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("Ray is not installed: pip install -r requirements-cluster.txt")
    if args.frames <= INITIAL:
        raise UserError(f"--frames {args.frames} leaves nothing to train after {INITIAL} frames")
    out = output_folder(args.out or args.run_dir)
    jobs = fps_jobs(args)
    failures = 0
    for seed in range(args.seeds):
        failures += run_suite([entry[seed] for entry in jobs.values()], args.run_dir)
        targets = report_fps(args.run_dir, out, jobs)
        write_targets(out, targets)
    for part in (measure_intake, measure_loss):
        targets += part(args, out)
        write_targets(out, targets)
    print(markdown("Targets", TARGETS_HEADER, targets, []))
    print(f"written to {out}")
    return 1 if failures else 0


def write_targets(out: Path, targets: list[list[str]]) -> None:
    """What was to be reached, as far as it is measured."""
    write_table(out / "targets", "Targets", TARGETS_HEADER, targets, [machine_note()])


def target(what: str, wanted: str, measured: str, reached: bool) -> list[str]:
    """A line of that table."""
    return [what, wanted, measured, "yes" if reached else "no"]


def measured(run_dir: Path, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was measured under this name, now or before an interruption."""
    file = run_dir / "measured.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if name in known:
        print(f"{name}: measured already, see {file}")
    else:
        known[name] = measure() | {"machine": machine_note()}
        part = file.with_suffix(".part")
        part.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        part.replace(file)
    return known[name]


def fps_jobs(args: argparse.Namespace) -> dict[Case, list[Job]]:
    """The runs of the first part, by script, players and frames per update; one for each seed."""
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
    return {
        case: [Job(scripts[case[0]], seed, [*common, *flags]) for seed in range(args.seeds)]
        for case, flags in cases.items()
    }


def report_fps(run_dir: Path, out: Path, jobs: dict[Case, list[Job]]) -> list[list[str]]:
    """FPS against players, and the age of their weights; returns the line of the target."""
    records = read_records(run_dir)
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
        for script, players, ratio in jobs
    ]
    header = ["rung", "players", "frames per update of 128", "FPS", "against 04", "age of weights"]
    machine = f"Machine: {join_machine(records[0].machine)}" if records else machine_note()
    notes = [
        machine,
        "FPS: frames per second of wall clock while training; median over seeds (and their range). "
        "Those of 09 are counted by the updates made.",
        "Age of weights: updates made between a message's weights and its arrival, mean of a run.",
    ]
    write_table(out / "fps", "FPS against players", header, rows, notes)
    print(markdown("FPS against players", header, rows, notes))
    draw_fps(out, {case: fps_of(entry) for case, entry in runs.items()}, machine)

    # A run of 04 and the run with one player that came next, with the same seed.
    before = {record.seed: record.fps for record in runs[PARALLEL, 0, 0] if record.fps}
    ratios = [
        fps / before[record.seed]
        for record in runs.get((RUNG, 1, RATIOS[0]), [])
        if record.seed in before and (fps := fps_of_run(record))
    ]
    what = f"FPS with one player, as a multiple of {PARALLEL}'s: median of {len(ratios)} pairs"
    if not ratios:
        return [target(what, f">= {ENOUGH_FPS}", "not measured", False)]
    told = f"{median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    return [target(what, f">= {ENOUGH_FPS}", told, median(ratios) >= ENOUGH_FPS)]


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


def measure_intake(args: argparse.Namespace, out: Path) -> list[list[str]]:
    """Bytes of the messages, what a frame costs, and what a learner takes in."""
    from benchmarks.cluster.intake import take_in

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
    from benchmarks.cluster.intake import microseconds_per_frame

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
    from benchmarks.cluster.intake import record
    from lib.bulk_replay import BulkReplayBuffer

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


def measure_loss(args: argparse.Namespace, out: Path) -> list[list[str]]:
    """What a node costs that is killed, and one that does not answer any more."""
    from benchmarks.cluster.loss import lose_a_node

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


def real_players(count: int) -> tuple[Any, Any, Any]:
    """The rung's settings, its network, and what makes its players.

    That is given an address, and maybe what changes their class.
    """
    from lib.cluster import Players
    from lib.dqn_model import DQN

    rung = runpy.run_path(str(find_rungs()[RUNG]), run_name="many_machines")
    hp = rung["Options"](players=count)
    net = DQN((hp.stack, 84, 84), hp.make_envs(1, 0).n_actions)

    def players_on(address: str, change: Callable[[type], type] = lambda same: same) -> Players:
        return Players(change(rung["Player"]), count, (hp, 0), address, hp.player_timeout)

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
    return [fps for fps in map(fps_of_run, records) if fps is not None]


def fps_of_run(record: Record) -> float | None:
    """Frames per second while training; None if no update was made.

    09 counts a message's frames when it arrives, and makes their updates afterwards. In a short run
    those of the last messages are missing. So the frames are counted by their updates here.
    """
    if record.script != RUNG or record.fps is None:
        return record.fps
    tags = "outcome/updates", "outcome/seconds", "filling/time_passed"
    (updates,), (end,), (*_, begin) = scalars(record, *tags)
    return updates * float(record.settings["frames_per_update"]) / (end - begin)


def weights_age(record: Record) -> float:
    """Mean over a run, in updates."""
    (points,) = scalars(record, "players/weights_age")  # none in a run of less than 100 updates
    return mean(points) if points else math.nan


def scalars(record: Record, *tags: str) -> list[list[float]]:
    """Curves of a run; empty where it has none."""
    events = EventAccumulator(str(record.folder), size_guidance={"scalars": 0}).Reload()
    known = events.Tags()["scalars"]
    return [[point.value for point in events.Scalars(tag)] if tag in known else [] for tag in tags]


def machine_note() -> str:
    """Where it is measured."""
    import torch

    from lib.run import describe_machine

    return f"Machine: {join_machine(describe_machine(torch.device('cpu')))}"
