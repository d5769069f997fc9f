"""Cause faults on purpose, many times, at random moments, and check what happens to the runs.

    python -m tests.faults.campaign --out results/mine/faults

Each kind of fault is a function that tries it once and returns what was measured; it raises
AssertionError if the project did not do what it promises. tests/test_faults.py tries each of
them a few times. The table and the figures of the soak are written to the folder.
"""

import argparse
import csv
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.report import write_table
from lib.running.checkpoints import FOLDER, KINDS, checkpoints_of, read_checkpoint
from lib.running.machine import describe_machine

ROOT = Path(__file__).parents[2]
QUICK = ("--replay-initial", "300", "--replay-size", "1000", "--batch-size", "4")
OFTEN = ("--checkpoint-every", "20")
NOTICED_SECONDS = 5.0
STOPPED_SECONDS = 2.0  # --player-timeout of a player that is stopped
PLAYER_FAULTS = ("SIGKILL", "SIGSTOP", "memory", "raise")

# 03_parallel.py as a program of its own; in the player's process the environment fails after a
# while, and says when. Multiprocessing runs a program again in the processes that it starts, under
# another name.
FAULTY = """
import pathlib, resource, time
import gymnasium as gym
from lib.games import atari_wrappers

class Faulty(gym.Wrapper):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == {steps}:
            try:
                {fault}
            finally:
                pathlib.Path({told!r}).write_text(str(time.time()))
        return self.env.step(action)

if __name__ == "__mp_main__":
    whole = atari_wrappers.make_atari
    atari_wrappers.make_atari = lambda *args, **settings: Faulty(whole(*args, **settings))
rung = pathlib.Path({rung!r})
exec(compile(rung.read_text(), rung, "exec"))
"""
FAULTS = {
    "raise": "raise RuntimeError('the emulator is on fire')",
    "memory": (
        "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)); "
        "self.hoard = [bytearray(2**24) for _ in range(10**6)]"
    ),
}


