"""Write the table and the figures of runs, from their TensorBoard events alone.

It takes every run below FOLDER: runs of the ladder, runs that you started yourself, and unfinished
runs, which the table marks. Each machine has a table of its own. Files: table.md, table.csv,
runs.csv (a line per run), reward_over_time.png, reward_over_frames.png and fps.png; the files of a
second machine end in -2. Runs that were started to solve Pong are also in solved.md, solved.csv and
solved.png: how many solved it, and how soon.

    python -m benchmarks table runs/ladder
    python -m benchmarks table results/mine/runs --out results/mine
"""

import argparse
import csv
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import UserError, solved
from benchmarks.calibration import FIGURES
from benchmarks.published import BASELINE, RUNGS
from benchmarks.records import Record, Setting, read_records
from benchmarks.report import (
    change,
    join_machine,
    markdown,
    output_folder,
    seeds_of,
    short_machine,
    spread,
    write_table,
)

if TYPE_CHECKING:
    from benchmarks import plots

HEADER = [
    "rung",
    "script",
    "seeds",
    "FPS",
    "change in FPS",
    "minutes to solve",
    "change in time",
    "frames",
    "evaluation",
    "2nd ed. FPS",
    "2nd ed. minutes",
    "3rd ed. FPS",
    "3rd ed. minutes",
]
RUNS_HEADER = ["script", "seed", "fps", "minutes", "frames", "avg_reward", "solved", "finished"]
RUNS_HEADER += ["evaluation", "evaluation_sd", "scaled_minutes", "fps_to_01"]
RUNS_HEADER += [f"{name}_{when}" for name in FIGURES for when in ("before", "after")]
RUNS_HEADER += ["commit", "machine", "folder"]
NOTES = [
    "FPS: agent steps per second of wall clock while training, filling of the replay buffer "
    "not included. Minutes: wall clock from the first environment step.",
    "Evaluation: mean reward of 30 games with epsilon 0.01 after training.",
    "Median over the seeds (and their range). Changes are against 01_baseline.",
    "2nd edition: GTX 1080 Ti, solved at 17. 3rd edition: a newer GPU, solved at 18. From "
    "another machine only the changes carry over.",
]


@dataclass(frozen=True)
class Group:
    """Runs of one rung with the same settings; only the seeds differ."""

    script: str
    variant: str  # the settings that set it apart from other groups of the same rung, or ""
    records: list[Record]

    @property
    def label(self) -> str:
        """The rung, with the variant."""
        return f"{self.script} ({self.variant})" if self.variant else self.script

    @property
    def settings(self) -> dict[str, Setting]:
        """What the runs have in common."""
        return self.records[0].settings

    @property
    def seeds(self) -> str:
        """The seeds of the runs, in order."""
        return ", ".join(str(seed) for seed in sorted(record.seed for record in self.records))

    @property
    def fps(self) -> list[float]:
        """Of the runs that began to train."""
        return [record.fps for record in self.records if record.fps is not None]

    @property
    def minutes(self) -> list[float]:
        """Of the runs that solved the game."""
        return [record.minutes for record in self.records if record.solved]

    @property
    def all_solved(self) -> bool:
        """Whether all runs solved Pong; if not, the minutes are only those of lucky seeds."""
        return all(record.solved for record in self.records)

    def time(self) -> str:
        """Minutes to solve, or how far the runs came."""
        open_runs = [record for record in self.records if not record.solved]
        solved = spread(self.minutes)
        if not open_runs:
            return solved
        if solved:
            solved += f" in {len(self.minutes)} of {len(self.records)} runs; the others "
        unfinished = sum(not record.finished for record in open_runs)
        state = "unfinished" if unfinished == len(open_runs) else "not solved"
        if 0 < unfinished < len(open_runs):
            state += f" ({unfinished} of {len(open_runs)} unfinished)"
        frames = f"{statistics.median(record.frames for record in open_runs):,.0f} frames"
        rewards = [record.avg_reward for record in open_runs if record.avg_reward is not None]
        if not rewards:
            return f"{solved}{state}, no game completed in {frames}"
        return f"{solved}{state}, avg_reward {statistics.median(rewards):.1f} at {frames}"

    def frames(self) -> str:
        """Frames of the runs, whole numbers."""
        values = [record.frames for record in self.records]
        middle = f"{statistics.median(values):,.0f}"
        return middle if len(set(values)) == 1 else f"{middle} ({min(values):,}-{max(values):,})"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the runs are")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where the table and the figures are written (default: the folder of the runs)",
    )


