"""Show where the time of one iteration goes, and what limits the rung on this machine.

The rung runs in this process, with a stopwatch around the functions it calls. Then it runs without
sampling, without the optimizer step and without any update, and once more, shortly, under
torch.profiler. If the rung has a player process, there is a stopwatch in it, too. A matrix product,
timed before each run, is the limit: so many operations per second the machine can do.

    python -m benchmarks breakdown 01_baseline 03_parallel
    python -m benchmarks breakdown 01_baseline 02_n_envs --amp
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks import UserError, charts
from benchmarks.arguments import add_counts, add_epsilon, add_out, add_training, suffix, where
from benchmarks.breakdown.rung import (
    WARM_UP,
    WHAT_IFS,
    count_operations,
    load,
    profile_rung,
    run_rung,
    timed_player,
    without,
)
from benchmarks.breakdown.stopwatch import REST, UPDATING, Clock, Span, timed_parts
from benchmarks.breakdown.verdict import by_kind, verdict
from benchmarks.report import change, here, output_folder, short_machine, spread, write_table
from benchmarks.runner import find_rungs
from benchmarks.timing import MATRIX, chosen_device, operations_per_second
from lib.running.machine import describe_machine, prepare_torch
from lib.running.options import ReplayOptions


@dataclass
class Breakdown:
    """All that was found out about a rung; times in milliseconds per frame."""

    rung: str
    processes: dict[str, dict[str, float]]  # the trainer's parts, and those of the player
    frames_per_update: float
    operations: float  # of the trainer, per update: of its convolutions and matrix products
    limits: list[float]  # of these per second in a large matrix product, before every repeat
    what_ifs: dict[str, list[float]]  # FPS of every repeat
    verdict: str  # what bounds it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    text = "such as 01_baseline (default: all whose update is not one compiled function)"
    parser.add_argument("rungs", nargs="*", metavar="RUNG", help=text)
    add_training(parser)
    counts = {
        "updates": (200, "updates that are timed"),
        "repeats": (3, "runs of every what-if rate"),
        "replay-initial": (1_000, "transitions to play before training begins"),
    }
    add_counts(parser, counts)
    add_epsilon(parser)
    add_out(parser, "runs/breakdown")


def run(args: argparse.Namespace) -> int:
    """Take the rungs apart, write tables, chart and traces."""
    device = chosen_device(args.cuda)
    whole = [rung for rung in find_rungs() if hasattr(load(rung), "replay_batches")]
    rungs = [Path(name).stem for name in args.rungs] or whole
    for rung in rungs:
        if rung not in whole:
            raise UserError(
                f"{rung} cannot be taken apart (later rungs update in one compiled function), "
                f"only {', '.join(whole)}"
            )
    settings = {"cuda": args.cuda, "amp": args.amp, "replay_initial": args.replay_initial}
    settings |= {"epsilon_start": args.epsilon, "epsilon_final": args.epsilon}
    if message := ReplayOptions(**settings).problem():
        raise UserError(message)
    out = output_folder(args.out)
    prepare_torch(seed=0)
    found = []
    for rung in rungs:
        found.append(take_apart(rung, settings, args, device, out))
        print(found[-1].verdict, flush=True)
    write(found, args, out, describe_machine(device))
    return 0


def take_apart(
    rung: str, settings: dict[str, Any], args: argparse.Namespace, device: torch.device, out: Path
) -> Breakdown:
    """Everything about one rung."""
    module, updates, total = load(rung), args.updates, args.repeats * len(WHAT_IFS) + 2
    what_ifs: dict[str, list[float]] = {name: [] for name in (*WHAT_IFS, "filling the buffer")}
    limits, dtype = [], torch.bfloat16 if args.amp else torch.float32
    with tqdm(total=total, desc=rung, unit="run", disable=None) as bar:
        for _ in range(args.repeats):
            limits.append(operations_per_second(device, dtype))
            for name in WHAT_IFS:
                with without(name, module, device):
                    plain = run_rung(module, settings, updates)
                what_ifs[name].append(plain.fps)
                bar.update()
            what_ifs["filling the buffer"].append(plain.filling_fps)
        clock, player = Clock(device), list[Span]()
        with timed_parts(clock.part), timed_player(player):
            timed = run_rung(module, settings, updates)
        processes = {"trainer": timed.milliseconds(clock.spans)}
        if player:
            processes["player"] = timed.milliseconds(player)
        bar.update()
        operators = profile_rung(module, settings, out / f"trace-{rung}{suffix(args)}")
        (out / f"operators-{rung}{suffix(args)}.txt").write_text(operators)
        bar.update()
    frames_per_update, bound = timed.frames / updates, verdict(rung, processes["trainer"])
    operations = count_operations(module, settings)
    return Breakdown(rung, processes, frames_per_update, operations, limits, what_ifs, bound)


def limit_row(one: Breakdown) -> list[str]:
    """A rung's operations per second, and those that the machine can do."""
    per_frame = one.operations / one.frames_per_update / 1e9
    limits = [limit / 1e9 for limit in one.limits]
    rates = [per_frame * fps for fps in one.what_ifs["as it is"]]
    shares = [rate / limit for rate, limit in zip(rates, limits, strict=True)]
    trainer = one.processes["trainer"]
    updating = by_kind(trainer)[UPDATING] / sum(trainer.values())
    return [
        *(one.rung, f"{one.operations / 1e9:.2f}", spread(limits), spread(rates)),
        *(spread(shares, 2), f"{statistics.median(shares) / updating:.2f}"),
    ]


