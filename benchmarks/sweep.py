"""Change a single setting, and write a table and a chart.

    envs         1 to 6 environments (02_n_envs)
    steps        1 to 16 steps per update, serial and in parallel (02_n_envs, 03_parallel)
    sync         how often the player's copy of the weights is refreshed (03_parallel)
    play-device  where the player acts (03_parallel)
    wrappers     each wrapper choice switched by itself, each resizer (04_new_wrappers_n_env)
    players      1 to 4 players on Ray, with few and many frames per update, beside
                 04_new_wrappers_parallel (09_many_machines)

Every seed runs through all cases before the next seed does. Complete runs in --run-dir are not
repeated, and several sweeps share the runs that they have in common. What this machine cannot run
is listed with the reason. Flags after -- go to every rung.

    python -m benchmarks sweep envs --frames 10000 --seeds 0-2
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.records import Record, read_records
from benchmarks.report import change, output_folder, spread
from benchmarks.runner import (
    CLUSTER,
    Job,
    add_run_arguments,
    chosen_seeds,
    common_flags,
    find_rungs,
    missing,
    run_suite,
    runs_of,
)
from benchmarks.table import divided, fps_of, machines_of, row, write_rows

SERIAL, PARALLEL, WRAPPERS = "02_n_envs", "03_parallel", "04_new_wrappers_n_env"
WRAPPED_PARALLEL = "04_new_wrappers_parallel"
PLAYERS, FRAMES_PER_UPDATE = (1, 2, 4), (8, 64)  # as in 04; where players are the bound


@dataclass(frozen=True)
class Case:
    """One setting of a sweep."""

    label: str
    script: str
    flags: tuple[str, ...] = ()
    book: str = ""  # FPS
    not_run: str = ""  # why it cannot be


def envs(cuda: bool) -> list[Case]:
    """Environments per agent."""
    book = {1: "159", 3: "228"}
    return [
        Case(f"environments: {n}", SERIAL, ("--envs", str(n)), book.get(n, "")) for n in range(1, 7)
    ]


def steps(cuda: bool) -> list[Case]:
    """Steps per update, with a batch that grows in proportion."""
    serial = {1: "159", 2: "202", 4: "232", 8: "246", 16: "254"}
    parallel = {1: "221", 2: "315", 3: "370", 4: "393"}
    return [
        Case(f"serial, steps: {n}", SERIAL, ("--envs", "1", "--steps", str(n)), fps)
        for n, fps in serial.items()
    ] + [
        Case(f"parallel, steps: {n}", PARALLEL, ("--steps", str(n)), fps)
        for n, fps in parallel.items()
    ]


def sync(cuda: bool) -> list[Case]:
    """Frames between two refreshes of the player's copy of the weights."""
    book = {1: "430", 4: "455", 10: "457"}
    return [Case("live weights, no copy", PARALLEL)] + [
        Case(f"copy, refreshed every: {n} frames", PARALLEL, ("--sync-frames", str(n)), fps)
        for n, fps in book.items()
    ]


def play_device(cuda: bool) -> list[Case]:
    """Where the player acts."""
    import torch

    no_gpu = "" if cuda else "without --cuda there is no GPU at work"
    if not torch.cuda.is_available():
        no_gpu = "this machine has no usable GPU"
    second = no_gpu
    if not second and torch.cuda.device_count() < 2:
        second = "this machine has one GPU"
    return [
        Case("live weights, on the trainer's device", PARALLEL),
        Case("copy on the CPU", PARALLEL, ("--play-device", "cpu")),
        Case("copy on the same GPU", PARALLEL, ("--play-device", "cuda:0"), not_run=no_gpu),
        Case("copy on a second GPU", PARALLEL, ("--play-device", "cuda:1"), "455", second),
    ]


def wrappers(cuda: bool) -> list[Case]:
    """The wrapper choices of rung 04 switched back one by one, and all resizers."""
    from lib.arguments import WrapperOptions
    from lib.atari_wrappers import RESIZERS

    switches = {
        "no-op starts": ("--noop-max", "30"),
        "maximum of two frames": ("--max-pool",),
        "no episodic life": ("--no-episodic-life",),
        "no FIRE on reset": ("--no-fire-reset",),
        "no reward clipping": ("--no-clip-reward",),
        "4 stacked frames": ("--stack", "4"),
    }
    # The notes switched these off against 445 FPS.
    book = {"no episodic life": "450", "no reward clipping": "445"}
    deepmind = ("--noop-max", "30", "--max-pool", "--stack", "4", "--resize", "opencv-area")
    cases = [Case(f"as they are ({WrapperOptions.resize})", WRAPPERS, (), "445")]
    cases += [
        Case(label, WRAPPERS, flags, book.get(label, "")) for label, flags in switches.items()
    ]
    cases += [
        Case(f"resize: {name}", WRAPPERS, ("--resize", name))
        for name in RESIZERS
        if name != WrapperOptions.resize
    ]
    return [
        *cases,
        Case(
            "resize: Pillow-SIMD",
            WRAPPERS,
            not_run="it takes Pillow's place: install it in an environment of its own, and "
            "repeat with another --run-dir",
        ),
        Case("DeepMind's wrappers", WRAPPERS, deepmind),
    ]


