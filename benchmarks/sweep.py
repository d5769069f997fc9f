"""Change a single setting, and write a table and a figure.

    envs         1 to 6 environments (02_n_envs)
    steps        1 to 16 steps per update, serial and in parallel (02_n_envs, 03_parallel)
    sync         how often the player's copy of the weights is refreshed (03_parallel)
    play-device  where the player acts (03_parallel)
    wrappers     each wrapper choice switched by itself, each resizer (04_new_wrappers_n_env)

Every seed runs through all cases before the next seed does. Complete runs in --run-dir are not
repeated, and several sweeps share the runs that they have in common. What this machine cannot run
is listed with the reason. Flags after -- go to every rung.

    python -m benchmarks sweep envs --frames 10000 --seeds 0-2
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import Record, read_records
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
from benchmarks.runner import (
    Job,
    add_run_arguments,
    chosen_seeds,
    common_flags,
    find_rungs,
    run_suite,
)
from benchmarks.table import Group, by_machine

SERIAL, PARALLEL, WRAPPERS = "02_n_envs", "03_parallel", "04_new_wrappers_n_env"


@dataclass(frozen=True)
class Case:
    """One setting of a sweep."""

    label: str
    script: str
    flags: tuple[str, ...] = ()
    published: str = ""  # FPS
    not_run: str = ""  # why it cannot be


def envs(cuda: bool) -> list[Case]:
    """Environments per agent."""
    published = {1: "159", 3: "228"}
    return [
        Case(f"environments: {n}", SERIAL, ("--envs", str(n)), published.get(n, ""))
        for n in range(1, 7)
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
    published = {1: "430", 4: "455", 10: "457"}
    return [Case("live weights, no copy", PARALLEL)] + [
        Case(f"copy, refreshed every: {n} frames", PARALLEL, ("--sync-frames", str(n)), fps)
        for n, fps in published.items()
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
    published = {"no episodic life": "450", "no reward clipping": "445"}
    deepmind = ("--noop-max", "30", "--max-pool", "--stack", "4", "--resize", "opencv-area")
    cases = [Case(f"as they are ({WrapperOptions.resize})", WRAPPERS, (), "445")]
    cases += [
        Case(label, WRAPPERS, flags, published.get(label, "")) for label, flags in switches.items()
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


SWEEPS: dict[str, Callable[[bool], list[Case]]] = {
    "envs": envs,
    "steps": steps,
    "sync": sync,
    "play-device": play_device,
    "wrappers": wrappers,
}
SECOND_EDITION = "the 2nd edition's figures for 1 and 3 environments (GTX 1080 Ti)"
NOTES_2017 = "the 2017 notes (GTX 1080 Ti, PyTorch 0.2)"
SOURCES = {"envs": SECOND_EDITION}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument("sweep", choices=list(SWEEPS), help="which experiment, as above")
    add_run_arguments(parser, run_dir="runs/sweep")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where the table and the figure are written (default: --run-dir)",
    )


def run(args: argparse.Namespace) -> int:
    """Run what is missing, then write the table and the figure."""
    flags = common_flags(args)
    out = output_folder(args.out or args.run_dir)
    scripts = find_rungs()
    cases = SWEEPS[args.sweep](args.cuda)
    seeds = chosen_seeds(args)
    jobs = {
        case: [
            # Flags after -- come last: there the reader has the last word.
            Job(scripts[case.script], seed, [*flags, *case.flags, *args.rung_flags])
            for seed in seeds
        ]
        for case in cases
        if not case.not_run
    }
    suite = [job for of_one_seed in zip(*jobs.values(), strict=True) for job in of_one_seed]
    failures = run_suite(suite, args.run_dir, args.calibration)

    records = read_records(args.run_dir)
    runs = {
        case: [record for job in entry for record in records if job.done_by(record)]
        for case, entry in jobs.items()
    }
    complete = [record for entry in runs.values() for record in entry]
    write(args, out, cases, runs, by_machine(complete))
    print(f"written to {out}" if complete else "no run is complete: there is nothing to write")
    return 1 if failures else 0


def write(
    args: argparse.Namespace,
    out: Path,
    cases: list[Case],
    runs: dict[Case, list[Record]],
    machines: list,
) -> None:
    """Write and print the table, and write the figure, one of each per machine."""
    from benchmarks import plots

    for number, (machine, members) in enumerate(machines, start=1):
        suffix = "" if number == 1 else f"-{number}"
        here = {
            case: [record for record in entry if record in members] for case, entry in runs.items()
        }
        seeds = seeds_of(record.seed for record in members)
        title = f"Sweep: {args.sweep}"
        header = ["case", "flags", "seeds", "FPS", "change in FPS", "frames", "published FPS"]
        if args.solve:
            header[5:5] = ["minutes to solve"]
        rows = [row(case, here, cases, solve=args.solve) for case in cases]
        notes = [
            f"Machine: {join_machine(machine)}; {seeds}",
            "FPS: agent steps per second of wall clock while training, filling of the replay "
            "buffer not included; median over the seeds (and their range).",
            "Changes are against the first case of the same script.",
            f"Published: {SOURCES.get(args.sweep, NOTES_2017)}; only the changes carry over.",
        ]
        name = f"sweep-{args.sweep}{suffix}"
        write_table(out / name, title, header, rows, notes)
        print(markdown(title, header, rows, notes))
        bars = [
            plots.Bar(case.label, fps_of(here.get(case, [])), plots.rung_colour(case.script))
            for case in cases
        ]
        plots.bar_figure(
            out / f"{name}.png",
            f"{title} (median over seeds, line: min to max)",
            "FPS (agent steps per second of wall clock, while training)",
            bars,
            f"{short_machine(machine)}; {seeds}",
        )


def row(case: Case, runs: dict[Case, list[Record]], cases: list[Case], *, solve: bool) -> list[str]:
    """A line of the table."""
    command = " ".join([case.script, *case.flags])
    records = runs.get(case, [])
    if not records:
        reason = f"not run: {case.not_run}" if case.not_run else "no complete run"
        return [case.label, command, "", reason, "", *[""] * solve, "", case.published]
    base = next(other for other in cases if other.script == case.script)
    group = Group(case.script, "", records)
    difference = "" if case is base else change(group.fps, fps_of(runs.get(base, [])))
    minutes = [group.time()] if solve else []
    cells = [case.label, command, group.seeds, spread(group.fps), difference, *minutes]
    return [*cells, group.frames(), case.published]


def fps_of(records: list[Record]) -> list[float]:
    """Of the runs that began to train."""
    return [record.fps for record in records if record.fps is not None]
