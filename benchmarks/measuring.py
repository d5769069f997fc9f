"""Shared by the subcommands: flags, the device, timing, running programs."""

import argparse
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import Failed, UserError
from benchmarks.report import ROOT

import torch
from torch.utils.benchmark import Timer

Measure = Callable[[float], float]  # seconds to measure -> result; less is better


def positive(text: str) -> int:
    """Parse a whole number above 0, for argparse."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def add_counts(parser: argparse.ArgumentParser, flags: dict[str, tuple[int, str]]) -> None:
    """Add a flag for each whole number above 0: name -> (default, help)."""
    for name, (default, text) in flags.items():
        text += " (default: %(default)s)"
        parser.add_argument(f"--{name}", type=positive, default=default, metavar="N", help=text)


def add_out(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the flag for the folder of the results."""
    text = "folder for the results (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path(default), metavar="FOLDER", help=text)


def seconds_per_call(work: Callable[[], Any], at_least: float) -> float:
    """Return the mean time of a call over this many seconds, including the GPU's work."""
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=at_least).mean


def timed(call: Callable[[], Any], count: float = 1) -> Measure:
    """Return a measure of milliseconds per item, for a call that does ``count`` items."""
    call()  # compiles
    return lambda seconds: 1e3 * seconds_per_call(call, seconds) / count


def measure(
    ways: Mapping[str, Callable[[], Measure]], repeats: int, milliseconds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Measure ways in turn; return their results, and why some ways could not run."""
    measures, why_not = dict[str, Measure](), dict[str, str]()
    for way, make in ways.items():
        try:
            measures[way] = make()
        except Exception as error:  # no compiler, for example; the other ways still run
            why_not[way] = f"not run: {' '.join(str(error).split())[:160]}"
    measured: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats):
        first = repeat % max(len(measures), 1)  # each repeat starts with another way
        for way in [*measures][first:] + [*measures][:first]:
            measured[way].append(measures[way](milliseconds / 1e3))
    return measured, why_not


def chosen_device(cuda: bool) -> torch.device:
    """Return the device that ``--cuda`` asks for; raise UserError if there is none."""
    if cuda and not torch.cuda.is_available():
        raise UserError("--cuda: torch finds no usable GPU")
    return torch.device("cuda" if cuda else "cpu")


def output_of(
    command: Sequence[str | Path], who: str, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the output of a program, run in the root of this repository, or raise Failed."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ)
    if done.returncode:
        raise Failed(f"{who}: {(done.stderr.strip().splitlines() or ['no error message'])[-1]}")
    return done.stdout
