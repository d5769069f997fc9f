"""Draw the runs in README's table: smoothed reward over frames and over minutes.

    cd results/epyc-zen4-2core
    A=../epyc-zen3-2core/solved/runs; B=held-out/runs; C=solved-09/runs
    PYTHONPATH=../.. python -m benchmarks.pictures $A $B $C --out ..

Each rung is drawn as its median run by frames to 17 (of an even number, the faster). Except for 07
and 08, which ran alone, minutes are frames divided by the FPS in README.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path

from benchmarks.charts import PALETTE, new_figure, save
from benchmarks.records import Record, read_records, readme_fps


def main() -> None:
    """Read the runs and draw both pictures."""
    lines = argparse.RawDescriptionHelpFormatter  # keep line breaks
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=lines)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of runs to 17")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the pictures")
    args = parser.parse_args()
    rungs: dict[str, list[Record]] = defaultdict(list)
    for record in (record for folder in args.folders for record in read_records(folder)):
        rungs[record.script].append(record)
    fps = readme_fps()
    for file, x_label in {"ladder": "million frames", "ladder-minutes": "minutes"}.items():
        figure, axes = new_figure("", 9, 4.8)
        for number, name in enumerate(sorted(rungs)):
            records = sorted(rungs[name], key=lambda one: one.to_bar[0] if one.solved else math.inf)
            middle = (len(records) - 1) // 2
            runs = f", run {middle + 1} of {len(records)}" * (len(records) > 1)
            curves, style = records[middle].curves, "-" if number < 5 else "--"
            x = curves.frames / 1e6
            if x_label == "minutes":
                alone = name.startswith(("07", "08"))
                x = curves.seconds / 60 if alone else curves.frames / fps[name] / 60
            axes.plot(x, curves.avg_reward, style, color=PALETTE[number % 10], label=name + runs)
        axes.axhline(17, color="tab:gray", linewidth=0.8)
        if x_label == "minutes":
            axes.set_xscale("log")
            axes.set_xlim(left=0.3)
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(x_label)
        axes.set_ylabel("smoothed reward")
        axes.grid(alpha=0.3)
        figure.legend(loc="outside lower center", ncols=2, fontsize=10, frameon=False)
        save(figure, args.out / f"{file}.png")


if __name__ == "__main__":
    main()
