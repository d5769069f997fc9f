"""Measure each technique by itself, on the network, the frames and the buffer of the suite.

A part compares ways to do one piece of work. They take turns, again and again, so that a machine
that drifts slows all of them alike. A gain says how many times as good as the first way one is:
faster, or smaller. What this machine lacks is a row that says so.

    python -m benchmarks techniques
    python -m benchmarks techniques --cuda --only device precision copies
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python -m benchmarks techniques --out runs/avx2

The last one is as on a CPU without AVX-512 and AMX. Files: techniques-cpu.md, its rows as .csv, and
a picture with a panel for each part, .png; with --cuda their names say so.
"""

import argparse
from collections.abc import Callable
from contextlib import ExitStack

from tqdm import tqdm

from benchmarks.arguments import add_counts, add_out
from benchmarks.charts import bar_panels
from benchmarks.measuring import chosen_device, measure
from benchmarks.report import HARDWARE, here, join_machine, made, spread, write_table
from benchmarks.techniques.learning import (
    Settings,
    Works,
    compilation,
    copies,
    details,
    device,
    precision,
)
from benchmarks.techniques.memory import memory
from benchmarks.techniques.playing import collection, environments, profiler
from lib.training.machine import describe_machine, prepare_torch

PARTS: dict[str, Callable[[Settings], Works]] = {
    part.__name__: part
    for part in (
        *(device, environments, compilation, precision, collection),
        *(memory, copies, profiler, details),
    )
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    names, text = list(PARTS), f"parts to measure: {', '.join(PARTS)} (default: all)"
    how = {"nargs": "+", "choices": names, "default": names, "metavar": "PART"}
    parser.add_argument("--only", help=text, **how)
    parser.add_argument("--cuda", action="store_true", help="measure on the GPU")
    counts = {
        "repeats": (7, "measurements of each way"),
        "milliseconds": (300, "length of one measurement"),
        "batch-size": (32, "transitions of an update"),
        "envs": (4, "environments, and frames per update in the part collection"),
        "transitions": (4_000, "transitions in the buffers of the part memory"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/techniques")


def run(args: argparse.Namespace) -> int:
    """Measure the parts; write table and picture."""
    where, out = chosen_device(args.cuda), made(args.out)
    machine = describe_machine(where)
    prepare_torch(seed=0)
    rows = []
    panels: dict[str, dict[str, list[float] | str]] = {}
    for part in tqdm(args.only, unit="part", disable=None):
        bars = panels[f"{part}: {PARTS[part].__doc__}"] = {}
        with ExitStack() as cleanup:
            sizes = args.batch_size, args.envs, args.transitions
            works = PARTS[part](Settings(where, *sizes, cleanup))
            for work, ways in works.items():
                measured, why_not = measure(ways, args.repeats, args.milliseconds)
                base = next(iter(measured.values()))
                for way, found in measured.items():
                    gains = [first / own for first, own in zip(base, found, strict=False)]
                    not_run = f"not run: {why_not[way]}" if way in why_not else ""
                    rows.append([part, work, way, not_run or spread(found, 3), spread(gains, 2)])
                    bar = f"{way} ({work.split(' (')[0]})" if len(works) > 1 else way
                    bars[bar] = gains or not_run
    notes = [
        here(machine),
        f"Seed 0; {args.repeats} measurements of {args.milliseconds} ms, in turn: medians (and "
        f"ranges); {args.transitions:,} transitions in the buffers",
        "Gain: how many times as good as the first way, measurement by measurement",
    ]
    title, path = f"Techniques one by one, on {where}", out / f"techniques-{where}"
    header = ["part", "work", "way", "measured", "gain"]
    print(write_table(path, title, header, rows, notes))
    bar_panels(path.with_suffix(".png"), title, panels, join_machine(machine, HARDWARE))
    return 0
