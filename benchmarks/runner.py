"""Run rungs as programs, one after another; complete runs are not repeated."""

import argparse
import contextlib
import importlib.util
import io
import re
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

import emulator
from benchmarks import UserError
from benchmarks.arguments import positive, seeds
from benchmarks.processes import started
from benchmarks.records import COMMIT, UNIMPORTANT, Record, Setting, read_records
from benchmarks.report import ROOT, commit

BASELINE, CLUSTER = "01_baseline", "09_many_machines"
EMULATED = ("08_recompiled_pong", "10_many_learners")  # these play on our emulator
FRAMES = 10_000
REPLAY_INITIAL = 2_000
REPLAY_FLAG = "--replay-initial"
SOLVE_FRAMES = 2_000_000  # a run that has not solved Pong by then counts as not solved
TUNING_SEEDS = range(100)
HELD_OUT_SEEDS = range(2_000, 2_010)  # for what is published, never for choosing settings
EARLIER_HELD_OUT_SEEDS = range(1_000, 1_010)  # of what was published before there was 10
WORST_REWARD = -21  # of a game of Pong
MACHINE_TELLS = ("device", "threads")  # records have these settings of the machine
RUN_FOLDER = re.compile(r"run folder (.+)")
PROGRESS = re.compile(r"avg_reward\s+(\S+)\s.*\bframes\s+([\d,]+)")


def find_rungs() -> dict[str, Path]:
    """The rungs by name, in the order of the ladder."""
    return {path.stem: path for path in sorted(ROOT.glob("[0-9][0-9]_*.py"))}


def missing(rung: str) -> str | None:
    """What a rung needs and this machine has not, in one line; None if all is there."""
    if rung == CLUSTER and importlib.util.find_spec("ray") is None:
        return "Ray is not installed: pip install -r requirements-cluster.txt"
    return emulator.missing() if rung in EMULATED else None


def add_run_arguments(parser: argparse.ArgumentParser, run_dir: str) -> None:
    """Flags of every subcommand that runs rungs."""
    count: dict[str, Any] = {"type": positive, "metavar": "N"}
    length = parser.add_mutually_exclusive_group()
    text = (
        "compare FPS: stop each run after N frames, filling of the replay buffer included. Such a "
        "run has the final epsilon from the start (--epsilon-frames 1), because a random action "
        "costs no forward pass (default: %(default)s)"
    )
    length.add_argument("--frames", default=FRAMES, help=text, **count)
    text = "run until Pong is solved, or until --max-frames"
    length.add_argument("--solve", action="store_true", help=text)
    text = f"with --solve: stop after N frames; it counts as not solved (default: {SOLVE_FRAMES})"
    parser.add_argument("--max-frames", help=text, **count)
    text = f"frames before training (default: {REPLAY_INITIAL}; with --solve the rung's own)"
    parser.add_argument(REPLAY_FLAG, help=text, **count)
    which = parser.add_mutually_exclusive_group()
    first = [[0, 1, 2]]
    text = (
        f"as 0 1 2 or 0-9; settings are chosen with those below {TUNING_SEEDS.stop} (default: 0-2)"
    )
    which.add_argument("--seeds", type=seeds, nargs="+", default=first, metavar="SEED", help=text)
    text = (
        f"run the seeds {HELD_OUT_SEEDS[0]} to {HELD_OUT_SEEDS[-1]}: once, after the settings are "
        "frozen, from a tree that is committed, and published whatever the result"
    )
    which.add_argument("--held-out", action="store_true", help=text)
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    text = "where the runs are; complete runs in it are not repeated (default: %(default)s)"
    where: dict[str, Any] = {"type": Path, "default": Path(run_dir), "metavar": "FOLDER"}
    parser.add_argument("--run-dir", help=text, **where)
    parser.set_defaults(rung_flags=[])  # those after --


def common_flags(args: argparse.Namespace) -> list[str]:
    """The flags of every run of the suite, besides its seed and the flags after --."""
    initial = args.replay_initial
    flags = ["--run-dir", str(args.run_dir.resolve())]
    if args.solve:
        flags += ["--max-frames", str(args.max_frames or SOLVE_FRAMES)]
    elif args.max_frames:
        raise UserError("--max-frames is for --solve; without it, --frames is the length of a run")
    else:
        initial = initial or REPLAY_INITIAL
        if args.frames <= initial:
            raise UserError(
                f"--frames {args.frames} leaves nothing to train after filling the replay "
                f"buffer with --replay-initial {initial} frames"
            )
        flags += ["--max-frames", str(args.frames), "--epsilon-frames", "1"]
    if initial:
        flags += [REPLAY_FLAG, str(initial)]
    if args.cuda:
        flags.append("--cuda")
    return flags


def chosen_seeds(args: argparse.Namespace) -> list[int]:
    """The requested seeds, each once, in order.

    Raises:
        UserError: held-out seeds, and nobody could tell later which code they ran.
    """
    if args.held_out:
        if commit().endswith("-dirty"):
            raise UserError("--held-out: this tree has changes that are not committed")
        return list(HELD_OUT_SEEDS)
    return list(dict.fromkeys(seed for some in args.seeds for seed in some))


