"""Figures as PNG: bars with their spread, and curves with theirs as a band."""

import statistics
import zlib
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

from benchmarks.runner import find_rungs

PALETTE = list(TABLEAU_COLORS)  # their names
STYLES = ("-", "--", ":", "-.")  # of the variants of one rung, which share its colour
POINTS = 400  # of the grid that runs are brought to


class Bar(NamedTuple):
    """A bar: the values of repeated runs."""

    label: str
    values: Sequence[float]
    colour: str
    note: str = "not measured"  # what to say where there are no values


class Curve(NamedTuple):
    """One run: y over x; ``holds`` if y keeps its last value (the run was solved)."""

    x: np.ndarray
    y: np.ndarray
    holds: bool


class Band(NamedTuple):
    """Repeated runs of one setting, drawn as their median in a band from min to max."""

    label: str
    curves: Sequence[Curve]
    colour: str
    style: str = "-"


class Share(NamedTuple):
    """Repeated runs of one setting, and when each one reached the goal, if it did."""

    label: str
    values: Sequence[float]
    runs: int  # also those that did not get there
    colour: str
    style: str = "-"


class Scaling(NamedTuple):
    """How something goes with a size: the values of repeated runs, by size."""

    label: str
    values: Mapping[int, Sequence[float]]
    colour: str
    style: str = "-"


def rung_colour(script: str) -> str:
    """The colour of a rung, the same in every figure."""
    names = list(find_rungs())
    known = script in names
    return PALETTE[(names.index(script) if known else zlib.crc32(script.encode())) % len(PALETTE)]


def line_look(number: int) -> tuple[str, str]:
    """Colour and style of the lines of one thing among many: 40 of them differ."""
    return PALETTE[number % len(PALETTE)], STYLES[number // len(PALETTE) % len(STYLES)]


def bar_figure(
    path: Path,
    title: str,
    unit: str,
    bars: Sequence[Bar],
    machine: str,
    row_height: float = 0.45,
    reference: float | None = None,
) -> None:
    """Horizontal bars from top to bottom: the median, a line from min to max, a dot per run.

    Args:
        path: of the PNG.
        title: of the figure.
        unit: what the bars tell, with its unit.
        bars: from top to bottom.
        machine: where it was measured, and how.
        row_height: inches per bar.
        reference: a value at which a vertical line is drawn.
    """
    figure, axes = _figure(title, machine, height=1.5 + row_height * max(len(bars), 1))
    size = 9 if row_height > 0.3 else 7
    longest = max((max(bar.values) for bar in bars if bar.values), default=1.0)
    for row, bar in enumerate(bars):
        if not bar.values:
            axes.text(0, row, f" {bar.note[:90]}", va="center", color="grey", fontsize=size)
            continue
        middle, low, high = statistics.median(bar.values), min(bar.values), max(bar.values)
        axes.barh(row, middle, color=bar.colour, height=0.6)
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


def stacked_figure(
    path: Path,
    title: str,
    unit: str,
    bars: Mapping[str, Mapping[str, float]],
    order: Sequence[str],
    machine: str,
) -> None:
    """Horizontal bars made of parts, which come in the same order and colour in each."""
    figure, axes = _figure(title, machine, height=1.5 + 0.6 * len(bars))
    left = np.zeros(len(bars))
    for number, part in enumerate(order):
        widths = np.array([parts.get(part, 0.0) for parts in bars.values()])
        if widths.any():
            colour = PALETTE[number % len(PALETTE)]
            hatch = "//" if number >= len(PALETTE) else None
            style = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}
            axes.barh(range(len(bars)), widths, left=left, label=part, **style)
        left += widths
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.legend(bbox_to_anchor=(1.01, 1), loc="upper left", fontsize=8)
    _save(figure, path)


def band_figure(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    bands: Sequence[Band],
    bounds: Sequence[float],
    machine: str,
) -> None:
    """Curves over a common x axis; ``bounds`` are drawn as horizontal lines."""
    figure, axes = _figure(title, machine, height=5.0)
    _draw_bands(axes, bands, bounds)
    if any(len(curve.x) for band in bands for curve in band.curves):
        axes.legend(fontsize=8)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    _save(figure, path)


def panels_figure(
    path: Path,
    title: str,
    y_label: str,
    panels: Mapping[str, Sequence[Band]],
    bounds: Sequence[float],
    machine: str,
) -> None:
    """As ``band_figure``, with a panel for each label of an x axis."""
    figure, columns = _panels(title, machine, list(panels))
    for axes, bands in zip(columns, panels.values(), strict=True):
        _draw_bands(axes, bands, bounds)
    columns[0].set_ylabel(y_label)
    columns[-1].legend(bbox_to_anchor=(1.01, 1), loc="upper left", fontsize=8)
    _save(figure, path)


