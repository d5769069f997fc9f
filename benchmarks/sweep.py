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
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from benchmarks.records import Record, grouped, read_records
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
)
from benchmarks.table import fps_of, row, write_rows

SERIAL, PARALLEL, WRAPPERS = "02_n_envs", "03_parallel", "04_new_wrappers_n_env"
WRAPPED_PARALLEL = "04_new_wrappers_parallel"
PLAYERS, FRAMES_PER_UPDATE = (1, 2, 4), (8, 64)  # as in 04; where players are the bound


class Case(NamedTuple):
    """One setting of a sweep."""

    label: str
    script: str
    flags: str = ""
    book: str = ""  # FPS
    gpus: int = 0  # that it needs
    not_run: str = ""  # why it cannot be

    @property
    def command(self) -> list[str]:
        """The rung, and the flags that make the case."""
        return [self.script, *self.flags.split()]


SWEEPS = ("envs", "steps", "sync", "play-device", "wrappers", "players")
SOURCES = {"envs": "the 2nd edition's figures for 1 and 3 environments (GTX 1080 Ti)"}
NOTES_2017 = "the author's notes of 2017 (GTX 1080 Ti, PyTorch 0.2)"


def cases(sweep: str) -> list[Case]:
    """The cases of a sweep; the others of a script are compared with its first one."""
    if sweep == "envs":
        book = {1: "159", 3: "228"}
        numbers = range(1, 7)
        return [Case(f"environments: {n}", SERIAL, f"--envs {n}", book.get(n, "")) for n in numbers]
    if sweep == "steps":
        serial = {1: "159", 2: "202", 4: "232", 8: "246", 16: "254"}
        parallel = {1: "221", 2: "315", 3: "370", 4: "393"}
        return [
            *(Case(f"serial: {n}", SERIAL, f"--envs 1 --steps {n}", b) for n, b in serial.items()),
            *(Case(f"parallel: {n}", PARALLEL, f"--steps {n}", b) for n, b in parallel.items()),
        ]
    if sweep == "sync":
        book = {1: "430", 4: "455", 10: "457"}
        return [
            Case("live weights, no copy", PARALLEL),
            *(Case(f"copy every {n}", PARALLEL, f"--sync-frames {n}", b) for n, b in book.items()),
        ]
    if sweep == "play-device":
        return [
            Case("live weights, on the trainer's device", PARALLEL),
            Case("copy on the CPU", PARALLEL, "--play-device cpu"),
            Case("copy on the same GPU", PARALLEL, "--play-device cuda:0", gpus=1),
            Case("copy on a second GPU", PARALLEL, "--play-device cuda:1", "455", gpus=2),
        ]
    if sweep == "players":
        return [
            Case("a player process, no Ray", WRAPPED_PARALLEL),
            *(
                Case(f"players: {n}, {each}", CLUSTER, f"--players {n} --frames-per-update {each}")
                for each in FRAMES_PER_UPDATE
                for n in PLAYERS
            ),
        ]
    return wrappers()


def wrappers() -> list[Case]:
    """The wrapper choices of rung 04 switched back one by one, and all resizers."""
    from lib.games.atari_wrappers import RESIZERS
    from lib.running.options import WrapperOptions

    usual = WrapperOptions.resize
    simd = "it takes Pillow's place: install it in an environment of its own, and repeat with "
    simd += "another --run-dir"
    # The notes switched some of these off against 445 FPS.
    return [
        Case(f"as they are ({usual})", WRAPPERS, "", "445"),
        Case("no-op starts", WRAPPERS, "--noop-max 30"),
        Case("maximum of two frames", WRAPPERS, "--max-pool"),
        Case("no episodic life", WRAPPERS, "--no-episodic-life", "450"),
        Case("no FIRE on reset", WRAPPERS, "--no-fire-reset"),
        Case("no reward clipping", WRAPPERS, "--no-clip-reward", "445"),
        Case("4 stacked frames", WRAPPERS, "--stack 4"),
        *(Case(f"resize: {n}", WRAPPERS, f"--resize {n}") for n in RESIZERS if n != usual),
        Case("resize: Pillow-SIMD", WRAPPERS, not_run=simd),
        Case(
            "all as DeepMind's", WRAPPERS, "--noop-max 30 --max-pool --stack 4 --resize opencv-area"
        ),
    ]


def cannot_run(case: Case, cuda: bool) -> str:
    """Why a case cannot run here, or nothing."""
    import torch

    if case.gpus > torch.cuda.device_count():
        return f"this machine has {torch.cuda.device_count()} usable GPUs"
    if case.gpus and not cuda:
        return "without --cuda there is no GPU at work"
    return case.not_run or missing(case.script) or ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument("sweep", choices=SWEEPS, help="which experiment, as above")
    add_run_arguments(parser, run_dir="runs/sweep")
    text = "where the table and the chart are written (default: --run-dir)"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=text)


def run(args: argparse.Namespace) -> int:
    """Run the cases; write and print the table, draw the chart."""
    flags = common_flags(args)
    out = output_folder(args.out or args.run_dir)
    scripts = find_rungs()
    wanted = [c._replace(not_run=cannot_run(c, args.cuda)) for c in cases(args.sweep)]
    # Flags after -- come last: there the reader has the last word.
    jobs = {
        case: [
            Job(scripts[case.script], seed, [*flags, *case.command[1:], *args.rung_flags])
            for seed in chosen_seeds(args)
        ]
        for case in wanted
        if not case.not_run
    }
    suite = [job for of_one_seed in zip(*jobs.values(), strict=True) for job in of_one_seed]
    failures = run_suite(suite, args.run_dir)
    records = read_records(args.run_dir)
    runs = {
        case: [record for job in jobs.get(case, []) for record in records if job.done_by(record)]
        for case in wanted
    }
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
    rows = []
    for case, entry in runs.items():
        end = {"flags": " ".join(case.command), "book: FPS": case.book}
        if not entry:
            reason = f"not run: {case.not_run}" if case.not_run else "no complete run"
            rows.append({"rung": case.label, "FPS": reason} | end)
        first = WRAPPED_PARALLEL if case.script == CLUSTER else case.script
        base = next(other for other in runs if other.script == first)
        for part in grouped(entry, lambda record: record.place):
            here = [r for r in runs[base] if r.machine == part[0].machine]
            ages = [mean(one.weights_age) for one in part if one.weights_age]
            told = {
                "change in FPS": "" if case is base else change(fps_of(part), fps_of(here)),
                "age of weights": spread(ages),
            }
            rows.append(row(case.label, part, records) | told | end)
    notes = [
        "Changes are against the first case of the same script, of players against the rung below.",
        f"The book: {SOURCES.get(sweep, NOTES_2017)}; only the changes carry over.",
        "Age of weights: updates made between a message's weights and its arrival.",
    ]
    about = write_rows(path, f"Sweep: {sweep}", rows, records, notes)
    charts.bar_chart(
        path.with_suffix(".png"),
        f"Sweep: {sweep} (median over seeds, line: min to max)",
        "FPS (agent steps per second of wall clock, while training)",
        [charts.Bar(case.label, fps_of(entry), case.script) for case, entry in runs.items()],
        about,
    )