def run(args: argparse.Namespace) -> int:
    """Read the runs; write and print the tables, write the figures."""
    records = read_records(args.folder)
    if not records:
        raise UserError(f"no run of a rung below {args.folder}: no TensorBoard events tell of one")
    out = output_folder(args.out or args.folder)
    records, left_out = drop_superseded(records)
    machines = by_machine(records)
    for number, (machine, members) in enumerate(machines, start=1):
        suffix = "" if number == 1 else f"-{number}"
        groups = group(members)
        about = describe(machine, groups)
        if len(machines) > 1:
            about.append(f"Machine {number} of {len(machines)}; each has a table of its own.")
        if left_out:
            about.append(f"Left out: {left_out} unfinished runs that were run again since.")
        rows = [row(entry, baseline_of(entry, groups)) for entry in groups]
        title = "The ladder: FPS and time to solve"
        write_table(out / f"table{suffix}", title, HEADER, rows, [*about, *NOTES])
        print(markdown(title, HEADER, rows, [*about, *NOTES]))
        figures(out, suffix, groups, machine)
        whole_way = [entry for entry in groups if solved.went_the_whole_way(entry.records)]
        if whole_way:
            labelled = [(entry.label, entry.records) for entry in whole_way]
            solved.write(out / f"solved{suffix}", labelled, members, about)
            solved_figure(out / f"solved{suffix}.png", whole_way, machine)
    write_runs(out / "runs.csv", machines)
    print(f"written to {out}")
    return 0


def drop_superseded(records: Sequence[Record]) -> tuple[list[Record], int]:
    """Drop and count unfinished runs if the same run came further elsewhere."""

    def same(a: Record, b: Record) -> bool:
        return (a.script, a.seed, a.settings, a.machine) == (
            b.script,
            b.seed,
            b.settings,
            b.machine,
        )

    kept = [
        record
        for record in records
        if record.finished
        or not any(
            other is not record and same(other, record) and _rank(other) > _rank(record)
            for other in records
        )
    ]
    return kept, len(records) - len(kept)


def _rank(record: Record) -> tuple[bool, int, str]:
    return record.finished, record.frames, str(record.folder)


def by_machine(records: Sequence[Record]) -> list[tuple[dict[str, Setting], list[Record]]]:
    """The machines, and the runs on each; most runs first."""
    machines: list[tuple[dict[str, Setting], list[Record]]] = []
    for record in records:
        for machine, members in machines:
            if machine == record.machine:
                members.append(record)
                break
        else:
            machines.append((record.machine, [record]))
    return sorted(machines, key=lambda entry: -len(entry[1]))


def group(records: Sequence[Record]) -> list[Group]:
    """Group runs by rung and settings, in the order of the ladder."""
    groups: list[list[Record]] = []
    for record in sorted(records, key=lambda r: (r.script, r.seed)):
        for members in groups:
            if (members[0].script, members[0].settings) == (record.script, record.settings):
                members.append(record)
                break
        else:
            groups.append([record])
    return [Group(members[0].script, _variant(members, groups), members) for members in groups]


def _variant(members: list[Record], groups: list[list[Record]]) -> str:
    """The settings that not all groups of a rung share, without those that most of them do."""
    mine = members[0].settings
    others = [other[0].settings for other in groups if other[0].script == members[0].script]
    told = []
    for name in sorted(
        {name for other in others for name in other if other[name] != mine.get(name)}
    ):
        (usual, times), *rest = Counter(other.get(name) for other in others).most_common()
        unusual = mine.get(name) != usual or any(count == times for _, count in rest)
        if name in mine and unusual:
            told.append(f"{name} {_shown(mine[name])}")
    return ", ".join(told)


def _shown(value: Setting) -> str:
    if isinstance(value, str):
        return value or "none"
    return f"{value:,.0f}" if value.is_integer() else f"{value:g}"


def baseline_of(entry: Group, groups: Sequence[Group]) -> Group | None:
    """The baseline with the most similar settings; None if there is none."""
    if entry.script == BASELINE:
        return None
    return max(
        (other for other in groups if other.script == BASELINE),
        key=lambda other: sum(
            entry.settings.get(name) == value for name, value in other.settings.items()
        ),
        default=None,
    )


def row(entry: Group, baseline: Group | None) -> list[str]:
    """A line of the table."""
    published = RUNGS.get(entry.script)
    theirs = list(published[1:]) if published else [""] * 4
    title = published.title if published else ""
    faster = quicker = ""
    if baseline:
        faster = change(entry.fps, baseline.fps)
        if entry.all_solved and baseline.all_solved:
            quicker = change(entry.minutes, baseline.minutes)
    cells = [title, entry.label, entry.seeds, spread(entry.fps), faster, entry.time(), quicker]
    evaluations = [statistics.mean(r.evaluation) for r in entry.records if r.evaluation]
    return [*cells, entry.frames(), spread(evaluations), *theirs]


def describe(machine: dict[str, Setting], groups: Sequence[Group]) -> list[str]:
    """The notes above a table: the machine and the runs."""
    bars = sorted({record.bar for entry in groups for record in entry.records})
    seeds = [record.seed for entry in groups for record in entry.records]
    runs = Counter(record.finished for entry in groups for record in entry.records)
    unfinished = f", {runs[False]} of them unfinished" if runs[False] else ""
    return [
        f"Machine: {join_machine(machine) or 'not told by the runs'}",
        f"Runs: {runs.total()}{unfinished}; {seeds_of(seeds)}; solved: avg_reward reached "
        + " or ".join(f"{bar:g}" for bar in bars),
    ]


