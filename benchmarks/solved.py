"""The table of runs to 17: how surely a rung solves Pong, and how soon.

A run that did not solve the game counts as if it had solved it at its frame limit. A figure that
depends on such a run is a lower bound, and has a ">" in front of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.calibration import BATCH_SIZE
from benchmarks.published import BASELINE
from benchmarks.records import Record
from benchmarks.report import markdown, write_table
from benchmarks.robust import CONFIDENCE, RESAMPLES, bootstrap_interval, interquartile_mean
from benchmarks.runner import HELD_OUT_SEEDS, SOLVE_FRAMES

REFERENCE_FPS = 70.0  # of 01, on the machine that minutes are scaled to
HOUR = 3_600.0  # seconds
# What a rung waits for on a CPU, as figures of calibration.Speed. With two, the one that makes
# the longer time counts. Rungs that are not named wait for updates on all cores: these take 84
# to 94 % of their time (`breakdown`).
UPDATES = ("updates",)
HALVES = ("updates_one_core", "emulated_frames")  # one half of the cores learns, the other plays
BOUND_BY = {"07_speedrun": HALVES}
AS_IT_IS = {"amp": 0.0, "batch_size": 32.0}  # settings of 01 that its speed hangs on
MANY_MACHINES = ("09_many_machines",)  # this one's speed is not theirs

HEADER = ["script", "seeds", "solved"]
HEADER += [
    f"{what}: {figure}"
    for what in ("frames", "minutes", "scaled minutes")
    for figure in ("median", "worst", "IQM (95 %)")
]
HEADER += ["FPS / 01's"]
NOTES = [
    "A run that did not solve Pong counts as if it had, at its frame limit (minutes: of the whole "
    f"run; the limit is {SOLVE_FRAMES:,} frames where none was given; an interrupted run's minutes "
    'grow to the limit at its own speed). Figures that this changes are lower bounds: ">".',
    f"IQM: interquartile mean, with its {CONFIDENCE:.0%} interval from a stratified bootstrap "
    f"({RESAMPLES:,} resamples of the seeds; Agarwal et al., arXiv:2108.13264).",
    f"Scaled minutes: as on this machine made slower or faster as a whole, until 01 runs at "
    f"{REFERENCE_FPS:g} FPS. The calibration before and after a run is held against that of 01's "
    "runs: for 07 updates on one core or emulated frames, whichever makes the longer time; for the "
    f"other rungs updates of {BATCH_SIZE} on all cores.",
    "FPS / 01's: against the nearest run of 01 on this machine that was not an hour away.",
]


@dataclass(frozen=True)
class Reference:
    """Runs of 01 on a machine, with which other runs there are compared."""

    runs: Sequence[Record]

    def speed(self, figure: str) -> float | None:
        """A figure of the calibration where 01 would run at ``REFERENCE_FPS``."""
        return _median(
            [
                run.calibration.mean(figure) * REFERENCE_FPS / run.fps
                for run in self.runs
                if run.calibration and run.fps
            ]
        )

    def scale(self, run: Record) -> float | None:
        """The factor from a run's minutes to scaled minutes; None if it is not known."""
        if not run.calibration or run.machine.get("device") != "cpu" or run.script in MANY_MACHINES:
            return None
        factors = []
        for figure in BOUND_BY.get(run.script, UPDATES):
            there = self.speed(figure)
            if there is None:
                return None
            factors.append(run.calibration.mean(figure) / there)
        return max(factors)

    def ratio(self, run: Record) -> float | None:
        """FPS of a run as a ratio to the nearest run of 01; None if none ran within the hour."""
        near = min(self.runs, key=lambda other: _apart(run, other), default=None)
        if near is None or run.fps is None or not near.fps or _apart(run, near) > HOUR:
            return None
        return run.fps / near.fps


def reference_of(records: Sequence[Record]) -> Reference:
    """The runs of 01 as it is, on the CPU in float32, among those of one machine."""
    return Reference(
        [
            record
            for record in records
            if record.script == BASELINE
            and record.fps
            and record.machine.get("device") == "cpu"
            and all(record.settings.get(name, usual) == usual for name, usual in AS_IT_IS.items())
        ]
    )


def went_the_whole_way(records: Sequence[Record]) -> bool:
    """Whether runs of one setting were started to solve Pong, not only to measure FPS."""
    limit = float(records[0].settings.get("max_frames", 0))
    return limit == 0 or limit >= SOLVE_FRAMES or any(record.solved for record in records)


def frames_to_solve(record: Record) -> float:
    """Frames until the run solved Pong; its limit if it did not."""
    return float(record.frames if record.solved else max(_limit(record), record.frames))


