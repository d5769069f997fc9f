"""Measure each optimisation by itself, on the same network and the same data.

Every technique is a handful of alternatives for one piece of work, measured in turn and
repeatedly, so that a machine that drifts slows all of them alike. The first alternative is
what the others are compared with. What this machine cannot run is listed with the reason.

    python -m benchmarks techniques
    python -m benchmarks techniques --only optimizer replay --batch-size 128
"""

import argparse
import statistics
import warnings

from tqdm import tqdm

from benchmarks import charts
from benchmarks.arguments import add_counts, add_out
from benchmarks.report import here, output_folder, short_machine, write_table
from benchmarks.techniques.environments import environments
from benchmarks.techniques.measuring import Result, Settings, measure
from benchmarks.techniques.network import IN_FRESH_PROCESSES, IN_TURN
from benchmarks.techniques.replay import replay
from benchmarks.timing import chosen_device
from lib.running.machine import describe_machine, prepare_torch

TECHNIQUES = {
    technique.__name__.replace("_", "-"): technique
    for technique in (*IN_TURN, *IN_FRESH_PROCESSES, environments, replay)
}
HEADER = ["technique", "work", "alternative", "median", "spread", "unit", "gain", "gain's spread"]
NOTES = [
    "gain: how many times as good as the first alternative for the same work (faster, or "
    "smaller), repeat by repeat: the median; spreads are the smallest and the largest",
    "environments: games end with a life and begin anew at once, in the vector environments "
    "with the step after; actions are random, the states come as arrays",
    "denormals: a case made to show them, as at the end of long runs: half of the hidden units "
    "are never active, and what Adam remembers of them is denormal",
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    names = list(TECHNIQUES)
    text = f"techniques to measure: {', '.join(names)} (default: all)"
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=text
    )
    parser.add_argument("--cuda", action="store_true", help="measure on the GPU")
    counts = {
        "repeats": (7, "measurements of each alternative"),
        "milliseconds": (300, "length of one measurement"),
        "batch-size": (32, "transitions of an update"),
        "envs": (4, "environments in a vector"),
        "transitions": (10_000, "transitions in the replay buffers that are compared"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/techniques")


def run(args: argparse.Namespace) -> int:
    """Measure the techniques, write table and chart."""
    device = chosen_device(args.cuda)
    out = output_folder(args.out)
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of TorchScript
    prepare_torch(seed=0)
    results: list[Result] = []
    with tqdm(total=len(args.only) * args.repeats, unit="round", disable=None) as bar:
        for technique in args.only:
            bar.set_description(technique)
            length = args.milliseconds / 1e3
            settings = Settings(device, args.batch_size, length, args.envs, args.transitions)
            with settings.cleanup:
                alternatives = TECHNIQUES[technique](settings)
                results += measure(technique, alternatives, args.repeats, bar.update)

    machine = describe_machine(device)
    title = f"Techniques one by one, on the {'GPU' if args.cuda else 'CPU'}"
    path = out / f"techniques{'-cuda' if args.cuda else ''}"
    how = (
        f"Seed 0, updates of {args.batch_size}, {args.envs} environments, {args.transitions:,} "
        f"transitions; {args.repeats} measurements of {args.milliseconds} ms, in turn"
    )
    rows = [row(result) for result in results]
    print(write_table(path, title, HEADER, rows, [here(machine), how, *NOTES]))
    charts.bar_chart(
        path.with_suffix(".png"),
        title,
        "gain: times as good as the first alternative (bar: median, line: min to max)",
        [bar_of(result) for result in results],
        short_machine(machine),
        reference=1.0,
    )
    print(f"written to {out}")
    return 0


def row(result: Result) -> list[str]:
    """A line of the table."""
    alternative = result.alternative
    cells = [result.technique, alternative.task.replace("_", " "), alternative.name]
    if not result.values:
        return [*cells, f"not run: {result.reason}", "", "", "", ""]
    values = [number(f(result.values)) for f in (statistics.median, min, max)]
    cells += [values[0], " to ".join(values[1:]), alternative.unit]
    if not result.gains:  # the first one was not run
        return [*cells, "", ""]
    gains = [f"{f(result.gains):.2f}" for f in (statistics.median, min, max)]
    return [*cells, gains[0], " to ".join(gains[1:])]


def number(value: float) -> str:
    """Four digits, and more only before the point."""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"


def bar_of(result: Result) -> charts.Bar:
    """A bar of the chart."""
    technique, work, name, *_ = row(result)
    note = f"not run: {result.reason}" if result.reason else "not comparable"
    return charts.Bar(f"{technique} / {work}: {name}", result.gains, technique, note)
