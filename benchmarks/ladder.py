"""Run the rungs of the ladder in turn, for their FPS or until they solve Pong.

Every seed runs through all rungs and values before the next seed does. So a machine that gets
slower or faster favours none of them. What is complete in --run-dir is not repeated: after an
interruption, start the same command again. Flags after -- go to every rung.

    python -m benchmarks ladder --frames 10000 --seeds 0-2    compare FPS
    python -m benchmarks ladder --solve --cuda                run to 17
    python -m benchmarks ladder --rungs 01 03 -- --amp        some rungs, another setting
    python -m benchmarks ladder --rungs 02 --vary envs 1 2 3 4 5 6
    python -m benchmarks ladder --rungs 04_new_wrappers_n --vary max-pool off on

Published runs have held-out seeds. A short run of 01 beside every seed tells how fast the machine
was in that hour:

    python -m benchmarks ladder --rungs 07 --solve --held-out --beside-01

To choose a setting, many short runs say more than a few long ones:

    python -m benchmarks ladder --rungs 07 --solve --vary gamma 0.97 0.99 -- --max-frames 400000
    python -m benchmarks table runs/ladder --every 100000     reward by 100,000 frames

A rung that refuses its flags, or lacks what it needs, is left out and says why.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from benchmarks import UserError
from benchmarks.arguments import positive, seeds
from benchmarks.processes import started
from benchmarks.records import COMMIT
from benchmarks.report import ROOT, commit

BASELINE = "01_baseline"
FRAMES, REPLAY_INITIAL = 10_000, 2_000  # of a run for its FPS
BESIDE_FRAMES = 4_000  # a minute on a machine on which 01 runs at 70 FPS
SOLVE_FRAMES = 2_000_000  # a run that has not solved Pong by then counts as not solved
HELD_OUT_SEEDS = range(3_000, 3_010)  # for what is published, never for choosing settings
USED_UP_SEEDS = (*range(1_000, 1_010), *range(2_000, 2_010))  # held out, and published
DONE = "command.txt"  # beside the events of a run that is complete: the job that it did
SWITCHES = {"on": "", "off": "no-"}  # --vary max-pool off on


class Job(NamedTuple):
    """One run that is wanted."""

    script: Path
    length: list[str]  # flags
    others: list[str]  # the flags that tell it from other jobs

    def __str__(self) -> str:
        return shlex.join([self.script.stem, *self.others])

    @property
    def text(self) -> str:
        """All that makes the run."""
        return shlex.join([self.script.name, *self.length, *self.others])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    text = "rungs by the beginning of their names, as 01 or 04_new_wrappers_p (default: all)"
    parser.add_argument("--rungs", nargs="+", metavar="NN", default=[""], help=text)
    text = "a flag of the rungs, and the values it takes in turn; on and off for a switch"
    parser.add_argument("--vary", nargs="+", metavar=("FLAG", "VALUE"), default=[], help=text)
    length = parser.add_mutually_exclusive_group()
    text = (
        "compare FPS: stop each run after N frames, of which a rung with a replay buffer plays "
        f"{REPLAY_INITIAL} to fill it. Such a run has the final epsilon from the start "
        "(--epsilon-frames 1), because a random action costs no forward pass (default: %(default)s)"
    )
    length.add_argument("--frames", type=positive, default=FRAMES, metavar="N", help=text)
    text = f"run until Pong is solved, or for {SOLVE_FRAMES} frames (or -- --max-frames N)"
    length.add_argument("--solve", action="store_true", help=text)
    which = parser.add_mutually_exclusive_group()
    text = "as 0 1 2 or 0-9; settings are chosen with those below 100 (default: 0-2)"
    first = [[0, 1, 2]]
    which.add_argument("--seeds", type=seeds, nargs="+", default=first, metavar="SEED", help=text)
    text = (
        f"run the seeds {HELD_OUT_SEEDS[0]} to {HELD_OUT_SEEDS[-1]}: once, after the settings are "
        "frozen, from a tree that is committed, and published whatever the result"
    )
    which.add_argument("--held-out", action="store_true", help=text)
    text = (
        f"with every seed, first run 01 for its FPS ({BESIDE_FRAMES} frames, without flags after "
        "--); table compares other FPS of that hour with it"
    )
    parser.add_argument("--beside-01", action="store_true", help=text)
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    folder, text = Path("runs/ladder"), "where the runs are (default: %(default)s)"
    parser.add_argument("--run-dir", type=Path, default=folder, metavar="FOLDER", help=text)
    parser.set_defaults(rung_flags=[])  # those after --


def run(args: argparse.Namespace) -> int:
    """Run what is not complete yet; 1 if a run failed, 2 if all rungs were left out."""
    jobs, run_dir = list(planned(args)), args.run_dir.resolve()
    done = {file.read_text(encoding="utf-8") for file in run_dir.glob(f"*/{DONE}")}
    wanted = [job for job in jobs if job.text not in done]
    if len(wanted) < len(jobs):
        print(f"{len(jobs) - len(wanted)} of {len(jobs)} runs are complete in {run_dir} already")
    codes, refused = [], set()
    # Smoothing 0: the time left follows from the whole suite, not from the last run alone.
    with tqdm(total=len(wanted), smoothing=0, unit="run", disable=None) as bar:
        for number, job in enumerate(wanted, start=1):
            if job.script not in refused:
                bar.set_description_str(str(job))
                code, told = run_job(job, run_dir, bar)
                codes.append(code)
                refused |= {job.script} if code == 2 else set()
                tqdm.write(f"[{number}/{len(wanted)}] {job}: {told}")
                sys.stdout.flush()
            bar.update()
    print(f"the table: python -m benchmarks table {args.run_dir}")
    if set(codes) == {2}:
        return 2
    return 1 if set(codes) - {0, 2} else 0


def planned(args: argparse.Namespace) -> Iterator[Job]:
    """The runs that are wanted, in their order."""
    if not args.solve and args.frames <= REPLAY_INITIAL:
        raise UserError(f"--frames {args.frames} leaves nothing to train after {REPLAY_INITIAL}")
    if args.held_out and commit().endswith("-dirty"):
        raise UserError("--held-out: this tree has changes that are not committed")
    if len(args.vary) == 1:
        raise UserError(f"--vary {args.vary[0]}: name the values, too")
    scripts = choose(args.rungs)
    cuda = ["--cuda"] * args.cuda
    wanted = HELD_OUT_SEEDS if args.held_out else [seed for some in args.seeds for seed in some]
    for seed in dict.fromkeys(wanted):
        ends = ["--seed", str(seed)]
        if args.beside_01:
            script = find_rungs()[BASELINE]
            yield Job(script, for_fps(script, BESIDE_FRAMES), [*cuda, *ends])
        for script in scripts:
            length = for_fps(script, args.frames)
            if args.solve:
                length = ["--max-frames", str(SOLVE_FRAMES)]
            for varied in [varied_flag(args.vary[0], v) for v in args.vary[1:]] or [[]]:
                yield Job(script, length, [*cuda, *varied, *args.rung_flags, *ends])


def for_fps(script: Path, frames: int) -> list[str]:
    """The flags of a run for its FPS; a rung without a replay buffer has none to fill."""
    fills = not script.stem.startswith(("07", "08"))
    initial = ["--replay-initial", str(REPLAY_INITIAL)] * fills
    return ["--max-frames", str(frames), "--epsilon-frames", "1", *initial]


def varied_flag(name: str, value: str) -> list[str]:
    """A flag with one of its values."""
    return [f"--{SWITCHES[value]}{name}"] if value in SWITCHES else [f"--{name}", value]


def run_job(job: Job, run_dir: Path, bar: tqdm) -> tuple[int, str]:
    """Run a rung; its exit code, and the line to tell."""
    before, commit_now, told = set(run_dir.glob("*/")), commit(), ""
    flags = [*job.length, *job.others, "--run-dir", str(run_dir)]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        quiet = {"stdin": subprocess.DEVNULL, "stderr": errors}
        try:
            with started(
                [sys.executable, job.script, *flags], stdout=subprocess.PIPE, **quiet
            ) as program:
                assert program.stdout is not None
                for line in program.stdout:
                    told = line.strip()
                    bar.set_postfix_str(told[:60])
                code = program.wait()
        finally:  # also of a run that is interrupted
            folders = set(run_dir.glob("*/")) - before
            for folder in folders:
                (folder / COMMIT).write_text(f"{commit_now}\n", encoding="utf-8")
        errors.seek(0)
        said = (errors.read().strip().splitlines() or ["it said nothing"])[-1].strip()
    if code:
        return code, f"{'left out' if code == 2 else f'failed (exit code {code})'}: {said}"
    for folder in folders:
        (folder / DONE).write_text(job.text, encoding="utf-8")
    return 0, told


def find_rungs() -> dict[str, Path]:
    """The rungs by name, in the order of the ladder."""
    return {path.stem: path for path in sorted(ROOT.glob("[0-9][0-9]_*.py"))}


def choose(beginnings: list[str]) -> list[Path]:
    """The rungs whose names begin with these texts, in the order of the ladder."""
    rungs = find_rungs()
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in rungs):
            raise UserError(f"--rungs {beginning}: there are only {', '.join(rungs)}")
    return [path for name, path in rungs.items() if name.startswith(tuple(beginnings))]
