"""Write one table and one chart of runs, from their TensorBoard events alone.

Each RUN is the folder of a run, or a folder with runs somewhere below: runs of the ladder, runs
that you started yourself, unfinished ones. The table has a line for each setting of a rung on each
machine; only the seeds differ within it. With --every, it has the learning curve, too, and a line
for every run. Files: table.md, table.csv, runs.csv (a line per run, numbers as they are), table.png
(avg_reward over frames and over minutes).

    python -m benchmarks table runs/ladder
    python -m benchmarks table runs/first runs/second --every 100000
"""

import argparse
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from statistics import mean, median, pstdev

import numpy as np

from benchmarks import UserError, book
from benchmarks.arguments import positive
from benchmarks.records import Record, Setting, grouped, read_records
from benchmarks.report import (
    in_rows,
    join_machine,
    output_folder,
    short_machine,
    spread,
    write_csv,
    write_table,
)
from benchmarks.runner import BASELINE, EARLIER_HELD_OUT_SEEDS, HELD_OUT_SEEDS, SOLVE_FRAMES

HOUR = 3_600.0  # seconds
MOST_COLUMNS = 40  # of the learning curve
RESAMPLES, CONFIDENCE = 10_000, 0.95  # of the bootstrap
RUNS_HEADER = ["script", "seed", "fps", "minutes", "frames", "avg_reward", "solved", "finished"]
RUNS_HEADER += ["evaluation", "evaluation_sd", "fps_to_01", "commit", "machine", "folder"]
NOTES = [
    "Medians over the seeds (and their range). FPS: agent steps per second of wall clock while "
    "training, filling of the replay buffer not included. FPS / 01's: against the nearest run of "
    "01 with like settings on that machine that was not an hour away. Minutes: wall clock from the "
    "first environment step until avg_reward was at 17, or until the trial of the agent after that "
    "was won. Evaluation: mean reward of the games after training.",
    "Of runs that were started to solve Pong: one that did not counts as if it had, at its frame "
    f"limit ({SOLVE_FRAMES:,} where none was given; an interrupted run's minutes grow to the limit "
    'at its own speed). What this changes is a lower bound: ">". IQM: interquartile mean, with its '
    f"{CONFIDENCE:.0%} interval from a bootstrap ({RESAMPLES:,} resamples of the seeds; Agarwal et "
    "al., arXiv:2108.13264).",
]
CURVE_NOTE = (
    "By thousands of frames: mean reward of the games that ended there / their mean length in "
    "frames; of several seeds the median. A dash: no game ended there, or one of the runs had "
    "ended. A run that solved Pong stays in the median with its last column."
)


Column = tuple[float, float]  # of the games that ended in one part of a run: mean reward and length


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    text = "add the learning curve, in columns of N frames, and a line for every run"
    parser.add_argument("--every", type=positive, metavar="N", help=text)
    text = "where the table is written (default: RUN if there is one, else runs/table)"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=text)


def run(args: argparse.Namespace) -> int:
    """Read the runs; write and print the table, draw the chart."""
    from benchmarks import charts  # late: --help need not wait for matplotlib

    records, left_out = drop_superseded(read_all(args.runs))
    edges = range(0)
    if args.every:
        edges = range(0, max(record.frames for record in records), args.every) or range(1)
        if len(edges) > MOST_COLUMNS:
            raise UserError(f"--every {args.every} makes {len(edges)} columns, not {MOST_COLUMNS}")
    alone = args.runs[0] if len(args.runs) == 1 else Path("runs/table")
    out = output_folder(args.out or alone)
    ladder = sorted(records, key=lambda record: (record.script, record.seed))
    groups = grouped(ladder, lambda record: record.setting)
    rows, curves = [], []
    for runs in groups:
        name = label(runs[0], groups)
        line = row(name, runs, ladder, edges)
        curves.append((name + f", machine {line['machine']}" * bool(line["machine"]), runs))
        rows.append(line)
        if args.every and len(runs) > 1:
            rows += [row(name, [one], ladder, edges) for one in runs]
    notes = [CURVE_NOTE] * bool(args.every)
    notes += [f"Left out: {left_out} unfinished runs that were run again since."] * bool(left_out)
    corner = write_rows(out / "table", "Runs", rows, ladder, notes)
    write_csv(out / "runs.csv", [RUNS_HEADER, *(numbers(record, records) for record in records)])
    charts.reward_chart(out / "table.png", curves, corner)
    print(f"written to {out}")
    return 0


