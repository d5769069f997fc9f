"""README's picture, ladder.png: the smoothed reward of every rung over frames.

    cd results; A=xeon-amx-2core/solved/runs; B=epyc-zen5-2core/solved/runs
    C=epyc-zen4-2core
    PYTHONPATH=.. python ladder.py $A $B $C/solved/runs $C/held-out/runs

Of several runs of a rung, the one in the middle is drawn: by its frames to 17, which a run that
never learned reaches last.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path

from benchmarks.charts import new_figure, save
from benchmarks.records import Record, read_records

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folders", type=Path, nargs="+", help="with runs to 17")
parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".png"))
args = parser.parse_args()

rungs: dict[str, list[Record]] = defaultdict(list)
for record in (record for folder in args.folders for record in read_records(folder)):
    if not record.script.startswith("04") or not record.settings["noop_max"]:
        rungs[record.script].append(record)
figure, axes = new_figure("", 9, 4.5)
for number, name in enumerate(sorted(rungs)):
    records = sorted(rungs[name], key=lambda one: one.to_bar[0] if one.solved else math.inf)
    runs = f", the middle one of {len(records)} runs" * (len(records) > 1)
    curves, style = records[(len(records) - 1) // 2].curves, "-" if number < 5 else "--"
    axes.plot(curves.frames / 1e6, curves.avg_reward, style, label=name + runs)
axes.axhline(17, color="tab:gray", linewidth=0.8)
axes.set_xlabel("million frames")
axes.set_ylabel("smoothed reward")
axes.grid(alpha=0.3)
axes.legend(fontsize=8, frameon=False)
save(figure, args.out)