def figures(out: Path, suffix: str, groups: Sequence[Group], machine: dict[str, Setting]) -> None:
    """Draw reward over time, reward over frames, and FPS."""
    from benchmarks import plots  # late: --help need not wait for matplotlib

    records = [record for entry in groups for record in entry.records]
    corner = corner_of(groups, machine)
    bounds = sorted({record.bar for record in records})
    styles = line_styles(groups)

    def bands(x: Callable[[Record], np.ndarray]) -> list[plots.Band]:
        return [
            reward_band(entry, plots.rung_colour(entry.script), style, x)
            for entry, style in zip(groups, styles, strict=True)
        ]

    reward = "avg_reward (points per game, smoothed)"
    spread_is = "median over seeds, band: min to max"
    plots.band_figure(
        out / f"reward_over_time{suffix}.png",
        f"Reward over wall-clock time ({spread_is})",
        "wall clock (minutes)",
        reward,
        bands(lambda record: record.curves.seconds / 60),
        bounds,
        corner,
    )
    plots.band_figure(
        out / f"reward_over_frames{suffix}.png",
        f"Reward over frames ({spread_is})",
        "frames (thousands of agent steps)",
        reward,
        bands(lambda record: record.curves.frames / 1_000),
        bounds,
        corner,
    )
    plots.bar_figure(
        out / f"fps{suffix}.png",
        "Speed per rung (median over seeds, line: min to max)",
        "FPS (agent steps per second of wall clock, while training)",
        [plots.Bar(g.label, g.fps, plots.rung_colour(g.script)) for g in groups],
        corner,
    )


def reward_band(
    entry: Group, colour: str, style: str, x: Callable[[Record], np.ndarray]
) -> "plots.Band":
    """The smoothed reward of a setting's runs, over what x makes of each of them."""
    from benchmarks import plots

    curves = [plots.Curve(x(r), r.curves.avg_reward, r.solved) for r in entry.records]
    return plots.Band(entry.label, curves, colour, style)


def solved_figure(path: Path, groups: Sequence[Group], machine: dict[str, Setting]) -> None:
    """Draw the share of runs that had solved Pong, over frames and over minutes."""
    from benchmarks import plots

    def shares(x: Callable[[Record], float]) -> list[plots.Share]:
        return [
            plots.Share(
                entry.label,
                [x(record) for record in entry.records if record.solved],
                len(entry.records),
                plots.rung_colour(entry.script),
                style,
            )
            for entry, style in zip(groups, line_styles(groups), strict=True)
        ]

    panels = {
        "frames (thousands of agent steps)": shares(lambda record: record.frames / 1_000),
        "wall clock as measured (minutes)": shares(lambda record: record.minutes),
    }
    plots.share_figure(path, "Runs that solved Pong", panels, corner_of(groups, machine))


def corner_of(groups: Sequence[Group], machine: dict[str, Setting]) -> str:
    """The machine and the seeds, for the corner of a figure."""
    seeds = seeds_of(record.seed for entry in groups for record in entry.records)
    return f"{short_machine(machine)}; {seeds}"


def line_styles(groups: Sequence[Group]) -> list[str]:
    """Styles of lines that tell the variants of a rung apart, which share its colour."""
    from benchmarks import plots

    drawn_before: Counter[str] = Counter()
    styles = []
    for entry in groups:
        styles.append(plots.STYLES[drawn_before[entry.script] % len(plots.STYLES)])
        drawn_before[entry.script] += 1
    return styles


def write_runs(path: Path, machines: Sequence[tuple[dict[str, Setting], list[Record]]]) -> None:
    """Write a line per run, with numbers as they are."""
    references = [(record, solved.reference_of(runs)) for _, runs in machines for record in runs]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(RUNS_HEADER)
        for r, reference in sorted(references, key=lambda entry: str(entry[0].folder)):
            scale = reference.scale(r)
            end = [_number(r.minutes), r.frames, _number(r.avg_reward)]
            end += [int(r.solved), int(r.finished)]
            games: list[float | None] = [None] * 2
            if r.evaluation:
                games = [statistics.mean(r.evaluation), statistics.pstdev(r.evaluation)]
            scaled = [None if scale is None else r.minutes * scale, reference.ratio(r)]
            around = [r.calibration.before, r.calibration.after] if r.calibration else [None] * 2
            speeds = [getattr(speed, name, None) for name in FIGURES for speed in around]
            numbers = [_number(value) for value in (*games, *scaled, *speeds)]
            place = [r.calibration.commit if r.calibration else ""]
            place += [join_machine(r.machine), r.folder.name]
            writer.writerow([r.script, r.seed, _number(r.fps), *end, *numbers, *place])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
