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
from pathlib import Path

from benchmarks import UserError
from benchmarks.arguments import add_counts, positive
from benchmarks.cluster.fps import INITIAL, fps_jobs, report_fps
from benchmarks.cluster.shared import machine_note
from benchmarks.report import markdown, output_folder, write_table
from benchmarks.runner import run_suite

PLAYERS = (1, 2, 4)
TARGETS_HEADER = ["what", "target", "measured", "reached"]


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
    from benchmarks.cluster.lost_node import measure_loss  # slow imports, not for --help
    from benchmarks.cluster.network import measure_intake

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
