"""How fast the machine is at a fixed piece of work, measured just before and after a run.

A shared machine can be three times as fast in one hour as in another, so minutes alone say little.
``calibration.json`` is beside the events of a run, and ``table`` reads it:

    {"commit": "1a2b3c4", "before": {"updates": 80.1, ...}, "after": {...}}
"""

import json
import os
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import UserError

FILE = "calibration.json"
SECONDS = 2.0  # of each of the three measurements
BATCH_SIZE = 32
FIGURES = ("updates", "updates_one_core", "emulated_frames")  # of Speed
EMULATED_AT_A_TIME = 500  # frames between two looks at the clock


@dataclass(frozen=True)
class Speed:
    """How much of three fixed pieces of work the machine does per second."""

    updates: float  # of the Nature DQN, batches of 32, float32, with the threads of a rung
    updates_one_core: float  # the same with one thread
    emulated_frames: float  # of Pong, by ALE in one thread: no pictures, no wrappers
    at: str  # when: UTC, ISO 8601


@dataclass(frozen=True)
class Calibration:
    """The speed of the machine before and after a run."""

    before: Speed
    after: Speed | None = None  # None: the run, or what ran it, was killed
    commit: str = ""  # of the code, "-dirty" if it was changed since; "": not told

    def change(self) -> float:
        """How many times as large the larger of before and after is, at most; 1 without after."""
        if self.after is None:
            return 1.0
        pairs = [(getattr(self.before, name), getattr(self.after, name)) for name in FIGURES]
        return max(max(pair) / min(pair) for pair in pairs)

    def mean(self, figure: str) -> float:
        """A figure of ``Speed``, the mean of before and after."""
        speeds = [getattr(speed, figure) for speed in (self.before, self.after) if speed]
        return sum(speeds) / len(speeds)


def measure_speed(seconds: float = SECONDS) -> Speed:
    """Measure in a fresh process, so that this one does not disturb.

    Args:
        seconds: of each of the three measurements; starting the process comes on top.
    """
    from benchmarks.techniques.process import in_fresh_process  # late: it imports torch

    return in_fresh_process(speed_of_this_process, seconds)


def speed_of_this_process(seconds: float) -> Speed:
    """Measure here; torch has one thread afterwards."""
    import torch

    from benchmarks.techniques.measuring import Settings, milliseconds
    from benchmarks.techniques.network import Learner
    from lib.run import prepare_torch

    prepare_torch(0)
    settings = Settings(torch.device("cpu"), BATCH_SIZE, seconds, envs=1, transitions=1)
    learner = Learner(settings)
    updates = 1e3 / milliseconds(learner.update, seconds)()
    torch.set_num_threads(1)
    updates_one_core = 1e3 / milliseconds(learner.update, seconds)()
    emulated = 1e3 / milliseconds(Emulator().play, seconds)() * EMULATED_AT_A_TIME
    return Speed(updates, updates_one_core, emulated, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")


class Emulator:
    """Pong in ALE, played by pressing nothing: the same frames every time."""

    def __init__(self) -> None:
        from ale_py import ALEInterface, LoggerMode, roms

        ALEInterface.setLoggerMode(LoggerMode.Error)  # no welcome
        self.ale = ALEInterface()
        self.ale.setInt("random_seed", 0)
        self.ale.loadROM(roms.get_rom_path("pong"))

    def play(self) -> None:
        """Emulate some frames."""
        for _ in range(EMULATED_AT_A_TIME):
            self.ale.act(0)
            if self.ale.game_over():
                self.ale.reset_game()


def write(folder: Path, calibration: Calibration) -> None:
    """Write the calibration of a run into its folder; it replaces an older file as a whole."""
    path = folder / FILE
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(calibration), indent=2) + "\n", encoding="utf-8")
    os.replace(part, path)


def read(folder: Path) -> Calibration | None:
    """The calibration of the run in the folder; None if it has none.

    Raises:
        UserError: if there is one that cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        after = Speed(**told["after"]) if told["after"] else None
        return Calibration(Speed(**told["before"]), after, told["commit"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a calibration: {error!r}") from None


def commit(folder: Path) -> str:
    """The commit of a working tree, with "-dirty" if files were changed; "" without git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""  # not a clone, or git is not installed: then nothing is known
    return done.stdout.strip()
