"""Run the rungs of the ladder in turn, for their FPS or until they solve Pong.

Each seed runs all rungs and values before the next one, so that a drifting machine favours none.
After an interruption, or a failure after a checkpoint, the same command continues: complete runs
are not repeated. A rung that refuses its flags or lacks a library is left out, with the reason.
10 plays 20 times as many frames: its first rollout has 32,768, and 17 takes 5 million or more.
Flags after -- go to every rung.

    python -m benchmarks ladder --frames 10000 --seeds 0-2    compare FPS
    python -m benchmarks ladder --solve -- --cuda             run to 17
    python -m benchmarks ladder --rungs 01 03 -- --amp        some rungs, another setting
    python -m benchmarks ladder --rungs 04_new_wrappers_n --vary max-pool off on
"""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import UserError
from benchmarks.measuring import positive
from benchmarks.records import COMMIT, readme_fps
from benchmarks.report import ROOT, commit
from lib.training.checkpoints import FOLDER as CHECKPOINTS
from lib.training.flags import number

FRAMES, REPLAY_INITIAL = 10_000, 2_000  # of a run for its FPS
SOLVE_FRAMES = 5_000_000  # a run that has not solved Pong by then counts as not solved
MANY = {"10_thousands_of_games.py": 20}  # times as many frames
TO_17 = 1_000_000  # frames that the other rungs need, roughly: 0.5 to 2.7 million
DONE = "command.txt"  # beside the events of a run that is complete: the command
BEGUN = "interrupted.txt"  # the same for a run that can be resumed
SWITCHES = {"on": "", "off": "no-"}  # --vary max-pool off on
Command = tuple[str, ...]  # a rung's file and its flags, the seed last


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's flags."""
    text = "rungs by the beginning of their names, such as 01 or 04_new_wrappers_p (default: all)"
    parser.add_argument("--rungs", nargs="+", metavar="NN", default=[""], help=text)
    text = "a flag of the rungs and its values, in turn; on and off for a switch"
    parser.add_argument("--vary", nargs="+", metavar=("FLAG", "VALUE"), default=[], help=text)
    length = parser.add_mutually_exclusive_group()
    text = (
        f"compare FPS: stop each run after N frames (10: 20 N), {REPLAY_INITIAL} of which fill the "
        "replay buffer if the rung has one. Epsilon is final from the start (--epsilon-frames 1), "
        "because a random action costs no forward pass (default: %(default)s)"
    )
    length.add_argument("--frames", type=positive, default=FRAMES, metavar="N", help=text)
    text = f"run until Pong is solved, or for {SOLVE_FRAMES} frames (10: 20 times as many; or "
    text += "-- --max-frames N)"
    length.add_argument("--solve", action="store_true", help=text)
    text = "such as 0 1 2 or 0-9; below 100 for choosing settings (default: 0-2; with --vary: 0)"
    parser.add_argument("--seeds", type=seeds, nargs="+", metavar="SEED", help=text)
    folder, text = Path("runs/ladder"), "folder of the runs (default: %(default)s)"
    parser.add_argument("--run-dir", type=Path, default=folder, metavar="FOLDER", help=text)


def seeds(text: str) -> range:
    """Parse a seed, or a range such as 0-9, for argparse."""
    first, _, last = text.partition("-")
    if not (found := range(int(first), int(last or first) + 1)):
        raise argparse.ArgumentTypeError(f"{text!r} has no seed: {last} is below {first}")
    return found


def run(args: argparse.Namespace) -> int:
    """Run what is not complete yet; return 1 if a run failed, 2 if all rungs were left out."""
    commands, run_dir = planned(args), args.run_dir.resolve()
    done = {file.read_text(encoding="utf-8"): file for file in run_dir.glob(f"*/{DONE}")}
    wanted = [command for command in commands if shlex.join(command) not in done]
    print(f"{len(commands) - len(wanted)} of {len(commands)} runs are complete in {run_dir}")
    complete = [done[line] for line in map(shlex.join, commands) if line in done]
    commits = {file.with_name(COMMIT).read_text("utf-8").strip() for file in complete}
    if other := sorted(commits - {commit()}):
        print(f"some of them ran at {', '.join(other)}: a new --run-dir measures this commit")
    if wanted:
        print(f"{len(wanted)} to do, {duration(wanted)}")
    codes: dict[Command, int] = {}
    for position, command in enumerate(wanted, start=1):
        if not any(code == 2 and other[:-1] == command[:-1] for other, code in codes.items()):
            print(f"[{position}/{len(wanted)}] {shlex.join(command)}", flush=True)
            codes[command] = run_rung(command, run_dir)
    for command, code in codes.items():
        if code:
            outcome = {2: "left out", 130: "interrupted"}.get(code, f"failed (exit code {code})")
            print(f"{outcome}: {shlex.join(command)}")
    print(f"the table: python -m benchmarks table {args.run_dir}")
    ended = set(codes.values())
    return 2 if ended == {2} else int(bool(ended - {0, 2}))


