"""The threads that compute, and other programs that take their cores."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
import torch
from ignite.engine import Engine
from ignite.handlers import TensorboardLogger
from test_handlers import stream

from lib import devices
from lib.learning.agents import LinearSchedule
from lib.learning.replay_buffer import ReplayBuffer
from lib.running import other_programs
from lib.running.events import replay_batches
from lib.running.handlers import attach_handlers
from lib.running.options import ReplayOptions
from lib.running.other_programs import OtherPrograms, Used, used
from lib.running.run import Failure, Run, launch
from lib.running.speedrun_options import SharedCoresOptions, SpeedrunOptions

CORES = 4
ONE = "another program uses one of 4 cores; --threads 3 may be faster"
THREE = "other programs use 3 of 4 cores; --threads 1 may be faster"
ALL = "other programs use 4 of 4 cores; --threads 1 may be faster"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Four cores, on each of which torch computes."""
    before = torch.get_num_threads()
    for module in (devices, other_programs):
        monkeypatch.setattr(module, "cores", lambda: CORES)
    torch.set_num_threads(CORES)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("options", "flags", "threads"),
    [
        (ReplayOptions, [], CORES),
        (ReplayOptions, ["--threads", "3"], 3),
        (SpeedrunOptions, [], CORES),
        (SharedCoresOptions, [], CORES // 2),
        (SharedCoresOptions, ["--threads", "3"], 3),
    ],
)
def test_a_run_tells_the_threads_that_compute(
    options, flags, threads, tmp_path, monkeypatch, capsys
):
    def train(settings: object, run: Run) -> NoReturn:
        raise Failure(f"{torch.get_num_threads()} threads compute")

    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # launch sets its own
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["rung.py", "--run-dir", str(tmp_path), *flags])
    with pytest.raises(SystemExit):
        launch(train, options, "")
    out, err = capsys.readouterr()
    assert f"{threads} threads compute" in err
    assert f", threads {threads}, " in out


def scripted(*cores: float) -> Callable[[], Used]:
    """Readings 20 seconds apart, with so many cores used by other programs in between."""
    clock, everybody, ours = -1e6, 0.0, 0.0  # long ago, so that the next reading is due
    readings = [Used(clock, everybody, ours)]
    for busy in cores:
        clock, everybody, ours = clock + 20, everybody + 20 * (busy + 1.5), ours + 20 * 1.5
        readings.append(Used(clock, everybody, ours))
    return iter(readings).__next__


@pytest.mark.parametrize(
    ("busy", "told"),
    [
        ([0.0, 0.1, 0.3], [None] * 3),
        ([0.67, 1.0, 0.9], [ONE, None, None]),  # once
        ([1.0, 0.3, 1.0, 0.1, 1.0], [ONE, None, None, None, ONE]),  # and when it comes again
        ([0.1, 2.8], [None, THREE]),
        ([4.0], [ALL]),
    ],
)
def test_other_programs_are_told_once_each_time_they_begin(busy, told):
    others = OtherPrograms(scripted(*busy))
    assert [others.news() for _ in busy] == told


def test_threads_that_leave_enough_cores_are_not_advised_against():
    torch.set_num_threads(2)
    others = OtherPrograms(scripted(2.0, 2.1, 3.0))
    assert [others.news() for _ in range(3)] == [None, None, THREE]


def test_nothing_is_measured_too_soon():
    others = OtherPrograms(iter([Used(clock=1e12, everybody=0.0, ours=0.0)]).__next__)
    assert others.news() is None  # it would have read again


def test_what_this_process_started_is_its_own():
    work = "sum(range(3_000_000))"
    before = used()
    subprocess.run([sys.executable, "-c", work], check=True)
    command = [sys.executable, "-c", f"{work}; print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        alive = sum(psutil.Process(child.pid).cpu_times()[:2])
        after = used()
        child.stdin.close()
        child.wait()
    assert alive > 0
    assert after.ours - before.ours >= 1.5 * alive  # the ended one worked as much
    readings = before, after, used()
    assert all(a.ours <= b.ours and a.everybody <= b.everybody for a, b in pairwise(readings))


def test_a_run_says_it_at_the_start_and_when_it_happens(tmp_path: Path, capsys):
    others = OtherPrograms(scripted(1.0, 0.0, 2.8, 2.8))
    device = torch.device("cpu")
    engine = Engine(lambda engine, batch: torch.tensor(0.0))
    with TensorboardLogger(tmp_path) as tensorboard:
        run = Run(ReplayOptions(), device, tmp_path, tensorboard, "rung", other_programs=others)
        attach_handlers(engine, run, LinearSchedule(1.0, 0.0, 10), {})
        batches = replay_batches(engine, stream([0.0] * 33), ReplayBuffer(100, (2, 2, 2)), 25, 4)
        engine.run(batches)
    assert engine.state.iteration == 306  # so it was asked at the start, and three times more
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ONE
    assert [line for line in lines if "program" in line] == [ONE, THREE]