def write_rows(
    path_without_suffix: Path,
    title: str,
    rows: Sequence[dict[str, str]],
    records: Sequence[Record],
    notes: Sequence[str],
) -> str:
    """Write and print a table of runs, without the columns in which nothing is said.

    Its rows are as of ``row``; every such table has notes of its own besides these. Returns the
    machines and the seeds, for the corner of a chart.
    """
    machines = machines_of(records)
    names = dict.fromkeys(name for cells in rows for name in cells)
    header = [name for name in names if any(cells.get(name) for cells in rows)]
    seeds = in_rows({record.seed for record in records})
    notes = [*describe(records), *NOTES, *notes]
    notes += [book.NOTE] * ("book: minutes" in header)
    table = [[cells.get(name, "") for name in header] for cells in rows]
    print(write_table(path_without_suffix, title, header, table, notes))
    return "; ".join([*map(short_machine, machines), f"seeds {seeds}"])


def read_all(folders: Sequence[Path]) -> list[Record]:
    """The runs below the folders, each once."""
    records: dict[Path, Record] = {}
    for folder in folders:
        found = read_records(folder)
        if not found:
            raise UserError(f"no run of a rung below {folder}: no TensorBoard events tell of one")
        records |= {record.folder.resolve(): record for record in found}
    return list(records.values())


def drop_superseded(records: Sequence[Record]) -> tuple[list[Record], int]:
    """Drop and count unfinished runs if the same run came further elsewhere."""

    def rank(record: Record) -> tuple[bool, int, str]:
        return record.finished, record.frames, str(record.folder)

    best: dict[Hashable, tuple[bool, int, str]] = {}
    for record in sorted(records, key=rank):
        best[record.seed, record.setting] = rank(record)
    kept = [r for r in records if r.finished or rank(r) == best[r.seed, r.setting]]
    return kept, len(records) - len(kept)


def label(record: Record, groups: Sequence[Sequence[Record]]) -> str:
    """The rung, and the settings that not all its groups share, without those that most have."""
    mine = record.settings
    others = [other[0].settings for other in groups if other[0].script == record.script]
    told = []
    for name in sorted(
        {name for other in others for name in other if other[name] != mine.get(name)}
    ):
        (usual, times), *rest = Counter(other.get(name) for other in others).most_common()
        unusual = mine.get(name) != usual or any(count == times for _, count in rest)
        if name in mine and unusual:
            told.append(f"{name} {_shown(mine[name])}")
    return f"{record.script} ({', '.join(told)})" if told else record.script


def _shown(value: Setting) -> str:
    if isinstance(value, str):
        return value or "none"
    return f"{value:,.0f}" if value.is_integer() else f"{value:g}"


def fps_of(records: Sequence[Record]) -> list[float]:
    """Of the runs that began to train."""
    return [record.fps for record in records if record.fps is not None]


def machines_of(records: Sequence[Record]) -> list[dict[str, Setting]]:
    """The machines of the runs, each once."""
    return list({record.place: record.machine for record in records}.values())


def describe(records: Sequence[Record]) -> list[str]:
    """The notes above a table: the machines and the runs."""
    machines = machines_of(records)
    bars = " or ".join(f"{bar:g}" for bar in sorted({record.bar for record in records}))
    unfinished = sum(not record.finished for record in records)
    told = f"Runs: {len(records)}, {unfinished} of them unfinished"
    commits = sorted({record.commit for record in records} - {""})
    told += f"; solved: avg_reward reached {bars}; commit {', '.join(commits) or 'not told'}"
    names = [f"Machine {n}" for n in range(1, len(machines) + 1)] if machines[1:] else ["Machine"]
    described = [join_machine(machine) or "not told by the runs" for machine in machines]
    return [*(f"{n}: {told}" for n, told in zip(names, described, strict=True)), told]