class Program:
    """A rung in a session of its own; what it prints is read as it comes."""

    def __init__(self, script: Path, *flags: str) -> None:
        self.shared_before = shared_memory()
        self.process = subprocess.Popen(
            [sys.executable, str(script), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        self.lines: list[str] = []
        self.training = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if not self.training.wait(120) or self.process.poll() is not None:
            raise AssertionError(f"it did not begin to train: {self.finish()}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("training begins"):
                self.training.set()
        self.training.set()

    def wait(self, seconds: float) -> None:
        """Wait this long, or until it ends."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def finish(self, seconds: float = 60) -> str:
        """Wait for its end; what it wrote to standard error."""
        assert self.process.stderr is not None
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("it did not end") from None
        self._reader.join()
        return self.process.stderr.read().strip()

    def below(self) -> list[psutil.Process]:
        """Its children: the player, and Python's resource tracker."""
        return psutil.Process(self.process.pid).children(recursive=True)


def is_player(process: psutil.Process) -> bool:
    """Whether it is the player, and not Python's resource tracker."""
    return any("spawn_main" in part for part in process.cmdline())


def shared_memory() -> set[str]:
    """The segments that there are."""
    return set(os.listdir("/dev/shm"))


def in_use(segments: set[str]) -> set[str]:
    """Those of the segments that a living process has mapped."""
    mapped = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mapped |= {Path(part.path).name for part in process.memory_maps()}
    return segments & mapped


@contextmanager
def nothing_left(program: Program) -> Iterator[None]:
    """Within, the program ends; nothing of it may be there some seconds later."""
    below = program.below()
    yield
    _, alive = psutil.wait_procs(below, NOTICED_SECONDS)
    assert not alive, f"still there: {alive}"
    deadline = time.monotonic() + NOTICED_SECONDS
    # Other programs of this machine use it, too.
    while left := (new := shared_memory() - program.shared_before) - in_use(new):
        assert time.monotonic() < deadline, f"still in shared memory: {left}"
        time.sleep(0.1)


def check_checkpoints(run: Path) -> int:
    """Load every checkpoint of a run; the updates of the latest."""
    updates = 0
    for kind in KINDS:  # a file that was being written has another name
        for iteration, file in checkpoints_of(run, kind).items():
            assert read_checkpoint(file)["progress"]["iteration"] == iteration
            if kind == "latest":  # the one that is resumed from
                updates = max(updates, iteration)
    return updates


def faulty_script(folder: Path, fault: str, steps: int, told: Path) -> Path:
    """03_parallel.py with a player that fails in this way."""
    rung = ROOT / "03_parallel.py"
    script = folder / "faulty.py"
    script.write_text(
        FAULTY.format(steps=steps, told=str(told), fault=FAULTS[fault], rung=str(rung))
    )
    return script


def player_fault(fault: str, rng: random.Random) -> float:
    """Let the player fail at a random moment; seconds until the trainer has ended for it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        told = folder / "when"
        runs = folder / "runs"
        flags = [*QUICK, *OFTEN, "--run-dir", str(runs)]
        if fault in FAULTS:
            script = faulty_script(folder, fault, rng.randint(400, 2_000), told)
            program = Program(script, *flags)
            with nothing_left(program):
                error = program.finish()
                seconds = time.time() - float(told.read_text())
            cause = "RuntimeError" if fault == "raise" else "MemoryError"
        else:
            flags += ["--player-timeout", str(STOPPED_SECONDS)]
            program = Program(ROOT / "03_parallel.py", *flags)
            program.wait(rng.uniform(0, 2))
            (player,) = filter(is_player, program.below())
            with nothing_left(program):
                began = time.monotonic()
                player.send_signal(signal.Signals[fault])
                error = program.finish()
                seconds = time.monotonic() - began
            cause = "killed by SIGKILL" if fault == "SIGKILL" else "sent nothing for 2 seconds"
        assert program.process.returncode == 1, (program.process.returncode, error)
        assert len(error.splitlines()) == 1, error
        assert cause in error, error
        (run,) = runs.iterdir()
        check_checkpoints(run)
        return seconds


def trainer_kills(count: int, rng: random.Random, script: str = "03_parallel") -> dict[str, Any]:
    """Kill a trainer and resume it, again and again; its curves must not show it."""
    with tempfile.TemporaryDirectory() as place:
        runs = Path(place)
        flags = [*QUICK, *OFTEN, "--run-dir", place]
        saved = []
        for _ in range(count):
            program = Program(ROOT / f"{script}.py", *flags)
            while not list(runs.glob(f"*/{FOLDER}/latest-*.pt")):  # something to resume from
                assert program.process.poll() is None, program.finish()
                time.sleep(0.1)
            program.wait(rng.uniform(0.0, 2.5))
            with nothing_left(program):
                program.process.kill()
                program.finish()
            (run,) = runs.iterdir()
            saved.append(check_checkpoints(run))
            flags = ["--resume", str(run)]
        assert saved == sorted(saved), f"updates were lost: {saved}"
        frames = read_checkpoint(run / FOLDER / f"latest-{saved[-1]}.pt")["progress"]["frames"]
        program = Program(ROOT / f"{script}.py", *flags, "--max-frames", str(frames + 500))
        error = program.finish(300)
        assert program.process.returncode == 0, error
        points = check_curves(run)
        return {"updates": saved[-1], "points": points}


def check_curves(run: Path) -> int:
    """No step of a curve may be there twice, or before an earlier one; how many points."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    points = 0
    for tag in events.Tags()["scalars"]:
        steps = [point.step for point in events.Scalars(tag)]
        assert steps == sorted(set(steps)), f"{tag}: {steps}"
        points += len(steps)
        if tag.endswith("time_passed"):
            times = [point.value for point in events.Scalars(tag)]
            assert times == sorted(times), f"{tag}: {times}"
    return points


def disk_full(rng: random.Random, saves: bool) -> str:
    """Let the disk fill up while a run saves, or while it only logs; the error that it ends with.

    Raises:
        PermissionError: no file system can be mounted here.
    """
    with tempfile.TemporaryDirectory() as place:
        size = f"{rng.randint(70, 95)}m" if saves else f"{rng.randint(20, 28)}k"
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place]
        if subprocess.run(mount, capture_output=True).returncode:
            raise PermissionError("no file system can be mounted here")
        try:
            saving = (*OFTEN, "--checkpoint-replay") if saves else ("--checkpoint-every", "0")
            program = Program(ROOT / "01_baseline.py", *QUICK, *saving, "--run-dir", place)
            error = program.finish(300)
            assert program.process.returncode == 1, error
            assert len(error.splitlines()) == 1, error
            (run,) = Path(place).iterdir()
            assert not saves or check_checkpoints(run) > 0, "no checkpoint is left"
            return error.replace(place, "RUN_DIR")
        finally:
            subprocess.run(["umount", place], check=True)


def cut_events(run: Path, rng: random.Random) -> int:
    """Cut a run's event file at a random byte, and let the table read it; where it was cut."""
    (file,) = run.glob("events.out.tfevents.*")
    content = file.read_bytes()
    size = rng.randrange(len(content))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / run.name
        folder.mkdir()
        (folder / file.name).write_bytes(content[:size])
        command = [sys.executable, "-m", "benchmarks", "table", place]
        result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
        assert result.returncode in (0, 2), result.stderr
        if result.returncode == 2:  # it does not even say which rung it is
            assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    return size


def soak(script: str, frames: int) -> list[dict[str, float]]:
    """A long run; what it holds of the system's resources, every ten seconds."""
    with tempfile.TemporaryDirectory() as place:
        flags = ("--max-frames", str(frames), "--stop-reward", "22", "--run-dir", place)
        program = Program(ROOT / f"{script}.py", *flags)
        process = psutil.Process(program.process.pid)
        began = time.monotonic()
        samples = []
        while program.process.poll() is None:
            program.wait(10)
            if program.process.poll() is None:
                played = re.findall(r"frames +([\d,]+)", "".join(program.lines[-3:]))
                samples.append(
                    {
                        "seconds": time.monotonic() - began,
                        "frames": float(played[-1].replace(",", "")) if played else 0.0,
                        "resident_mb": process.memory_info().rss / 2**20,
                        "files": process.num_fds(),
                        "threads": process.num_threads(),
                        "shared_segments": len(shared_memory()),
                    }
                )
        error = program.finish()
        assert program.process.returncode == 0, error
        return samples


def main() -> None:
    """The whole campaign."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where the figures are written")
    parser.add_argument("--player-faults", type=int, default=100, help="of all four kinds")
    parser.add_argument("--trainer-kills", type=int, default=50)
    parser.add_argument("--full-disks", type=int, default=5)
    parser.add_argument("--cuts", type=int, default=50, help="of event files")
    parser.add_argument("--soak-frames", type=int, default=500_000)
    parser.add_argument("--soak-script", default="07_speedrun")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[list[str]] = []
    machine = ", ".join(
        f"{name} {value}" for name, value in describe_machine(torch.device("cpu")).items()
    )

    def report(what: str, count: int, found: str) -> None:
        rows.append([what, str(count), found])
        print(*rows[-1], sep=" | ", flush=True)
        header = ["what happened", "times", "what came of it"]
        write_table(args.out / "faults", "Faults, tried for real", header, rows, [machine])

    for fault in PLAYER_FAULTS:
        times = [player_fault(fault, rng) for _ in range(args.player_faults // 4)]
        if times:
            limit = NOTICED_SECONDS + (STOPPED_SECONDS if fault == "SIGSTOP" else 0)
            assert max(times) < limit, f"noticed after {max(times):.1f} seconds"
            found = f"exit 1, one line, after {max(times):.1f} s at most; checkpoints load"
            report(f"player: {fault}", len(times), found)
    if args.trainer_kills:
        left = trainer_kills(args.trainer_kills, rng)
        found = (
            f"resumed every time, to {left['updates']:,} updates; {left['points']:,} points "
            "of its curves, none twice; no process, no shared memory left"
        )
        report("trainer: SIGKILL", args.trainer_kills, found)
    if args.full_disks:
        for saves, doing in ((True, "saving"), (False, "logging")):
            errors = {disk_full(rng, saves) for _ in range(args.full_disks)}
            found = "exit 1: " + " / ".join(sorted(errors))
            report(f"disk full while {doing}", args.full_disks, found)
    if args.cuts:
        with tempfile.TemporaryDirectory() as place:
            flags = (*QUICK, "--max-frames", "2500", "--run-dir", place)
            Program(ROOT / "01_baseline.py", *flags).finish(120)
            (run,) = Path(place).iterdir()
            sizes = [cut_events(run, rng) for _ in range(args.cuts)]
        report("event file cut", len(sizes), f"read up to there, at {min(sizes)} to {max(sizes)}")
    if args.soak_frames:
        samples = soak(args.soak_script, args.soak_frames)
        with (args.out / "soak.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(samples[0]))
            writer.writeheader()
            writer.writerows(samples)
        half, last = samples[len(samples) // 2], samples[-1]
        names = ("resident_mb", "files", "threads", "shared_segments")
        found = ", ".join(f"{name} {half[name]:.0f} -> {last[name]:.0f}" for name in names)
        what = f"{args.soak_script}, {last['frames']:,.0f} frames"
        report(what, 1, f"from its half to its end: {found}")


if __name__ == "__main__":
    main()