def minutes_to_solve(record: Record) -> float:
    """Minutes until then; of a run that ended before its limit as long as it would have taken."""
    if record.solved or not record.frames:
        return record.minutes
    return record.minutes * frames_to_solve(record) / record.frames


def row(script: str, records: Sequence[Record], reference: Reference) -> list[str]:
    """A line of the table: runs of one setting."""
    seeds = [record.seed for record in records]
    solved = [record.solved for record in records]
    unfinished = sum(not record.finished for record in records)
    frames = [frames_to_solve(record) for record in records]
    minutes = [minutes_to_solve(record) for record in records]
    scales = [reference.scale(record) for record in records]
    scaled = [m * scale for m, scale in zip(minutes, scales, strict=True) if scale is not None]
    if len(scaled) < len(records):
        scaled = []  # a part of the runs is not all of them
    ratios = [ratio for record in records if (ratio := reference.ratio(record)) is not None]
    return [
        script,
        in_rows(seeds) + (" (held out)" if set(seeds) <= set(HELD_OUT_SEEDS) else ""),
        f"{sum(solved)} of {len(solved)}" + (f", {unfinished} unfinished" if unfinished else ""),
        *figures(frames, solved, "{:,.0f}"),
        *figures(minutes, solved, "{:,.1f}"),
        *figures(scaled, solved, "{:,.1f}"),
        f"{median(ratios):.1f}" if ratios else "",
    ]


def in_rows(seeds: Sequence[int]) -> str:
    """Seeds in order, as `ladder --seeds` reads them: ``0-2, 7``."""
    rows: list[list[int]] = []
    for seed in sorted(seeds):
        if rows and seed == rows[-1][-1] + 1:
            rows[-1].append(seed)
        else:
            rows.append([seed])
    return ", ".join(f"{row[0]}-{row[-1]}" if len(row) > 1 else f"{row[0]}" for row in rows)


def figures(values: Sequence[float], solved: Sequence[bool], form: str) -> list[str]:
    """Median, worst, and interquartile mean with its interval; nothing if there are no values."""
    if not values:
        return [""] * 3
    known = np.array(values)
    # A statistic is certain if it stays what it is however late the other runs would have been.
    latest = np.where(solved, known, np.inf)

    def shown(statistic: Callable[[np.ndarray], float]) -> str:
        certain = statistic(known) == statistic(latest)
        return ("" if certain else "> ") + form.format(statistic(known))

    iqm = shown(lambda values: float(interquartile_mean(values)))
    if len(values) > 1:
        low = shown(lambda values: bootstrap_interval(values)[0])
        high = shown(lambda values: bootstrap_interval(values)[1])
        iqm += f" ({low} to {high})"
    return [shown(lambda values: float(np.median(values))), shown(np.max), iqm]


def write(
    path_without_suffix: Path,
    groups: Sequence[tuple[str, Sequence[Record]]],
    records: Sequence[Record],
    notes: Sequence[str],
) -> None:
    """Write and print the table of one machine.

    Args:
        path_without_suffix: of the Markdown and of the CSV file.
        groups: label and runs of each setting that went the whole way.
        records: all runs on the machine, among which 01 is looked for.
        notes: what is known of the machine and the runs.
    """
    reference = reference_of(records)
    rows = [row(label, runs, reference) for label, runs in groups]
    title = "The way to 17: frames and minutes"
    notes = [*notes, *NOTES, *_missing(reference), *_drift(records), _commits(records)]
    write_table(path_without_suffix, title, HEADER, rows, notes)
    print(markdown(title, HEADER, rows, notes))


def _limit(record: Record) -> float:
    return float(record.settings.get("max_frames", 0)) or SOLVE_FRAMES


def _apart(a: Record, b: Record) -> float:
    """Seconds between the end of one run and the beginning of the other; 0 if they overlap."""
    first, second = sorted((a, b), key=lambda record: record.started)
    return max(0.0, second.started - (first.started + 60 * first.minutes))


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _missing(reference: Reference) -> list[str]:
    if any(run.calibration for run in reference.runs):
        return []
    return ["Minutes are not scaled: no calibrated run of 01 is here (`ladder --beside-01`)."]


def _drift(records: Sequence[Record]) -> list[str]:
    changes = [record.calibration.change() for record in records if record.calibration]
    if not changes:
        return []
    return [f"From before to after a run the calibration changed {max(changes):.2f} times at most."]


def _commits(records: Sequence[Record]) -> str:
    known = {r.calibration.commit for r in records if r.calibration} - {""}
    return f"Commit: {', '.join(sorted(known)) or 'not told by the runs'}."
