"""Run the rungs of the ladder, one after another, for their FPS or until they solve Pong.

Every seed runs through all rungs before the next one does, so a machine that gets slower or
faster meanwhile does not favour a rung. What is complete in --run-dir is not run again: start
the same command once more after an interruption. Flags after -- go to every rung.

    python -m benchmarks ladder --frames 10000 --seeds 3      compare FPS
    python -m benchmarks ladder --solve --cuda                the whole way
    python -m benchmarks ladder --rungs 01 03 -- --amp        some rungs, another setting

The table and the figures: python -m benchmarks table RUN_DIR
"""

import argparse
from pathlib import Path

from benchmarks import UserError
from benchmarks.runner import Job, add_run_arguments, common_flags, find_rungs, run_suite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument(
        "--rungs",
        nargs="+",
        metavar="NN",
        help="which: beginnings of their names, as 01 or 04_new_wrappers_p (default: all)",
    )
    add_run_arguments(parser, run_dir="runs/ladder")


def run(args: argparse.Namespace) -> int:
    """Run the chosen rungs."""
    flags = common_flags(args) + args.rung_flags
    scripts = choose(args.rungs)
    jobs = [Job(script, seed, flags) for seed in range(args.seeds) for script in scripts]
    failures = run_suite(jobs, args.run_dir)
    print(f"the table and the figures: python -m benchmarks table {args.run_dir}")
    return 1 if failures else 0


def choose(beginnings: list[str] | None) -> list[Path]:
    """The rungs whose names begin so, in the order of the ladder."""
    rungs = find_rungs()
    for beginning in beginnings or []:
        if not any(name.startswith(beginning) for name in rungs):
            raise UserError(f"--rungs {beginning}: there are only {', '.join(rungs)}")
    chosen = tuple(beginnings or [""])
    return [path for name, path in rungs.items() if name.startswith(chosen)]