def players(cuda: bool) -> list[Case]:
    """Players on Ray; the first case is the rung below, with one player in a process."""
    ratios = [(each, n) for each in FRAMES_PER_UPDATE for n in PLAYERS]
    return [Case("a player process, no Ray", WRAPPED_PARALLEL)] + [
        Case(
            f"players: {n}, frames per update: {each}",
            CLUSTER,
            ("--players", str(n), "--frames-per-update", str(each)),
        )
        for each, n in ratios
    ]


SWEEPS: dict[str, Callable[[bool], list[Case]]] = {
    "envs": envs,
    "steps": steps,
    "sync": sync,
    "play-device": play_device,
    "wrappers": wrappers,
    "players": players,
}
SECOND_EDITION = "the 2nd edition's figures for 1 and 3 environments (GTX 1080 Ti)"
NOTES_2017 = "the author's notes of 2017 (GTX 1080 Ti, PyTorch 0.2)"
SOURCES = {"envs": SECOND_EDITION}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument("sweep", choices=list(SWEEPS), help="which experiment, as above")
    add_run_arguments(parser, run_dir="runs/sweep")
    text = "where the table and the chart are written (default: --run-dir)"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=text)


def run(args: argparse.Namespace) -> int:
    """Run the cases; write and print the table, draw the chart."""
    flags = common_flags(args)
    out = output_folder(args.out or args.run_dir)
    scripts = find_rungs()
    cases = [
        case if case.not_run else replace(case, not_run=missing(case.script) or "")
        for case in SWEEPS[args.sweep](args.cuda)
    ]
    # Flags after -- come last: there the reader has the last word.
    jobs = {
        case: [
            Job(scripts[case.script], seed, [*flags, *case.flags, *args.rung_flags])
            for seed in chosen_seeds(args)
        ]
        for case in cases
        if not case.not_run
    }
    suite = [job for of_one_seed in zip(*jobs.values(), strict=True) for job in of_one_seed]
    failures = run_suite(suite, args.run_dir)
    records = read_records(args.run_dir)
    runs = {case: runs_of(jobs.get(case, []), records) for case in cases}
    if not any(runs.values()):
        print("no run is complete: there is nothing to write")
        return 1
    write(args.sweep, out / f"sweep-{args.sweep}", runs)
    print(f"written to {out}")
    return 1 if failures else 0


def write(sweep: str, path: Path, runs: dict[Case, list[Record]]) -> None:
    """Write and print the table, and draw the chart."""
    from benchmarks import charts

    records = [record for entry in runs.values() for record in entry]
    groups = {case: divided(case.label, entry) for case, entry in runs.items()}
    machines = machines_of([part for parts in groups.values() for part in parts])
    rows = []
    for case, parts in groups.items():
        end = {"flags": " ".join([case.script, *case.flags]), "book: FPS": case.book}
        if not parts:
            reason = f"not run: {case.not_run}" if case.not_run else "no complete run"
            rows.append({"rung": case.label, "FPS": reason} | end)
        first = WRAPPED_PARALLEL if case.script == CLUSTER else case.script
        base = next(other for other in runs if other.script == first)
        for part in parts:
            here = [r for r in runs[base] if r.machine == part.records[0].machine]
            told = {
                "change in FPS": "" if case is base else change(part.fps, fps_of(here)),
                "age of weights": spread([age for one in part.records for age in weights_age(one)]),
            }
            rows.append(row(part.label, part.records, records, machines) | told | end)
    notes = [
        "Changes are against the first case of the same script, of players against the rung below.",
        f"The book: {SOURCES.get(sweep, NOTES_2017)}; only the changes carry over.",
        "Age of weights: updates made between a message's weights and its arrival.",
    ]
    about = write_rows(path, f"Sweep: {sweep}", rows, records, machines, notes)
    charts.bar_chart(
        path.with_suffix(".png"),
        f"Sweep: {sweep} (median over seeds, line: min to max)",
        "FPS (agent steps per second of wall clock, while training)",
        [charts.Bar(case.label, fps_of(entry), case.script) for case, entry in runs.items()],
        about,
    )


def weights_age(record: Record) -> list[float]:
    """The mean over a run of 09, in updates; none in other runs, or if it was too short."""
    events = EventAccumulator(str(record.folder), size_guidance={"scalars": 0}).Reload()
    tag = "players/weights_age"
    if tag not in events.Tags()["scalars"]:
        return []
    return [mean(point.value for point in events.Scalars(tag))]
