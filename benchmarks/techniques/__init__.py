"""Measure each technique by itself, on the network, the frames and the buffer of the suite.

A part compares ways to do one piece of work. The ways take turns, so that a drifting machine slows
all of them alike. A gain compares with the first way: times as fast, or as small. The second
command measures as on a CPU without AVX-512.

    python -m benchmarks techniques
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python -m benchmarks techniques --out runs/avx2
    python -m benchmarks techniques --cuda --only calls device compilation precision copies

Files: a table, .md and .csv, and a picture with a panel for each part, .png.
"""

import argparse
from contextlib import ExitStack

from benchmarks.charts import bar_panels
from benchmarks.measuring import add_counts, add_out, chosen_device, measure
from benchmarks.report import HARDWARE, here, join_machine, spread, write_table
from benchmarks.techniques import learning, memory, playing
from lib.training.machine import describe_machine, prepare_torch

from tqdm import tqdm

PARTS = {  # each gets the flags, with the device and an ExitStack for what it opens
    "device": learning.device,
    "environments": playing.environments,
    "compilation": learning.compilation,
    "precision": learning.precision,
    "collection": playing.collection,
    "memory": memory.memory,
    "copies": learning.copies,
    "calls": learning.calls,
    "profiler": playing.profiler,
    "details": learning.details,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's flags."""
    names, text = list(PARTS), "parts to measure (default: all)"
    parser.add_argument("--only", nargs="+", choices=names, default=names, help=text)
    parser.add_argument("--cuda", action="store_true", help="measure on the GPU")
    counts = {
        "repeats": (7, "measurements of each way"),
        "milliseconds": (300, "length of one measurement"),
        "batch-size": (32, "transitions of an update"),
        "envs": (4, "environments, and frames per update in collection"),
        "transitions": (4_000, "transitions in a buffer"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/techniques")


def run(args: argparse.Namespace) -> int:
    """Measure the parts; write the table and the picture."""
    args.device = device = chosen_device(args.cuda)
    machine = describe_machine(device)
    prepare_torch(seed=0)
    rows, panels = [], dict[str, dict[str, list[float] | str]]()
    for part in tqdm(args.only, unit="part", disable=None):
        bars = panels[f"{part}: {PARTS[part].__doc__}"] = {}
        with ExitStack() as args.cleanup:
            for work, ways in PARTS[part](args).items():
                measured, why_not = measure(ways, args.repeats, args.milliseconds)
                base = next(iter(measured.values()))
                for way, found in measured.items():
                    gains = [first / own for first, own in zip(base, found, strict=False)]
                    text = why_not.get(way) or spread(found, 3)
                    rows.append([part, work, way, text, spread(gains, 2)])
                    bars[f"{way} ({work.split(' (')[0]})"] = gains or text
    notes = [
        here(machine),
        f"Seed 0; {args.repeats} measurements of {args.milliseconds} ms, in turn: medians (and "
        f"ranges), and gains measurement by measurement; {args.transitions:,} transitions",
    ]
    title, path = f"Techniques one by one, on {device}", args.out / f"techniques-{device}"
    header = ["part", "work", "way", "measured", "gain"]
    print(write_table(path, title, header, rows, notes))
    bar_panels(path.with_suffix(".png"), title, panels, join_machine(machine, HARDWARE))
    return 0
