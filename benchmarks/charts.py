"""Charts as PNG."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen needed
from benchmarks.records import Record

from matplotlib import pyplot as plt
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure

PALETTE = list(TABLEAU_COLORS)  # names of colours
STYLES = ("-", "--", ":", "-.")
# x axis of the reward -> field of ``Curves``, and unit.
PANELS = {
    "frames (thousands of agent steps)": ("frames", 1_000),
    "wall clock (minutes)": ("seconds", 60),
}


def reward_chart(path: Path, groups: Mapping[str, Sequence[Record]], machine: str) -> None:
    """Draw avg_reward of every run over frames and over minutes; runs of a group look alike."""
    figure, columns = new_figure(machine, 12, 5, "avg_reward of every run", panels=len(PANELS))
    runs = [record for records in groups.values() for record in records]
    bars = sorted({record.bar for record in runs if record.bar is not None})
    for axes, (x_label, (x, unit)) in zip(columns, PANELS.items(), strict=True):
        for number, (name, records) in enumerate(groups.items()):
            look = {"color": PALETTE[number % 10], "linestyle": STYLES[number // 10 % 4]}
            curves = [record.curves for record in records if len(record.curves.frames)]
            for label, curve in zip([name, *[None] * len(curves)], curves, strict=False):
                axes.plot(getattr(curve, x) / unit, curve.avg_reward, label=label, lw=1, **look)
        for bar in bars:
            axes.axhline(bar, color="grey", linestyle="--", linewidth=1, label=f"solved: {bar:g}")
        axes.set_xlim(left=0)
        axes.set_xlabel(x_label)
        axes.grid(alpha=0.3)
    columns[0].set_ylabel("points per game, smoothed")
    handles = columns[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, fontsize=11, frameon=False)
    save(figure, path)


def bar_panels(
    path: Path, title: str, panels: Mapping[str, Mapping[str, Sequence[float] | str]], machine: str
) -> None:
    """Draw gains by heading: medians with ranges, or texts. Panels without a gain are left out."""
    compared = {
        heading: bars
        for heading, bars in panels.items()
        if any(set(gains) != {1.0} for gains in bars.values() if not isinstance(gains, str))
    }
    panels = compared or panels
    rows = -(-len(panels) // 2)
    tallest = [max(map(len, [*panels.values()][2 * i : 2 * i + 2])) for i in range(rows)]
    size, heights = (14, 1 + 0.3 * (sum(tallest) + 2 * rows)), [n + 2 for n in tallest]
    how: dict[str, Any] = {"layout": "constrained", "squeeze": False, "height_ratios": heights}
    figure, grid = plt.subplots(rows, 2, figsize=size, **how)
    figure.suptitle(f"{title}\n{machine}", fontsize=11)
    figure.supxlabel("gain over the first way: times as fast, or as small", fontsize=11)
    for axes, (heading, bars) in zip(grid.flat, panels.items(), strict=False):
        axes.set_title(heading, loc="right", fontsize=11)  # its free side is the left
        for row, values in enumerate(bars.values()):
            if isinstance(values, str):
                axes.text(0.02, row, values[:60], va="center", color="dimgrey", fontsize=9)
                continue
            middle, low, high = median(values), min(values), max(values)
            axes.barh(row, middle, 0.7, color="tab:blue" if middle != 1 else "darkgray")
            axes.plot([low, high], [row, row], color="black", lw=1.5)
            axes.text(high, row, f" {middle:.2f}", va="center", fontsize=9)
        axes.axvline(1, color="dimgrey", lw=0.8)
        axes.set_yticks(range(len(bars)), list(bars))
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_xlim(0, max(1.2, axes.get_xlim()[1] * 1.08))
        axes.spines[["top", "right"]].set_visible(False)
    for axes in [*grid.flat][len(panels) :]:
        axes.set_visible(False)
    save(figure, path)


def new_figure(
    machine: str, width: float, height: float, title: str = "", panels: int = 1
) -> tuple[Figure, Any]:
    """Return a figure, sized in inches, and its axes, side by side with a common y axis."""
    size = width, height
    figure, axes = plt.subplots(1, panels, figsize=size, layout="constrained", sharey=True)
    subtitle = textwrap.fill(machine, int(12 * width))
    figure.suptitle("\n".join(filter(None, [title, subtitle])), fontsize=11)
    for one in figure.axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    figure.savefig(path, dpi=120)
    plt.close(figure)
