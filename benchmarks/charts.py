"""Charts as PNG: bars, bars made of parts, time lines, the reward of runs, and the whole ladder."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np

matplotlib.use("Agg")  # no screen needed
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator, ScalarFormatter

from benchmarks.records import Record

PALETTE = list(TABLEAU_COLORS)  # their names
STYLES = ("-", "--", ":", "-.")
POINTS = 400  # of the grid that runs are brought to
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
MINUTES = (2, 5, 10, 20, 50, 100, 200, 400)  # of the whole ladder
# Marker, colour, filling and name of what the chart of the whole ladder shows.
ALONE = ("o", "tab:blue", "tab:blue", "two CPU cores, alone")
BUSY = ("o", "tab:blue", "none", "two CPU cores, beside other programs")
BOOK = (
    ("s", "tab:gray", "tab:gray", "the book, 2nd edition (GTX 1080 Ti)"),
    ("D", "tab:gray", "tab:gray", "the book, 3rd edition (solved at 18)"),
)
# Name of the x axis -> its field of ``Curves``, and its unit.
PANELS = {
    "frames (thousands of agent steps)": ("frames", 1_000),
    "wall clock (minutes)": ("seconds", 60),
}


class Bar(NamedTuple):
    """A bar: the values of repeated runs."""

    label: str
    values: Sequence[float]
    kind: str = ""  # bars of one kind have one colour
    note: str = "not measured"  # what to say where there are no values


class Curve(NamedTuple):
    """One run: y over x; ``holds`` if y keeps its last value (the run was solved)."""

    x: np.ndarray
    y: np.ndarray
    holds: bool


def bar_chart(
    path: Path,
    title: str,
    unit: str,
    bars: Sequence[Bar],
    machine: str,
    reference: float | None = None,
) -> None:
    """Horizontal bars from top to bottom: the median, a line from min to max, a dot per run.

    A vertical line is drawn at the ``reference``.
    """
    row_height, size = (0.45, 9) if len(bars) < 20 else (0.25, 7)  # inches, points
    figure, (axes,) = _axes(title, machine, height=1.5 + row_height * max(len(bars), 1))
    longest = max((max(bar.values) for bar in bars if bar.values), default=1.0)
    kinds = list(dict.fromkeys(bar.kind for bar in bars))
    for row, bar in enumerate(bars):
        if not bar.values:
            axes.text(0, row, f" {bar.note[:90]}", va="center", color="grey", fontsize=size)
            continue
        middle, low, high = statistics.median(bar.values), min(bar.values), max(bar.values)
        axes.barh(row, middle, color=PALETTE[kinds.index(bar.kind) % len(PALETTE)], height=0.6)
        if len(bar.values) > 1:
            axes.plot([low, high], [row, row], color="black", linewidth=1.5)
            axes.plot(bar.values, [row] * len(bar.values), "o", color="black", markersize=3)
        digits = 2 if middle < 10 else 1 if middle < 100 else 0
        text = f"{middle:,.{digits}f}"
        axes.text(high + longest * 0.015, row, text, va="center", fontsize=size)
    if reference is not None:
        axes.axvline(reference, color="dimgrey", linewidth=1)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=size)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, longest * 1.12)
    axes.set_xlabel(unit)
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path)


def stacked_chart(
    path: Path, title: str, unit: str, bars: Mapping[str, Mapping[str, float]], machine: str
) -> None:
    """Horizontal bars made of parts, which come in the same order and colour in each."""
    figure, (axes,) = _axes(title, machine, height=1.5 + 0.6 * len(bars))
    left = np.zeros(len(bars))
    for part in dict.fromkeys(part for parts in bars.values() for part in parts):
        widths = np.array([parts.get(part, 0.0) for parts in bars.values()])
        axes.barh(range(len(bars)), widths, left=left, label=part)
        left += widths
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.legend(bbox_to_anchor=(1.01, 1), loc="upper left", fontsize=8)
    _save(figure, path)


def time_line(path: Path, rows: Sequence[Row], length: float, machine: str) -> None:
    """Who does what over so many milliseconds; rows of the same heading are below it."""
    figure, (axes,) = _axes("", machine, width=13.3, height=5.0)
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


def reward_chart(path: Path, groups: Sequence[tuple[str, Sequence[Record]]], machine: str) -> None:
    """avg_reward over frames and over minutes: of each group the median, in a band of its range.

    A group is what runs are called, and the runs; those without a finished game are not drawn.
    """
    title = "avg_reward (median over seeds, band: min to max)"
    figure, columns = _axes(title, machine, width=12.0, height=5.0, panels=len(PANELS))
    bars = sorted({record.bar for _, records in groups for record in records})
    for axes, (x_label, (x, unit)) in zip(columns, PANELS.items(), strict=True):
        for number, (label, records) in enumerate(groups):
            curves = [
                Curve(getattr(r.curves, x) / unit, r.curves.avg_reward, r.solved)
                for r in records
                if len(r.curves.frames)
            ]
            if curves:
                colour, style = PALETTE[number % 10], STYLES[number // 10 % 4]
                _draw_band(axes, label, curves, color=colour, linestyle=style)
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


def common_grid(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Bring runs to common x values: x, and the lowest, median and highest y there.

    The grid begins where every run has begun. A run that holds keeps its last value; the grid
    ends with the first run that does not hold, or with the last run if all hold, so that the
    median is over the same runs everywhere. Runs that would leave no grid, because they ended
    before another one had begun, are left out.
    """
    begin = max(curve.x[0] for curve in curves)
    curves = [curve for curve in curves if curve.holds or curve.x[-1] >= begin]
    cut = [curve.x[-1] for curve in curves if not curve.holds]
    end = min(cut) if cut else max(curve.x[-1] for curve in curves)
    x = np.linspace(begin, end, POINTS) if end > begin else np.array([begin])
    y = np.array([np.interp(x, curve.x, curve.y) for curve in curves])
    return x, y.min(axis=0), np.median(y, axis=0), y.max(axis=0)