def write(
    found: Sequence[Breakdown], args: argparse.Namespace, out: Path, machine: dict[str, Any]
) -> None:
    """Write tables and chart."""
    common = [
        here(machine),
        f"Seed 0, {args.updates} updates after {WARM_UP} to warm up, epsilon {args.epsilon:g}, "
        f"{args.replay_initial:,} transitions in the replay buffer at the start",
    ]

    def table(name: str, title: str, header: str, rows: list[list[str]], *notes: str) -> None:
        path, title = out / f"breakdown{name}{suffix(args)}", f"{title}, on the {where(args)}"
        write_table(path, title, header.split("; "), rows, [*common, *notes])

    table(
        "",
        "Where an iteration goes",
        "rung; process; part; ms per frame; ms per update; share",
        [
            [
                *(one.rung, process, part),
                *(f"{ms:.3f}", f"{ms * one.frames_per_update:.3f}"),
                f"{ms / sum(parts.values()):.1%}",
            ]
            for one in found
            for process, parts in one.processes.items()
            for part, ms in parts.items()
        ],
        "A part is what its functions take without the parts they call; what is left is "
        f"called {REST!r}",
        "A player is timed in its own process, while the trainer trains; where it is ahead, it "
        "waits for the trainer in 'receiving'",
        "On a GPU every part is waited for, so nothing overlaps here; the what-if rates are "
        "without that",
        *(one.verdict for one in found),
    )
    table(
        "-what-if",
        "Frames per second without one thing",
        "rung; what if; FPS; change",
        [
            [one.rung, name, spread(fps, 1), change(fps, one.what_ifs["as it is"])]
            for one in found
            for name, fps in one.what_ifs.items()
        ],
        f"Medians (and ranges) of {args.repeats} runs of each, in turn",
        "Without sampling: one batch is used again and again. Without any update: the batch is "
        "sampled and not learned from",
    )
    table(
        "-limit",
        "How close to the limit of the machine",
        "rung; GFLOP per update; GFLOP/s of a matrix product; of the rung; share; while updating",
        [limit_row(one) for one in found],
        "GFLOP: billions of additions and multiplications in the convolutions and matrix products "
        "of the trainer, as torch counts them",
        f"The matrix product: two of {MATRIX:,} x {MATRIX:,}, in the precision of the updates, "
        "before each run; medians (and ranges) of the runs as they are",
        "While updating: the share without playing, waiting, handing over, logging",
    )
    bars = {
        one.rung if process == "trainer" else f"{one.rung}\n{process}": by_kind(parts)
        for one in found
        for process, parts in one.processes.items()
    }
    path = out / f"breakdown{suffix(args)}.png"
    title = f"Where an iteration goes, on the {where(args)}"
    charts.stacked_chart(path, title, "milliseconds per frame", bars, short_machine(machine))
    print(f"written to {out}; the traces open in TensorBoard and in ui.perfetto.dev")
