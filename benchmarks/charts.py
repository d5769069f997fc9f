"""Charts as PNG: FPS, the reward of runs, and time lines."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen needed
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.records import Record

PALETTE = list(TABLEAU_COLORS)  # their names
STYLES = ("-", "--", ":", "-.")
# What somebody does, and its colour in a time line.
ACTIVITIES = {
    "learns": "tab:blue",
    "chooses actions": "tab:orange",
    "plays": "tab:green",
    "other": "darkgray",
    "waits": "#ececec",
}
# A heading, somebody, and what they did: an activity, and when it began and ended, in milliseconds.
Row = tuple[str, str, Sequence[tuple[str, float, float]]]
# Name of the x axis of the reward -> its field of ``Curves``, and its unit.
PANELS = {
    "frames (thousands of agent steps)": ("frames", 1_000),
    "wall clock (minutes)": ("seconds", 60),
}


def fps_chart(path: Path, groups: Mapping[str, Sequence[float]], machine: str) -> None:
    """A bar for each group of runs: the median of their FPS, a line from min to max, and dots."""
    row_height, size = (0.45, 9) if len(groups) < 20 else (0.25, 7)  # inches, points
    figure, (axes,) = _axes("FPS (median of the seeds)", machine, 1.5 + row_height * len(groups))
    for row, values in enumerate(groups.values()):
        if not values:
            axes.text(0, row, " did not train", va="center", color="grey", fontsize=size)
            continue
        middle, high = statistics.median(values), max(values)
        axes.barh(row, middle, color=PALETTE[row % len(PALETTE)], height=0.6)
        axes.plot([min(values), high], [row, row], color="black", linewidth=1.5)
        axes.plot(values, [row] * len(values), "o", color="black", markersize=3)
        axes.text(high, row, f"  {middle:,.{middle < 100:d}f}", va="center", fontsize=size)
    axes.set_yticks(range(len(groups)), list(groups), fontsize=size)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("agent steps per second of wall clock, while training")
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path)


def reward_chart(path: Path, groups: Mapping[str, Sequence[Record]], machine: str) -> None:
    """avg_reward of every run, over frames and over minutes; runs of a group look alike."""
    figure, columns = _axes("avg_reward of every run", machine, 5.0, width=12.0, panels=len(PANELS))
    bars = sorted({record.bar for records in groups.values() for record in records})
    for axes, (x_label, (x, unit)) in zip(columns, PANELS.items(), strict=True):
        for number, (name, records) in enumerate(groups.items()):
            look = {"color": PALETTE[number % 10], "linestyle": STYLES[number // 10 % 4]}
            curves = [record.curves for record in records if len(record.curves.frames)]
            for label, curve in zip([name, *[None] * len(curves)], curves, strict=False):
                marker = "o" if len(curve.frames) == 1 else ""  # a single game is a point
                steps = getattr(curve, x) / unit
                axes.plot(steps, curve.avg_reward, marker=marker, label=label, lw=1, **look)
        if not axes.lines:
            axes.text(0.5, 0.5, "no game was finished yet", ha="center", transform=axes.transAxes)
        for bar in bars:
            axes.axhline(bar, color="grey", linestyle="--", linewidth=1, label=f"solved: {bar:g}")
        axes.set_xlim(left=0)
        axes.set_xlabel(x_label)
        axes.grid(alpha=0.3)
    columns[0].set_ylabel("points per game, smoothed")
    columns[-1].legend(bbox_to_anchor=(1.01, 1), loc="upper left", fontsize=8)
    _save(figure, path)


def time_line(path: Path, rows: Sequence[Row], length: float, machine: str) -> None:
    """Who does what over so many milliseconds; rows of the same heading are below it."""
    figure, (axes,) = _axes("", machine, height=5.0, width=13.3)
    y, places, above = 0.0, [], ""
    for heading, _, spans in rows:
        if heading != above:
            axes.text(0, y + 0.7, heading, fontsize=13)
            y, above = y + 0.85, heading
        y += 1.05
        places.append(y - 0.5)
        for kind, begin, end in spans:
            axes.barh(places[-1], end - begin, left=begin, height=0.95, color=ACTIVITIES[kind])
    axes.set_yticks(places, [who for _, who, _ in rows], fontsize=13)
    axes.tick_params(labelsize=13)
    axes.set_xlim(0, length)
    axes.set_ylim(y + 0.2, 0)
    axes.set_xlabel("milliseconds", fontsize=13)
    handles = [Patch(color=colour, label=kind) for kind, colour in ACTIVITIES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=13, frameon=False)
    _save(figure, path)


def _axes(
    title: str, machine: str, height: float, width: float = 9.0, panels: int = 1
) -> tuple[Figure, list[Axes]]:
    """Axes beside each other that share their y axis."""
    figure, grid = plt.subplots(
        1, panels, figsize=(width, height), layout="constrained", sharey=True, squeeze=False
    )
    figure.suptitle(title, fontsize=12)
    grid[0, 0].set_title(machine, fontsize=7, color="dimgrey", loc="left")
    for axes in grid[0]:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, list(grid[0])


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
