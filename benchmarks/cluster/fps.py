"""FPS against players, beside 04_new_wrappers_parallel in the same run."""

import argparse
import math
from pathlib import Path
from statistics import mean, median

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.cluster.shared import RUNG, machine_note, target
from benchmarks.records import Record, read_records
from benchmarks.report import change, join_machine, markdown, spread, write_table
from benchmarks.runner import Job, find_rungs

PARALLEL = "04_new_wrappers_parallel"
RATIOS = (8, 64)  # frames per update: as 04 where updates are the bound; where players matter
INITIAL = 2_000
ENOUGH_FPS = 0.95  # of those of 04

Case = tuple[str, int, int]  # script, players, frames per update; 0 where it has no such setting


def fps_jobs(args: argparse.Namespace) -> dict[Case, list[Job]]:
    """The runs of the first part, by script, players and frames per update; one for each seed."""
    common = ["--run-dir", str(args.run_dir.resolve()), "--replay-initial", str(INITIAL)]
    common += ["--epsilon-frames", "1"]  # a random action costs no forward pass
    scripts = find_rungs()
    cases = {
        (PARALLEL, 0, 0): ["--max-frames", str(args.frames)],
        **{
            (RUNG, players, ratio): [
                *("--max-frames", str(args.frames * (4 if ratio == RATIOS[-1] else 1))),
                *("--players", str(players), "--frames-per-update", str(ratio)),
            ]
            for ratio in RATIOS
            for players in args.players
        },
    }
    return {
        case: [Job(scripts[case[0]], seed, [*common, *flags]) for seed in range(args.seeds)]
        for case, flags in cases.items()
    }


def report_fps(run_dir: Path, out: Path, jobs: dict[Case, list[Job]]) -> list[list[str]]:
    """FPS against players, and the age of their weights; returns the line of the target."""
    records = read_records(run_dir)
    runs = {
        case: [record for job in entry for record in records if job.done_by(record)]
        for case, entry in jobs.items()
    }
    base = fps_of(runs[PARALLEL, 0, 0])
    rows = [
        [
            script,
            str(players or ""),
            str(ratio or "1 to 8"),
            spread(fps_of(runs[script, players, ratio])),
            change(fps_of(runs[script, players, ratio]), base) if script == RUNG else "",
            spread([weights_age(record) for record in runs[script, players, ratio]])
            if script == RUNG
            else "",
        ]
        for script, players, ratio in jobs
    ]
    header = ["rung", "players", "frames per update of 128", "FPS", "against 04", "age of weights"]
    machine = f"Machine: {join_machine(records[0].machine)}" if records else machine_note()
    notes = [
        machine,
        "FPS: frames per second of wall clock while training; median over seeds (and their range).",
        "Age of weights: updates made from a message's weights until it is stored, mean of a run.",
    ]
    write_table(out / "fps", "FPS against players", header, rows, notes)
    print(markdown("FPS against players", header, rows, notes))
    draw_fps(out, {case: fps_of(entry) for case, entry in runs.items()}, machine)

    # A run of 04 and the run with one player that came next, with the same seed.
    before = {record.seed: record.fps for record in runs[PARALLEL, 0, 0] if record.fps}
    ratios = [
        record.fps / before[record.seed]
        for record in runs.get((RUNG, 1, RATIOS[0]), [])
        if record.seed in before and record.fps
    ]
    what = f"FPS with one player, as a multiple of {PARALLEL}'s: median of {len(ratios)} pairs"
    if not ratios:
        return [target(what, f">= {ENOUGH_FPS}", "not measured", False)]
    told = f"{median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    return [target(what, f">= {ENOUGH_FPS}", told, median(ratios) >= ENOUGH_FPS)]


def draw_fps(out: Path, fps: dict[tuple[str, int, int], list[float]], machine: str) -> None:
    """The figure of ``report_fps``."""
    from benchmarks import plots

    bars = [
        plots.Bar(
            f"{players} players, {ratio} frames per update" if ratio else script,
            values,
            plots.rung_colour(script),
        )
        for (script, players, ratio), values in fps.items()
    ]
    unit = "FPS (frames per second of wall clock, while training; updates of 128)"
    plots.bar_figure(out / "fps.png", "FPS against players", unit, bars, machine)


def fps_of(records: list[Record]) -> list[float]:
    """Of the runs that began to train."""
    return [record.fps for record in records if record.fps is not None]


def weights_age(record: Record) -> float:
    """Mean over a run, in updates; NaN in a run of less than 100 updates, which has no curve."""
    events = EventAccumulator(str(record.folder), size_guidance={"scalars": 0}).Reload()
    tag = "players/weights_age"
    if tag not in events.Tags()["scalars"]:
        return math.nan
    return mean(point.value for point in events.Scalars(tag))