class Job:
    """One run that is wanted: a rung with a seed and other flags."""

    def __init__(self, script: Path, seed: int, flags: Sequence[str]) -> None:
        self.script, self.seed, self.flags = script, seed, list(flags)
        self.settings: dict[str, Setting] | None = None  # the script cannot tell them
        self.defaults: dict[str, Setting] = {}
        if options := _options(script):
            if not hasattr(options, "replay_initial") and REPLAY_FLAG in flags:
                position = self.flags.index(REPLAY_FLAG)  # without a buffer nothing is filled
                del self.flags[position : position + 2]
            self.settings = _as_settings(_parsed(script, options, self.flags))
            self.defaults = _as_settings(options())

    def __str__(self) -> str:
        return f"{self.script.stem} seed {self.seed}"

    @property
    def command(self) -> list[str]:
        """The command line of the run."""
        return [sys.executable, str(self.script), *self.flags, "--seed", str(self.seed)]

    def done_by(self, record: Record) -> bool:
        """Whether this run is complete, and the same as this job would make."""
        return (
            record.finished
            and (record.script, record.seed) == (self.script.stem, self.seed)
            # A setting that is younger than the run had the effect of its default.
            and self.defaults | record.settings == self.settings
        )


def run_suite(jobs: Sequence[Job], run_dir: Path) -> int:
    """Run what is not complete yet, in order; returns how many runs failed."""
    records = read_records(run_dir)
    wanted = [job for job in jobs if not any(job.done_by(record) for record in records)]
    if len(wanted) < len(jobs):
        print(f"{len(jobs) - len(wanted)} of {len(jobs)} runs are complete in {run_dir} already")
    failures = 0
    # Smoothing 0: the time left follows from the whole suite, not from the last run alone.
    layout = "{desc} {n:.1f}/{total} runs |{bar}| {elapsed} passed, {remaining} left {postfix}"
    with tqdm(total=len(wanted), smoothing=0, bar_format=layout, disable=None) as bar:
        for number, job in enumerate(wanted):
            bar.set_description_str(str(job))
            last_line, error, code = "", "", commit()
            with (
                tempfile.TemporaryFile("w+", errors="replace") as errors,
                started(
                    job.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
                ) as program,
            ):
                assert program.stdout is not None
                for line in program.stdout:
                    last_line = line.strip()
                    bar.n = number + progress(last_line, job.settings or {})
                    bar.set_postfix_str(last_line[:60])
                    if found := RUN_FOLDER.fullmatch(last_line):
                        Path(found[1], COMMIT).write_text(f"{code}\n", encoding="utf-8")
                if program.wait():
                    errors.seek(0)
                    said = errors.read().strip() or "it said nothing"
                    failed, why = program.returncode, said.splitlines()[-1].strip()
                    how = f"exit code {failed}" if failed > 0 else signal.Signals(-failed).name
                    error = f"failed ({how}): {why}"
            bar.n = number + 1
            bar.refresh()
            failures += bool(error)
            tqdm.write(f"[{number + 1}/{len(wanted)}] {job}: {error or last_line}")
            sys.stdout.flush()
    return failures


def progress(line: str, settings: dict[str, Setting]) -> float:
    """How far a run is, from 0 to 1, from its line of an episode."""
    found = PROGRESS.search(line)
    if not found:
        return 0.0
    limit, bar = float(settings.get("max_frames", 0)), float(settings.get("stop_reward", 17))
    done = (float(found[1]) - WORST_REWARD) / (bar - WORST_REWARD) if bar > WORST_REWARD else 0.0
    if limit:
        done = max(done, int(found[2].replace(",", "")) / limit)
    return min(max(done, 0.0), 1.0)


@cache
def _options(script: Path) -> Any:
    """The class of a rung's settings; None if it cannot be imported."""
    from lib.running.options import CommonOptions  # late: it imports torch

    try:
        names = runpy.run_path(str(script), run_name=script.stem)
    except (Exception, SystemExit):  # a rung that does not even start fails when it is its turn
        return None
    kinds = [v for v in names.values() if isinstance(v, type) and issubclass(v, CommonOptions)]
    return max(kinds, key=lambda kind: len(kind.__mro__), default=None)


def _parsed(script: Path, options: Any, flags: Sequence[str]) -> Any:
    """The settings of a rung with these flags, so that a bad one shows before anything runs."""
    from lib.running.flags import parse

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse(options, "", list(flags))
    except SystemExit:
        # "<program>: error: <what> (--help lists the flags)"
        message = said.getvalue().strip().split("error: ", 1)[-1]
        raise UserError(f"{script.name}: {message.split(' (--help')[0]}") from None


def _as_settings(values: Any) -> dict[str, Setting]:
    """Settings as records have them, without what says only where and how a run is kept."""
    return {
        name: value if isinstance(value, str) else float(value)
        for name, value in asdict(values).items()
        if name not in ("seed", *MACHINE_TELLS, *UNIMPORTANT) and value is not None
    }
