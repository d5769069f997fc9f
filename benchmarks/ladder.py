"""Run the rungs of the ladder, one after another, for their FPS or until they solve Pong.

Every seed runs through all rungs before the next seed does. So a machine that gets slower or faster
favours no rung. Complete runs in --run-dir are not repeated: after an interruption, start the same
command again. Flags after -- go to every rung.

    python -m benchmarks ladder --frames 10000 --seeds 0-2    compare FPS
    python -m benchmarks ladder --solve --cuda                run to 17
    python -m benchmarks ladder --rungs 01 03 -- --amp        some rungs, another setting

Published runs have held-out seeds. A short run of 01 beside every seed tells how fast the machine
was in that hour:

    python -m benchmarks ladder --rungs 07 --solve --held-out --beside-01

To choose a setting, many short runs say more than a few long ones:

    python -m benchmarks ladder --rungs 07 --solve --max-frames 400000 --seeds 0-9
    python -m benchmarks ladder --rungs 07 --solve --max-frames 400000 --seeds 0-9 -- --gamma 0.99
    python -m benchmarks table runs/ladder --every 100000     reward by 100,000 frames

A rung that needs what is not installed is left out. The table: python -m benchmarks table RUN_DIR
"""

import argparse
from pathlib import Path

from benchmarks import UserError
from benchmarks.runner import (
    BASELINE,
    Job,
    add_run_arguments,
    chosen_seeds,
    common_flags,
    find_rungs,
    missing,
    run_suite,
)

BESIDE_FRAMES = 4_000  # a minute on a machine on which 01 runs at 70 FPS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    text = "rungs by the beginning of their names, as 01 or 04_new_wrappers_p (default: all)"
    parser.add_argument("--rungs", nargs="+", metavar="NN", help=text)
    text = (
        f"with every seed, first run 01 for its FPS ({BESIDE_FRAMES} frames, without flags after "
        "--); table compares other FPS of that hour with it"
    )
    parser.add_argument("--beside-01", action="store_true", help=text)
    add_run_arguments(parser, run_dir="runs/ladder")


def run(args: argparse.Namespace) -> int:
    """Run the chosen rungs."""
    flags = common_flags(args) + args.rung_flags
    scripts = installed(choose(args.rungs))
    jobs: list[Job] = []
    for seed in chosen_seeds(args):
        if args.beside_01:
            length = {"solve": False, "max_frames": None, "frames": BESIDE_FRAMES}
            beside = argparse.Namespace(**vars(args) | length | {"replay_initial": None})
            jobs.append(Job(find_rungs()[BASELINE], seed, common_flags(beside)))
        jobs += [Job(script, seed, flags) for script in scripts]
    failures = run_suite(jobs, args.run_dir)
    print(f"the table: python -m benchmarks table {args.run_dir}")
    return 1 if failures else 0


def choose(beginnings: list[str] | None) -> list[Path]:
    """The rungs whose names begin with these texts, in the order of the ladder."""
    rungs = find_rungs()
    for beginning in beginnings or []:
        if not any(name.startswith(beginning) for name in rungs):
            raise UserError(f"--rungs {beginning}: there are only {', '.join(rungs)}")
    chosen = tuple(beginnings or [""])
    return [path for name, path in rungs.items() if name.startswith(chosen)]


def installed(scripts: list[Path]) -> list[Path]:
    """The rungs that can run here; the others are named."""
    lacking = {script: problem for script in scripts if (problem := missing(script.stem))}
    for script, problem in lacking.items():
        print(f"{script.stem} is left out: {problem}")
    if len(lacking) == len(scripts):
        raise UserError("none of the rungs can run here")
    return [script for script in scripts if script not in lacking]