def planned(args: argparse.Namespace) -> list[Command]:
    """Return the wanted runs, in order."""
    name, *values = args.vary or [""]
    chosen = args.seeds or [range(1 if name else 3)]
    if name and not values:
        raise UserError(f"--vary {name}: name the values, too")
    varied: list[tuple[str, ...]] = [
        (f"--{SWITCHES[value]}{name}",) if value in SWITCHES else (f"--{name}", value)
        for value in values
    ]
    if not args.solve and args.frames <= REPLAY_INITIAL:
        raise UserError(f"--frames {args.frames}: filling a replay buffer takes {REPLAY_INITIAL}")
    filling = ("--replay-initial", str(REPLAY_INITIAL))
    lengths = dict[str, tuple[str, ...]]()
    for script in choose(args.rungs):
        frames = (SOLVE_FRAMES if args.solve else args.frames) * MANY.get(script.name, 1)
        lengths[script.name] = ("--max-frames", str(frames))
        if not args.solve:
            lengths[script.name] += ("--epsilon-frames", "1") + filling * has_replay_buffer(script)
    return [
        (script, *length, *flags, *args.rung_flags, "--seed", str(seed))
        for seed in dict.fromkeys(seed for some in chosen for seed in some)
        for script, length in lengths.items()
        for flags in varied or [()]
    ]


def duration(commands: Sequence[Command]) -> str:
    """Estimate how long these runs take, by the FPS in README."""
    fps, hours, unknown = readme_fps(), 0.0, 0
    for script, *flags in commands:
        limits = re.findall(r"--max-frames[= ](\S+)", shlex.join(flags))
        try:
            frames = min(number(int)(limits[-1]) or TO_17, TO_17)  # the last one; 0: no limit
        except argparse.ArgumentTypeError as error:
            raise UserError(f"--max-frames: {error}") from None
        hours += frames / fps.get(Path(script).stem, float("inf")) / 3600
        unknown += Path(script).stem not in fps
    text = f"about {hours:.0f} hours" if hours >= 2 else f"about {60 * hours + 1:.0f} minutes"
    text += " on two CPU cores, like README's"
    return text + f", plus {unknown} of unknown length" * bool(unknown)


def has_replay_buffer(script: Path) -> bool:
    """Return whether a rung fills a replay buffer before it trains."""
    return "ReplayBuffer(" in script.read_text(encoding="utf-8")


def run_rung(command: Command, run_dir: Path) -> int:
    """Run or resume a rung, record commit and command in its folder, and return its exit code."""
    script, *flags = command
    name = f"{Path(script).stem}-*seed{flags[-1]}-*/"  # another ladder may run in this folder
    before, commit_now, command_line = set(run_dir.glob(name)), commit(), shlex.join(command)
    files = [file for file in run_dir.glob(f"*/{BEGUN}") if file.read_text("utf-8") == command_line]
    saved = saved_at(files[0].parent) if files else 0.0
    where = ["--resume", str(files[0].parent)] if files else ["--run-dir", str(run_dir)]
    program = [sys.executable, str(ROOT / script), *flags, *where]
    # In its own process group, so that the terminal's Ctrl-C reaches us alone.
    with subprocess.Popen(program, cwd=ROOT, stdin=subprocess.DEVNULL, process_group=0) as rung:
        try:
            rung.wait()
        finally:
            if sys.platform != "win32":  # where Ctrl-C reached it, too, and this would kill it
                rung.terminate()  # if we have to end; the rung then saves its record
            code = rung.wait()
            new = set(run_dir.glob(name)) - before  # later ones are another ladder's
            new = {files[0].parent} if files else new
            for folder in sorted(new, key=lambda path: path.name.rpartition("-seed")[2])[:1]:
                (folder / BEGUN).unlink(missing_ok=True)
                if code == 2:  # nothing was run
                    break
                kept = (folder / COMMIT).read_text("utf-8").strip().split(", ") if files else []
                commits = ", ".join(dict.fromkeys([*kept, commit_now]))
                (folder / COMMIT).write_text(f"{commits}\n", encoding="utf-8")
                if code != 1 or saved_at(folder) > saved:  # otherwise it may fail again at once
                    (folder / (BEGUN if code else DONE)).write_text(command_line, encoding="utf-8")
    if files and code == 2:  # it cannot be resumed, and printed why
        return run_rung(command, run_dir)
    return code


def saved_at(folder: Path) -> float:
    """Return when a run saved its last checkpoint, in seconds since 1970; 0 if it has none."""
    file = folder / CHECKPOINTS / "latest.pt"
    return file.stat().st_mtime if file.exists() else 0.0


def choose(beginnings: list[str]) -> list[Path]:
    """Return the rungs whose names begin with these texts, in order."""
    rungs = sorted(ROOT.glob("[0-9][0-9]_*.py"))
    for beginning in beginnings:
        if not any(rung.stem.startswith(beginning) for rung in rungs):
            raise UserError(f"{beginning}: there are only {', '.join(r.stem for r in rungs)}")
    return [rung for rung in rungs if rung.stem.startswith(tuple(beginnings))]