def ladder_chart(
    path: Path,
    alone: Mapping[str, Sequence[float]],
    busy: Mapping[str, Sequence[float]],
    book: Mapping[str, Sequence[float]],
) -> None:
    """The minutes to 17 of every rung: a dot per run, a ring beside other programs, and the book's.

    All are minutes by rung; the book's, those of its second and third edition.
    """
    names = sorted({*alone, *busy, *book})
    figure, (axes,) = _axes("", "", height=0.42 * len(names) + 1.6)
    shown = [
        *((ALONE, name, minutes) for name, many in alone.items() for minutes in many),
        *((BUSY, name, minutes) for name, many in busy.items() for minutes in many),
        *(
            (look, name, m)
            for name, pair in book.items()
            for look, m in zip(BOOK, pair, strict=True)
        ),
    ]
    for (marker, colour, fill, _), name, minutes in shown:
        row = names.index(name)
        axes.plot(minutes, row, marker, color=colour, markerfacecolor=fill, markersize=6)
    for row, name in enumerate(names):
        if not alone.get(name) and not busy.get(name):
            text = "  not run to 17 here"
            axes.text(MINUTES[0], row, text, color="tab:gray", va="center", fontsize=8)
    axes.set_xscale("log")
    axes.set_xticks(MINUTES)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.4)
    axes.set_xlabel("minutes until avg_reward was 17")
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=colour, markerfacecolor=fill, label=label)
        for marker, colour, fill, label in (ALONE, BUSY, *BOOK)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    _save(figure, path)


def _draw_band(axes: Axes, label: str, curves: Sequence[Curve], **look: str) -> None:
    x, low, middle, high = common_grid(curves)
    # A single episode is a point: only a marker shows it.
    axes.plot(x, middle, marker="o" if len(x) == 1 else "", label=label, **look)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)


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
