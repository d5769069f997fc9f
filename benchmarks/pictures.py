"""README's chart: the minutes that every rung took to 17, here and in the book.

    python -m benchmarks pictures runs/alone --busy runs/beside-others

A filled dot is a run that had the machine to itself, one dot per seed. A ring is a run beside other
programs: its minutes are too many. Both are read from the runs' events.
"""

import argparse
from pathlib import Path

from matplotlib.lines import Line2D
from matplotlib.ticker import ScalarFormatter

from benchmarks import UserError
from benchmarks.book import RUNGS
from benchmarks.charts import plt
from benchmarks.records import read_records

TICKS = (2, 5, 10, 20, 50, 100, 200, 400)  # minutes
BOOK = (("s", "the book, 2nd edition (GTX 1080 Ti)"), ("D", "the book, 3rd edition (solved at 18)"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    parser.add_argument("alone", type=Path, nargs="+", help="folders of runs that were alone")
    parser.add_argument(
        "--busy", type=Path, nargs="*", default=[], help="folders of runs beside other programs"
    )
    parser.add_argument("--out", type=Path, default=Path("ladder.png"), help="the picture")


def run(args: argparse.Namespace) -> int:
    """Draw the chart."""
    minutes: dict[str, list[tuple[float, bool]]] = {name: [] for name in RUNGS}
    for alone, folders in ((True, args.alone), (False, args.busy)):
        for record in (record for folder in folders for record in read_records(folder)):
            if record.solved:
                minutes.setdefault(record.script, []).append((record.to_bar[1], alone))
    if not any(minutes.values()):
        raise UserError("none of these runs solved Pong")
    names = sorted(minutes)
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(names) + 1.6), layout="constrained")
    for row, name in enumerate(names):
        book = RUNGS[name].minutes.split(";") if name in RUNGS else []
        for text, (marker, _) in zip(book, BOOK, strict=False):
            axes.plot(float(text.split()[0]), row, marker, color="tab:gray", markersize=6)
        for value, alone in minutes[name]:
            fill = "tab:blue" if alone else "none"
            axes.plot(value, row, "o", color="tab:blue", markerfacecolor=fill, markersize=6)
        if not minutes[name]:
            text = "  not run to 17 here"
            axes.text(TICKS[0], row, text, color="tab:gray", va="center", fontsize=8)
    axes.set_xscale("log")
    axes.set_xticks(TICKS)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(plt.NullLocator())
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.4)
    axes.set_axisbelow(True)
    axes.set_xlabel("minutes until avg_reward was 17")
    legend = [
        ("o", "two CPU cores, alone", "tab:blue", "tab:blue"),
        ("o", "two CPU cores, shared", "tab:blue", "none"),
        *((marker, label, "tab:gray", "tab:gray") for marker, label in BOOK),
    ]
    handles = [
        Line2D([], [], linestyle="", marker=m, color=colour, markerfacecolor=fill, label=label)
        for m, label, colour, fill in legend
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(args.out, dpi=120)
    print(args.out)
    return 0