def share_figure(
    path: Path, title: str, panels: Mapping[str, Sequence[Share]], machine: str
) -> None:
    """The share of runs that reached the goal by x; a panel for each label of an x axis."""
    figure, columns = _panels(title, machine, list(panels))
    for axes, shares in zip(columns, panels.values(), strict=True):
        end = max((max(share.values) for share in shares if share.values), default=1.0) * 1.1
        for share in shares:
            x = [0.0, *sorted(share.values), end]
            y = [100 * n / share.runs for n in (*range(len(share.values) + 1), len(share.values))]
            axes.step(x, y, share.style, where="post", color=share.colour, label=share.label)
        axes.set_xlim(0, end)
        axes.set_ylim(-3, 103)
        axes.grid(alpha=0.3)
    columns[0].set_ylabel("runs that solved Pong (%)")
    columns[0].legend(fontsize=8, loc="upper left")
    _save(figure, path)


def scaling_figure(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    lines: Sequence[Scaling],
    machine: str,
) -> None:
    """Medians over sizes, both on log scales, with a line from min to max at each."""
    figure, axes = _figure(title, machine, height=5.5)
    sizes = sorted({size for line in lines for size in line.values})
    for line in lines:
        middle = [statistics.median(values) for values in line.values.values()]
        low, high = ([end(values) for values in line.values.values()] for end in (min, max))
        x = list(line.values)
        axes.plot(x, middle, line.style, marker="o", markersize=4, color=line.colour)
        axes.vlines(x, low, high, color=line.colour, linewidth=2, alpha=0.4)
        text = f"  {line.label}"
        axes.annotate(text, (x[-1], middle[-1]), color=line.colour, fontsize=8, va="center")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(sizes[0] / 1.3, sizes[-1] * 1.3)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    _save(figure, path)


def common_grid(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Bring runs to common x values: x, and the lowest, median and highest y there.

    The grid begins where every run has begun. A run that holds keeps its last value; the grid
    ends with the first run that does not hold, or with the last run if all hold, so that the
    median is over the same runs everywhere. Runs that would leave no grid, because they ended
    before another one had begun, are left out.
    """
    curves = [curve for curve in curves if len(curve.x)]
    begin = max(curve.x[0] for curve in curves)
    curves = [curve for curve in curves if curve.holds or curve.x[-1] >= begin]
    cut = [curve.x[-1] for curve in curves if not curve.holds]
    end = min(cut) if cut else max(curve.x[-1] for curve in curves)
    x = np.linspace(begin, end, POINTS) if end > begin else np.array([begin])
    y = np.array([np.interp(x, curve.x, curve.y) for curve in curves])
    return x, y.min(axis=0), np.median(y, axis=0), y.max(axis=0)


def _draw_bands(axes: Axes, bands: Sequence[Band], bounds: Sequence[float]) -> None:
    drawn = [band for band in bands if any(len(curve.x) for curve in band.curves)]
    for band in drawn:
        x, low, middle, high = common_grid(band.curves)
        # A single episode is a point: only a marker shows it.
        marker = "o" if len(x) == 1 else ""
        axes.plot(x, middle, band.style, marker=marker, color=band.colour, label=band.label)
        axes.fill_between(x, low, high, color=band.colour, alpha=0.2, linewidth=0)
    for bound in bounds:
        axes.axhline(bound, color="grey", linestyle="--", linewidth=1, label=f"solved: {bound:g}")
    if not drawn:
        axes.text(0.5, 0.5, "no game was finished yet", ha="center", transform=axes.transAxes)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)


def _panels(title: str, machine: str, x_labels: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """Axes beside each other that share their y axis."""
    figure, grid = plt.subplots(
        1, len(x_labels), figsize=(12.0, 5.0), layout="constrained", sharey=True, squeeze=False
    )
    figure.suptitle(title, fontsize=12)
    grid[0, 0].set_title(machine, fontsize=7, color="dimgrey", loc="left")
    for axes, x_label in zip(grid[0], x_labels, strict=True):
        axes.set_xlabel(x_label)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, list(grid[0])


def _figure(title: str, machine: str, height: float) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(9.0, height), layout="constrained")
    figure.suptitle(title, fontsize=12)
    axes.set_title(machine, fontsize=7, color="dimgrey")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
