"""Spend an hour on a rented GPU well: everything that waits for one, in order of worth.

Each step is a program with a time limit of its own, what it prints is kept in a file, and the
summary is written anew after each. A step that fails, or that takes too long, does not stop
the others; one for which there is no time left is left out, and none takes more than half of what
is left. Started once more with the same --out it does not repeat runs of rungs that are complete.

    python -m benchmarks gpu --check               first: a page about this GPU in three minutes
    python -m benchmarks gpu --out results/h200
    python -m benchmarks gpu --minutes 10
    python -m benchmarks gpu --rehearse            the same, tiny, and on the CPU if need be
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import UserError
from benchmarks.arguments import add_counts, add_out
from benchmarks.gpu.check import write_page
from benchmarks.gpu.steps import STEPS, Step, steps
from benchmarks.processes import lines_of, run_for
from benchmarks.report import here, output_folder, write_table
from lib.running.machine import describe_machine

GRACE_SECONDS = 30  # for a step that is asked to stop to write its records
DONE, FAILED, TOO_LONG, NO_TIME = "held", "did not hold", "stopped at its time limit", "not run"


@dataclass
class Outcome:
    """How a step went."""

    step: Step
    how: str  # one of the four above
    minutes: float = 0.0
    told: str = ""  # its last line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    add_counts(parser, {"minutes": (60, "time for all steps; those that do not fit are left out")})
    text = f"steps to make: {', '.join(STEPS)} (default: all)"
    parser.add_argument(
        "--only", nargs="+", choices=STEPS, default=STEPS, metavar="STEP", help=text
    )
    text = "make every step tiny; on the CPU if there is no GPU"
    parser.add_argument("--rehearse", action="store_true", help=text)
    text = "only find out in three minutes what works here, and write a page to send"
    parser.add_argument("--check", action="store_true", help=text)
    add_out(parser, "runs/gpu")


def run(args: argparse.Namespace) -> int:
    """Make the steps, and write what came of each."""
    if args.check:
        return write_page(output_folder(args.out).resolve(), "cpu" if args.rehearse else "cuda")
    gpu = torch.cuda.is_available()
    if not gpu and not args.rehearse:
        raise UserError("torch finds no usable GPU here (--rehearse needs none)")
    out = output_folder(args.out).resolve()
    where = here(describe_machine(torch.device("cuda" if gpu else "cpu")))
    print(where, flush=True)
    planned = [step for step in steps(out, cuda=gpu, tiny=args.rehearse) if step.name in args.only]
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + 60 * args.minutes
    try:
        for number, step in enumerate(planned, start=1):
            left = (deadline - time.monotonic()) / 60
            print(f"[{number}/{len(planned)}] {step.name}: {step.why}", flush=True)
            outcomes.append(made := make(step, left, out))
            print(f"    {made.how} after {made.minutes:.1f} minutes: {made.told}", flush=True)
            summarise(outcomes, where, out)
    finally:
        print(f"what held and what did not: {out / 'summary.md'}")
    return 0 if all(outcome.how in (DONE, NO_TIME) for outcome in outcomes) else 1


def make(step: Step, left: float, out: Path) -> Outcome:
    """Make a step if there is time for it, so many minutes; what it prints is kept."""
    if left < step.least:
        return Outcome(step, NO_TIME, told=f"wants {step.least:g} minutes, {left:.1f} are left")
    begin = time.monotonic()
    # Half of what is left is for the others, or a short visit would see the first step alone.
    deadline = begin + 60 * min(step.most, max(step.least, left / 2))
    log = out / f"{step.name}.txt"
    how = DONE
    with open(log, "w") as file:
        for command in step.commands:
            code = run_for(deadline - time.monotonic(), command, GRACE_SECONDS, file)
            if code is None:
                how = TOO_LONG
                break
            if code:
                how = FAILED  # and go on: a table shows what there is
    minutes = (time.monotonic() - begin) / 60
    return Outcome(step, how, minutes, (lines_of(log) or [""])[-1][:200])


def summarise(outcomes: Sequence[Outcome], where: str, out: Path) -> None:
    """Write what is known so far."""
    held = [outcome.step.name for outcome in outcomes if outcome.how == DONE]
    others = [outcome.step.name for outcome in outcomes if outcome.how in (FAILED, TOO_LONG)]
    write_table(
        out / "summary",
        "An hour on a GPU",
        ["step", "outcome", "minutes", "its last line", "all it said"],
        [
            [o.step.name, o.how, f"{o.minutes:.1f}", o.told.replace("|", "/"), f"{o.step.name}.txt"]
            for o in outcomes
        ],
        [
            where,
            f"Held: {', '.join(held) or 'nothing'}",
            f"Did not hold, or was not done in time: {', '.join(others) or 'nothing'}",
        ],
    )
