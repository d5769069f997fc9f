"""Put any runs from any folders side by side: one table, one figure.

Each RUN is the folder of a run, or a folder with runs somewhere below. The table has a line for
every run. If a setting was run with several seeds, there is also a line for the median. The last
columns show the learning curve: the mean reward of the games that ended between so many frames, and
the length of these games. If some agents get stuck in long rallies, this shows within 400,000
frames. Files: compare.md, compare.csv, compare.png.

    python -m benchmarks compare runs/ladder/*-seed0-* results/epyc-zen5-2core/speedrun/runs
    python -m benchmarks compare runs/take-off --every 50000
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks import UserError, plots
from benchmarks.arguments import add_counts, add_out
from benchmarks.records import Record, Setting, read_records
from benchmarks.report import join_machine, markdown, output_folder, short_machine, write_table
from benchmarks.table import Group, by_machine, group, reward_band

MOST_COLUMNS = 40  # of the learning curve
HEADER = ["run", "seed", "FPS", "minutes", "frames", "avg_reward", "end"]
NOTES = [
    "Minutes: wall clock from the first environment step. FPS: while training.",
    "Then, by thousands of frames: mean reward of the games that ended there / their mean length "
    "in frames. A dash: no game ended there.",
    "Where there are several seeds: the median over them, rewards with their range. A run that "
    "solved Pong stays in it with its last column; where another run had ended, there is a dash.",
]


class Column(NamedTuple):
    """The games that ended in one part of a run."""

    reward: float  # mean
    steps: float  # mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    add_counts(parser, {"every": (100_000, "frames in a column of the learning curve")})
    add_out(parser, "runs/compare")


def run(args: argparse.Namespace) -> int:
    """Read the runs; write and print the table, write the figure."""
    records = read_all(args.runs)
    edges = range(0, max(record.frames for record in records), args.every) or range(1)
    if len(edges) > MOST_COLUMNS:
        raise UserError(f"--every {args.every} makes {len(edges)} columns: {MOST_COLUMNS} at most")
    out = output_folder(args.out)
    machines = [machine for machine, _ in by_machine(records)]
    groups = on_machines(group(records), machines)
    header = [*HEADER, *(f"{at // 1_000:,}-{(at + args.every) // 1_000:,}" for at in edges)]
    rows = [line for entry in groups for line in lines(entry, edges)]
    notes = [*(f"Machine {n}: {join_machine(m)}" for n, m in enumerate(machines, start=1)), *NOTES]
    title = "Runs side by side"
    write_table(out / "compare", title, header, rows, notes)
    print(markdown(title, header, rows, notes))
    figure(out / "compare.png", groups, "; ".join(map(short_machine, machines)))
    print(f"written to {out}")
    return 0


def read_all(folders: Sequence[Path]) -> list[Record]:
    """The runs below the folders, each once."""
    records: dict[Path, Record] = {}
    for folder in folders:
        found = read_records(folder)
        if not found:
            raise UserError(f"no run of a rung below {folder}: no TensorBoard events tell of one")
        records |= {record.folder.resolve(): record for record in found}
    return list(records.values())


def on_machines(groups: Sequence[Group], machines: Sequence[dict[str, Setting]]) -> list[Group]:
    """Divide runs of the same setting by the machine they ran on; labels tell its number."""
    divided = []
    for entry in groups:
        for machine, records in by_machine(entry.records):
            where = f"machine {machines.index(machine) + 1}" if len(machines) > 1 else ""
            variant = ", ".join(filter(None, (entry.variant, where)))
            divided.append(Group(entry.script, variant, records))
    return divided


def lines(entry: Group, edges: range) -> list[list[str]]:
    """A line for each run of a setting, and one for all of them if there are several."""
    found = []
    for record in entry.records:
        end = "solved" if record.solved else "frame limit" if record.finished else "unfinished"
        reward = "" if record.avg_reward is None else f"{record.avg_reward:.1f}"
        fps = "" if record.fps is None else f"{record.fps:,.0f}"
        run = [entry.label, str(record.seed), fps, f"{record.minutes:.1f}", f"{record.frames:,}"]
        found.append([*run, reward, end, *map(shown, learning_curve(record, edges))])
    if len(entry.records) > 1:
        found.append(middle(entry, edges))
    return found


def middle(entry: Group, edges: range) -> list[str]:
    """The line of the median over the seeds."""
    records = entry.records
    solved = f"{sum(record.solved for record in records)} of {len(records)} solved"
    rewards = [record.avg_reward for record in records if record.avg_reward is not None]
    cells = [f"{entry.label}: median", ""]
    cells += [f"{median(entry.fps):,.0f}" if entry.fps else ""]
    cells += [f"{median(record.minutes for record in records):.1f}"]
    cells += [f"{median(record.frames for record in records):,.0f}"]
    cells += [f"{median(rewards):.1f}" if rewards else "", solved]
    curves = [held(learning_curve(record, edges), record.solved) for record in records]
    return [*cells, *(shown_range(column) for column in zip(*curves, strict=True))]


def learning_curve(record: Record, edges: range) -> list[Column | None]:
    """The games of a run by the frames at which they ended; None where there are none.

    Args:
        record: the run.
        edges: where columns begin; a game that ends there belongs to the one before.
    """
    ended = record.curves.frames
    columns: list[Column | None] = []
    for begin in edges:
        here = (begin < ended) & (ended <= begin + edges.step)
        rewards, steps = record.curves.reward[here], record.curves.steps[here]
        columns.append(Column(rewards.mean(), steps.mean()) if here.any() else None)
    return columns


def held(curve: Sequence[Column | None], solved: bool) -> list[Column | None]:
    """The curve; if the run solved Pong, its last column fills the rest."""
    last = max((i for i, column in enumerate(curve) if column), default=0)
    return [curve[last] if solved and i > last else column for i, column in enumerate(curve)]


def shown(column: Column | None) -> str:
    """A cell of a run."""
    return f"{column.reward:.1f} / {column.steps:,.0f}" if column else "-"


def shown_range(columns: Sequence[Column | None]) -> str:
    """A cell of the median; a dash where it would not be one of all runs."""
    known = [column for column in columns if column]
    if len(known) < len(columns):
        return "-"
    rewards, steps = zip(*known, strict=True)
    spread = f"({min(rewards):.1f} to {max(rewards):.1f})"
    return f"{median(rewards):.1f} {spread} / {median(steps):,.0f}"


def figure(path: Path, groups: Sequence[Group], corner: str) -> None:
    """Draw reward over frames and over minutes, beside each other."""

    def bands(x: Callable[[Record], np.ndarray]) -> list[plots.Band]:
        return [reward_band(entry, *plots.line_look(n), x) for n, entry in enumerate(groups)]

    panels = {
        "frames (thousands of agent steps)": bands(lambda record: record.curves.frames / 1_000),
        "wall clock (minutes)": bands(lambda record: record.curves.seconds / 60),
    }
    bounds = sorted({record.bar for entry in groups for record in entry.records})
    title = "Smoothed reward (median over seeds, band: min to max)"
    plots.panels_figure(path, title, "avg_reward (points per game)", panels, bounds, corner)
