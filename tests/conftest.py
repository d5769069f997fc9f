"""Shared by the tests: rungs run as programs, and what their runs left."""

import csv
import gc
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from filelock import FileLock
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# One thread per process, here and in what is started from here: batches are tiny, and threads
# that wait for each other are slow where the machine has other work. Before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

ROOT = Path(__file__).parent.parent
RUNGS = {file.stem: file.read_text(encoding="utf-8") for file in sorted(ROOT.glob("[0-9]*_*.py"))}


def rungs_with(module: str) -> list[str]:
    """The rungs that import this: adding a rung needs no list."""
    return [script for script, source in RUNGS.items() if f"from {module} import" in source]


PARALLEL, CLUSTER = rungs_with("lib.parallel.player"), rungs_with("lib.parallel.cluster")
SERIAL = [script for script in rungs_with("lib.envs.experience") if script not in PARALLEL]
# Beyond the book; the speedruns have no replay buffer.
BEYOND = [script for script in RUNGS if script not in (*SERIAL, *PARALLEL, *CLUSTER)]
SPEEDRUNS = rungs_with("lib.training.speedrun_options")


@pytest.fixture(autouse=True, scope="module")
def frozen_imports() -> None:
    """What was imported is left out of each later search for garbage, which took 0.4 seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def torchs_switches() -> Iterator[None]:
    """Rungs set them for a whole process; the next test has denormal numbers, and one thread."""
    from lib.gpu_checks import fallbacks

    import torch

    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(1)
    fallbacks.clear()


@pytest.fixture(scope="session")
def console() -> None:
    """The emulator is compiled: by one process, while the others wait."""
    from pong_emulator import preparing
    from pong_emulator.compiling import folder

    with FileLock(folder() / "lock"), preparing():
        pass


class Ended(NamedTuple):
    """A program that ended, and the folder of its run."""

    code: int
    out: str
    error: str
    folder: Path = ROOT

    def checkpoints(self) -> list[Path]:
        return sorted((self.folder / "checkpoints").iterdir())


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Iterator[Callable[..., Ended]]:
    """Calls a program's main with a command line; the next test has its own signals again."""

    def ends(main: Callable[[], object], *command: object) -> Ended:
        monkeypatch.setattr(sys, "argv", list(map(str, command)))
        capfd.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return Ended(code, *capfd.readouterr())

    from lib.training.run import SIGNALS

    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield ends
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def program(ends: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Runs a rung to its end in this process, which has imported torch already."""

    def program(script: str, *flags: object) -> Ended:
        path, name = str(ROOT / f"{script}.py"), "TORCHDYNAMO_DISABLE"
        with monkeypatch.context() as patch:  # only 08 compiles, which takes most of the time
            patch.setenv(name, os.environ.get(name, "0" if script[:2] == "08" else "1"))
            return ends(lambda: runpy.run_path(path, run_name="__main__"), path, *flags)

    return program


def one_line(text: str) -> str:
    assert len(text.strip().splitlines()) == 1, text
    return text


def read_csv(file: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(file.read_text(encoding="utf-8").splitlines())]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def run_python(*command: object, cwd: Path = ROOT, **env: str) -> Any:
    """Run Python to its end; other programs may use the cores, so it may take its time."""
    keywords = {"capture_output": True, "text": True, "timeout": 600, "env": os.environ | env}
    return subprocess.run([sys.executable, *map(str, command)], cwd=cwd, **keywords)


def run_rung(script: str, folder: Path, *flags: str) -> Any:
    """Run a rung to its end; only 08 compiles, which takes most of the time."""
    uncompiled = {} if script.startswith("08") else {"TORCHDYNAMO_DISABLE": "1"}
    return run_python(ROOT / f"{script}.py", "--run-dir", folder, *flags, **uncompiled)


@cache
def options_of(script: str) -> type:
    """The settings of a rung, without running it."""
    from lib.training.options import ReplayOptions

    module = runpy.run_path(str(ROOT / f"{script}.py"), run_name=script)
    return module.get("Options", ReplayOptions)


def frames_of(script: str) -> int:
    """The frames of ``short_run``; two games take twice as long as one."""
    return 2_200 if hasattr(options_of(script), "envs") else 1_100


def short_run(script: str) -> list[str]:
    """The flags of the shared run of a rung: it ends a game, and makes 100 updates or so.

    Updates take much more time than frames, so training begins late. Speedruns try their agent.
    """
    frames = frames_of(script)
    envs = frames // 1_100
    flags = "--seed 5 --learning-rate 2e-4 --epsilon-frames 400"
    flags += f" --checkpoint-every 50 --max-frames {frames}"
    flags += f" --envs {envs}" if envs > 1 else ""
    if script in SPEEDRUNS:
        flags += " --rollout 16 --batch-size 16 --epochs 1 --stop-reward -21 --trial-games 2"
    else:
        # The target network is copied often, so its values are a part of what is learned.
        updates = 200 if script in SERIAL and envs == 1 else 100  # two losses in TensorBoard
        filled = frames - updates * envs
        flags += f" --replay-initial {filled} --replay-size {filled} --target-sync 50"
        flags += " --batch-size 4 --stop-reward 100"
    return flags.split()


@pytest.fixture
def trained(tmp_path_factory, request, program) -> Callable[[str], Ended]:
    """Gives the shared run of a rung, which trained once for all tests; they leave it as it is."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers

    def trained(script: str) -> Ended:
        if script in SPEEDRUNS[1:]:
            request.getfixturevalue("console")
        place = folder / f"trained-{script}"
        kept = place.with_suffix(".json")
        with FileLock(place.with_suffix(".lock")):  # one worker trains, the others wait
            if not kept.exists():
                ended = program(script, "--run-dir", place, *short_run(script))
                kept.write_text(json.dumps(ended[:3]))
        code, out, error = json.loads(kept.read_text())
        assert code == 0, error
        (run,) = place.iterdir()
        return Ended(code, out, error, run)

    return trained


def curves(run: Path) -> list[tuple[str, int, float]]:
    """All points of the run in this folder, but those that tell the time."""
    events = read_events(run)
    return [
        (tag, point.step, point.value)
        for tag in sorted(events.Tags()["scalars"])
        if not re.search("fps|time_passed|seconds|minutes", tag)
        for point in events.Scalars(tag)
    ]


def read_events(run: Path) -> EventAccumulator:
    return EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
