"""README's chart, ladder.png: the minutes that every rung took to 17, here and in the book.

    cd results; A=epyc-zen5-2core
    BUSY="xeon-amx-2core/solved/runs $A/solved/runs/0[59]*"
    PYTHONPATH=.. python ladder.py $A/held-out/runs/0[78] --busy $BUSY

A filled dot is a run that had the machine to itself, one dot per seed. A ring is a run beside other
programs: its minutes are too many. Both are read from the runs' events.
"""

import argparse
from pathlib import Path

from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator, ScalarFormatter

from benchmarks.charts import plt
from benchmarks.records import read_records
from benchmarks.table import BOOK

TICKS = (2, 5, 10, 20, 50, 100, 200, 400)  # minutes
# Marker, colour, filling and name.
ALONE = ("o", "tab:blue", "tab:blue", "two CPU cores, alone")
BUSY = ("o", "tab:blue", "none", "two CPU cores, shared")
EDITIONS = (
    ("s", "tab:gray", "tab:gray", "the book, 2nd edition (GTX 1080 Ti)"),
    ("D", "tab:gray", "tab:gray", "the book, 3rd edition (solved at 18)"),
)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("alone", type=Path, nargs="+", help="folders of runs that were alone")
parser.add_argument("--busy", type=Path, nargs="*", default=[], help="beside other programs")
parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".png"))
args = parser.parse_args()

dots = {name: list(zip(EDITIONS, minutes, strict=True)) for name, (_, minutes) in BOOK.items()}
ran = set()
for look, folders in ((ALONE, args.alone), (BUSY, args.busy)):
    for record in (record for folder in folders for record in read_records(folder)):
        if record.solved:
            dots.setdefault(record.script, []).append((look, record.to_bar[1]))
            ran.add(record.script)
names = sorted(dots)
figure, axes = plt.subplots(figsize=(9, 0.42 * len(names) + 1.6), layout="constrained")
for row, name in enumerate(names):
    for (marker, colour, fill, _), minutes in dots[name]:
        axes.plot(minutes, row, marker, color=colour, markerfacecolor=fill, markersize=6)
    if name not in ran:
        axes.text(2, row, "  not run to 17 here", color="tab:gray", va="center", fontsize=8)
axes.set_xscale("log")
axes.set_xticks(TICKS)
axes.xaxis.set_major_formatter(ScalarFormatter())
axes.xaxis.set_minor_locator(NullLocator())
axes.set_yticks(range(len(names)), names)
axes.invert_yaxis()
axes.grid(axis="x", alpha=0.4)
axes.set_axisbelow(True)
axes.set_xlabel("minutes until avg_reward was 17")
handles = [
    Line2D([], [], linestyle="", marker=marker, color=colour, markerfacecolor=fill, label=label)
    for marker, colour, fill, label in (ALONE, BUSY, *EDITIONS)
]
figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
figure.savefig(args.out, dpi=120)