def row(
    name: str,
    runs: Sequence[Record],
    records: Sequence[Record],
    edges: range = range(0),
) -> dict[str, str]:
    """A line of the table: the runs of one setting on one machine, among all records.

    ``edges`` is where the columns of the learning curve begin, in frames; empty: there is none.
    """
    machines = machines_of(records)
    solved = [record.solved for record in runs]
    whole_way = went_the_whole_way(runs)
    certain = [one or not whole_way for one in solved]  # the others did run for so many frames
    ways = [way_to_solve(one) if whole_way else (one.frames, one.minutes) for one in runs]
    frames, minutes = zip(*ways, strict=True)
    won = summary([record.minutes for record in runs], certain, "{:,.1f}")
    unfinished = sum(not record.finished for record in runs)
    seeds = [record.seed for record in runs]
    held_out = set(seeds) <= {*HELD_OUT_SEEDS, *EARLIER_HELD_OUT_SEEDS}
    rewards = [record.avg_reward for record in runs if record.avg_reward is not None]
    ratios = [ratio for record in runs if (ratio := fps_to_01(record, records)) is not None]
    theirs = book.RUNGS.get(runs[0].script, book.Measured("", ""))
    cells = {
        "rung": name,
        "machine": f"{machines.index(runs[0].machine) + 1}" if machines[1:] else "",
        "seeds": in_rows(seeds) + " (held out)" * held_out,
        "solved": f"{sum(solved)} of {len(runs)}" + f", {unfinished} unfinished" * bool(unfinished),
        "FPS": spread(fps_of(runs)),
        "FPS / 01's": spread(ratios, 2 if max(ratios, default=0) < 10 else 1),
        "frames": summary(frames, certain, "{:,.0f}"),
        "frames: IQM (95 %)": iqm(frames, certain, "{:,.0f}") if whole_way else "",
        "minutes": summary(minutes, certain, "{:,.1f}"),
        "minutes: IQM (95 %)": iqm(minutes, certain, "{:,.1f}") if whole_way else "",
        "minutes: trial won": won if any(record.tried for record in runs) else "",
        "avg_reward": spread(rewards, 1),
        "evaluation": spread([mean(r.evaluation) for r in runs if r.evaluation], 1),
        "book: FPS": theirs.fps,
        "book: minutes": theirs.minutes,
    }
    if not edges:
        return cells
    columns = [f"{at // 1_000:,}-{(at + edges.step) // 1_000:,}" for at in edges]
    curves = [held(learning_curve(one, edges), one.solved and len(runs) > 1) for one in runs]
    return cells | dict(zip(columns, map(shown, zip(*curves, strict=True)), strict=True))


def went_the_whole_way(runs: Sequence[Record]) -> bool:
    """Whether runs of one setting were started to solve Pong, not only to measure FPS."""
    limit = float(runs[0].settings.get("max_frames", 0))
    return limit == 0 or limit >= SOLVE_FRAMES or any(record.solved for record in runs)


def way_to_solve(record: Record) -> tuple[float, float]:
    """Frames and minutes to the bar; if the run did not solve Pong, as many as to its limit."""
    if record.solved:
        return record.to_bar
    limit = float(record.settings.get("max_frames", 0)) or SOLVE_FRAMES
    frames = max(limit, record.frames)
    return frames, record.minutes * (frames / record.frames if record.frames else 1.0)


def summary(values: Sequence[float], certain: Sequence[bool], form: str) -> str:
    """Median and range; a figure that hangs on runs that are not certain has a ">"."""
    text, *ends = (bound(f, values, certain, form) for f in (np.median, np.min, np.max))
    return text if len(set(ends)) == 1 else f"{text} ({' to '.join(ends)})"


