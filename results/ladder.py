"""README's picture, ladder.png: the smoothed reward of every rung over frames.

    cd results; A=xeon-amx-2core/solved/runs; B=epyc-zen5-2core/solved/runs
    PYTHONPATH=.. python ladder.py $A $B epyc-zen4-2core/held-out/runs

Of several runs of a rung, the one in the middle is drawn: by its frames to 17.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import median_low

from benchmarks.charts import new_figure, save
from benchmarks.records import Record, read_records

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folders", type=Path, nargs="+", help="with runs to 17")
parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".png"))
args = parser.parse_args()

rungs: dict[str, list[Record]] = defaultdict(list)
for record in (record for folder in args.folders for record in read_records(folder)):
    if record.solved and not (record.script.startswith("04") and record.settings["noop_max"]):
        rungs[record.script].append(record)
figure, axes = new_figure("", 9, 4.5)
for number, name in enumerate(sorted(rungs)):
    middle = median_low(record.to_bar[0] for record in rungs[name])
    (record,) = (record for record in rungs[name] if record.to_bar[0] == middle)
    runs = f", the middle one of {len(rungs[name])} runs" * (len(rungs[name]) > 1)
    curves, style = record.curves, "-" if number < 5 else "--"
    axes.plot(curves.frames / 1e6, curves.avg_reward, style, label=name + runs)
axes.axhline(17, color="tab:gray", linewidth=0.8)
axes.set_xlabel("million frames")
axes.set_ylabel("smoothed reward")
axes.grid(alpha=0.3)
axes.legend(fontsize=8, frameon=False)
save(figure, args.out)