def iqm(values: Sequence[float], certain: Sequence[bool], form: str) -> str:
    """Interquartile mean with its interval, of at least two runs."""
    if len(values) < 2:
        return ""
    ends = (lambda v: bootstrap_interval(v)[0]), (lambda v: bootstrap_interval(v)[1])
    middle, low, high = (bound(f, values, certain, form) for f in (interquartile_mean, *ends))
    return f"{middle} ({low} to {high})"


def bound(
    statistic: Callable[[np.ndarray], float],
    values: Sequence[float],
    certain: Sequence[bool],
    form: str,
) -> str:
    """A statistic; with ">" unless it stays what it is however late the other runs would be."""
    known = np.array(values, float)
    latest = np.where(certain, known, np.inf)
    sure = statistic(known) == statistic(latest)
    return ("" if sure else "> ") + form.format(statistic(known))


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean over the last axis, the runs, without the lowest and the highest quarter.

    Quarters are rounded down to whole runs. A median of few runs jumps from one to the next, and a
    mean follows a single unlucky one.
    """
    ordered = np.sort(values, axis=-1)
    quarter = ordered.shape[-1] // 4
    return ordered[..., quarter : ordered.shape[-1] - quarter].mean(axis=-1)


def bootstrap_interval(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The ends between which this share of the resamples of runs have their interquartile mean.

    The resamples are always the same. An end is the value of a resample, never between two of them.
    """
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    outside = (1 - confidence) / 2
    means, ends = interquartile_mean(drawn), [outside, 1 - outside]
    low, high = np.quantile(means, ends, method="inverted_cdf").tolist()
    return low, high


def fps_to_01(run: Record, records: Sequence[Record]) -> float | None:
    """FPS as a ratio to the nearest run of 01 there, of the settings most like the run's own.

    None if no run of 01 was within the hour.
    """

    def apart(other: Record) -> float:
        first, second = sorted((run, other), key=lambda record: record.started)
        return max(0.0, second.started - (first.started + 60 * first.minutes))

    def alike(other: Record) -> int:
        return sum(run.settings.get(name) == value for name, value in other.settings.items())

    baselines = [r for r in records if r.script == BASELINE and r.fps and r.machine == run.machine]
    near = min(
        baselines,
        key=lambda other: (-alike(other), apart(other), abs(other.started - run.started)),
        default=None,
    )
    if near is None or near.fps is None or run.fps is None or apart(near) > HOUR:
        return None
    return run.fps / near.fps


def learning_curve(record: Record, edges: range) -> list[Column | None]:
    """The games that ended between two edges; None where there was none."""
    number = (record.curves.frames - 1) // edges.step  # game -> column; it ends with its last frame
    reward, steps = record.curves.reward, record.curves.steps
    columns = (number == column for column in range(len(edges)))
    return [(reward[c].mean(), steps[c].mean()) if c.any() else None for c in columns]


def held(curve: Sequence[Column | None], solved: bool) -> list[Column | None]:
    """The curve; if the run solved Pong, its last column fills the rest."""
    last = max((i for i, column in enumerate(curve) if column), default=0)
    return [curve[last] if solved and i > last else column for i, column in enumerate(curve)]


def shown(columns: Sequence[Column | None]) -> str:
    """A cell of the learning curve; a dash where it would not be the median of all runs."""
    known = [column for column in columns if column]
    if len(known) < len(columns):
        return "-"
    rewards, steps = zip(*known, strict=True)
    return f"{spread(rewards, 1)} / {median(steps):,.0f}"


def numbers(r: Record, records: Sequence[Record]) -> list[str | int]:
    """A run's line of runs.csv."""

    def plain(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}"

    games = [mean(r.evaluation), pstdev(r.evaluation)] if r.evaluation else [None, None]
    begin = [r.script, r.seed, plain(r.fps), plain(r.minutes), r.frames, plain(r.avg_reward)]
    end = [*map(plain, games), plain(fps_to_01(r, records)), r.commit, join_machine(r.machine)]
    return [*begin, int(r.solved), int(r.finished), *end, r.folder.name]
