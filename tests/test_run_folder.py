"""A run folder: who may use it, and what it holds whatever happens. A tiny network learns."""

import errno
import io
import logging
import math
import os
import re
import signal
import sys
import termios
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, count, pairwise
from os.path import getctime
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

from lib.gpu_checks import fallbacks
from lib.learning.replay_buffer import ReplayBuffer
from lib.printing import show_elapsed
from lib.training.checkpoints import CheckpointError, read_checkpoint, write_checkpoint
from lib.training.evaluation import evaluate
from lib.training.launch import launch, open_folder
from lib.training.options import ReplayOptions
from lib.training.play import PlayEvents
from lib.training.run import Failure, Run
from lib.training.speedrun_options import SharedCoresOptions, SpeedrunOptions

import numpy as np
import pytest
import torch
from conftest import Ended, curves, everything, one_line, read_events
from filelock import FileLock
from helpers import Screen, curve, learn, listed, stream
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

FLAGS = "--replay-initial 20 --replay-size 200 --batch-size 4 --checkpoint-every 10"
FIFTH = Events.ITERATION_COMPLETED(every=5)


class Net(nn.Linear):
    """A megabyte of weights; a checkpoint is larger than the events."""

    arguments = ()


@pytest.fixture
def start(tmp_path, ends, monkeypatch):
    """Starts a run, or resumes that ``of`` before; each game has one point more than the last."""
    place = tmp_path / "two words" / "runs"
    (tmp_path / "runs").touch()  # no new run could begin here, but runs are resumed
    monkeypatch.chdir(tmp_path)

    def start(
        *flags, of=None, frames=None, reward=0, play=stream,
        spoil=id, on=FIFTH, every=None, after=id, **parts,
    ):  # fmt: skip
        def train(options: ReplayOptions, run: Run) -> None:
            net = Net(500, 500)
            spoil(net)
            optimizer = torch.optim.Adam(net.parameters())
            buffer = ReplayBuffer(options.replay_size, (2, 84, 84))

            def update(*_: object) -> torch.Tensor:
                optimizer.zero_grad()
                loss = net(torch.ones(500)).square().mean()
                loss.backward()
                optimizer.step()
                return loss.detach()

            learned = {"net": net, "optimizer": optimizer, "buffer": buffer} | parts
            games = play([float(reward + number) for number in range(100)])
            engine = Engine(update)  # which lives as long as this function
            learn(engine, run, games, learned, on=(on, every, run) if every else ())
            after(run)

        limit = () if frames is None else ("--max-frames", frames)
        where = ("--resume", of.folder) if of else (*FLAGS.split(), "--run-dir", place)
        ended = ends(lambda: launch(train, ReplayOptions, ""), "tiny.py", *where, *limit, *flags)
        return ended._replace(folder=of.folder if of else max(place.iterdir(), key=getctime))

    return start


def in_a_thread(work) -> None:
    (thread := threading.Thread(target=work)).start()
    thread.join()


LOST = "CUDA error: an illegal memory access was encountered"
NO_ENGINE = "GET was unable to find an engine to execute this computation"
SHM = "unable to allocate shared memory(shm) for file </torch_1>: No space left"
lose_it = Mock(side_effect=torch.AcceleratorError(f"{LOST}\nKernel errors might"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda net: net.bias.data.fill_(math.nan), "the loss became nan within 10 updates"),
        (lambda net: setattr(net, "forward", lose_it), LOST),
        (lambda net: np.empty(2**57), "out of memory: Unable to allocate 1.00 EiB for an array"),
        (lambda net: torch.empty(2**60), "out of memory: [enforce fail"),
        (Mock(side_effect=RuntimeError(SHM)), f"{SHM}; enlarge /dev/shm"),
        (Mock(side_effect=RuntimeError(NO_ENGINE)), NO_ENGINE),  # cuDNN
        (Mock(side_effect=type("CUDAError", (Exception,), {})("it broke")), "it broke"),  # Numba
        (lambda net: setattr(net, "state_dict", lose_it), LOST),  # while it is saved
    ],
)
def test_a_failure_is_one_line_and_exit_code_1(spoil, message, start):
    run = start("--env", "BreakoutNoFrameskip-v4", spoil=spoil)
    assert "no goal: set --stop-reward or --max-frames" in run.out
    assert (run.code, one_line(run.error).startswith(f"tiny: failed: {message}")) == (1, True)


def test_no_checkpoint_is_written_once_the_loss_is_not_finite(start):
    run, nets = start(frames=75), list[Net]()
    before = everything(run.folder / "checkpoints")
    spoil = lambda *_: nets[0].bias.data.fill_(math.nan)  # noqa: E731
    flags = ("--checkpoint-every", "100")
    again = start(*flags, of=run, frames=95, spoil=nets.append, every=spoil)  # 8 updates
    assert (again.code, "failed: the loss became nan within" in one_line(again.error)) == (1, True)
    assert everything(run.folder / "checkpoints") == before


def test_a_second_signal_changes_nothing_at_the_end(start, monkeypatch):
    again = SimpleNamespace(collect=lambda *_: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr("lib.training.launch.gc", again)
    stop = lambda *_: signal.raise_signal(signal.SIGTERM)  # noqa: E731
    for how, code, message in (
        ({"frames": 45}, 0, "frame limit reached"),
        ({"frames": 45, "after": again.collect}, 0, "frame limit reached"),  # as its player ends
        ({"every": stop}, 143, "interrupted in 0:00:0"),
        ({"spoil": stop}, 143, "tiny: interrupted\n"),
        ({"spoil": Mock(side_effect=Failure("it broke"))}, 1, "tiny: failed: it broke\n"),
    ):
        run = start(**how)
        assert (run.code, message in run.out + run.error) == (code, True)


@pytest.mark.parametrize(("error", "told"), [(OSError(), False), (RuntimeError("a bug"), True)])
def test_a_mistake_keeps_its_traceback_but_no_error_is_told_twice(error, told, start):
    """TensorBoard raises the OSError of its thread again in the loop."""
    fail = Mock(side_effect=error)
    run = start(frames=5, spoil=lambda net: in_a_thread(fail))
    assert ("Traceback" in run.error) == told
    if told:
        with pytest.raises(RuntimeError, match="a bug"):
            start(spoil=fail)


def test_letters_that_a_terminal_lacks_are_escaped(start, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(told := io.BytesIO(), "ascii"))
    start(spoil=Mock(side_effect=Failure("no m\u00e9moire")))
    assert told.getvalue() == b"tiny: failed: no m\\xe9moire\n"


class Stopped(io.BufferedWriter):
    """A file; an error arrives when a part of it is written. torch raises RuntimeError over it."""

    def write(self, content: bytes) -> int:
        if self.tell() > 100_000:
            raise self.error
        return super().write(content)


@pytest.mark.parametrize(("error", "code"), [(OSError(28, "Full"), 1), (KeyboardInterrupt(), 130)])
def test_a_failed_save_leaves_what_it_would_have_replaced(error, code, start, monkeypatch):
    message = ", 7 MB free: [Errno 28] Full\n" if code == 1 else "tiny: interrupted\n"
    stopped, usual = {"latest.pt.tmp"}, Path.open

    def open_file(path: Path, *mode: str, **how: str) -> object:
        stops = path.name in stopped
        return Stopped(io.FileIO(path, "w")) if stops else usual(path, *mode, **how)

    monkeypatch.setattr(Path, "open", open_file)
    monkeypatch.setattr(Stopped, "error", error, raising=False)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=7 * 2**20))
    first = start(frames=45)
    assert [file.name for file in first.checkpoints()] == ["best.pt"]
    assert (first.code, "resume it with" in first.out) == (code, False)
    stopped.clear()
    run = start(frames=45)
    before = everything(run.folder / "checkpoints")
    longer = partial(start, "--stop-reward", "1000", of=run, frames=80)
    stopped |= {"best.pt.tmp", "latest.pt.tmp"}
    for reward in (100, -100):  # the best checkpoint is written first, or only the latest
        again = longer(reward=reward)
        assert (again.code, message in one_line(again.error)) == (code, True)
        assert again.out.endswith(f"  python tiny.py --resume '{run.folder}'\n")
        assert everything(run.folder / "checkpoints") == before
    stopped.clear()
    assert longer().code == 0


def test_the_best_checkpoint_is_that_of_the_highest_average_of_all_parts(start):
    run = start(frames=75, play=lambda _: stream([0.0, 1.0, 2.0, 9.0] + [-90.0] * 9))
    again = start(of=run, frames=95, reward=-90)
    best = read_checkpoint(again.folder / "checkpoints" / "best.pt")
    assert best["progress"]["episodes"] == 4


def test_a_resumed_run_knows_its_random_numbers_when_it_reached_its_goal_and_its_limit(start):
    drawn, stops = list[float](), set[int]()

    def every(engine: Engine, run: Run) -> None:
        drawn.append(torch.rand(()).item())
        if engine.state.iteration == 5:
            engine.state.reached = {"frames": 7, "minutes": 0.5}
        if engine.state.iteration in stops:
            signal.raise_signal(signal.SIGUSR1)  # as Slurm, some time before it kills

    start(frames=65, every=every)
    whole = [*drawn]
    drawn.clear()
    stops |= {25, 50}
    run = start(frames=65, every=every)
    again = start(of=run, every=every)
    assert (run.code, again.code, "frame limit reached" in again.out) == (138, 0, True)
    assert drawn == whole
    assert curve(run.folder, "outcome/reached_frames") == [(0, 7)]
    last = start(of=run, every=every)
    assert (last.code, "--max-frames 65 was reached: no limit now" in last.out) == (138, True)
    assert last.out.endswith(f"  python tiny.py --resume '{run.folder}'\n")


NO_GAMES = "no games after training: the run was interrupted"
CUT_SHORT = "the games after training were cut short"


@pytest.mark.parametrize(("number", "message"), [(2, NO_GAMES), (15, CUT_SHORT)])
def test_a_solved_run_stays_solved_if_interrupted(number, message, start, console, monkeypatch):
    """Ctrl-C arrives while it solves the game, and SIGTERM in the games after training."""

    def evaluated(run: Run) -> None:
        assert curve(run.folder, "outcome/solved") == [(0, 1.0)]  # before the games
        evaluate(lambda states: signal.raise_signal(number), run)

    def solved(engine: Engine, run: Run) -> None:
        weakref.finalize(engine, print, "freed")
        if message == NO_GAMES:
            signal.raise_signal(number)

    # 26 games end in the same step: the others find the run solved.
    many = lambda steps: [step._replace(episodes=step.episodes * 26) for step in steps]  # noqa: E731
    play = lambda rewards: map(many, stream(rewards))  # noqa: E731
    monkeypatch.setenv("COLUMNS", "100")
    run = start(play=play, on=PlayEvents.SOLVED, every=solved, reward=20, after=evaluated)
    *_, line, freed, _, last = run.out.splitlines()
    (game,) = re.findall("(.*)\navg_reward 17 after 780 ", run.out)
    assert re.fullmatch("episode    53  reward   22 .*  steps    10", game)  # in a wide terminal
    assert (run.code, line, freed) == (0, message, "freed")
    assert last.split(", ", 1)[1] == "after 78 episodes, 780 frames and 10 updates"
    events = read_events(run.folder)
    assert "evaluation/reward" not in events.Tags()["scalars"]
    assert "_hparams_/session_end_info" in events.summary_metadata


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(None, 1, "failed: it broke"), (2, 130, "interrupted"), (15, 143, "interrupted")],
)
def test_a_run_that_ends_before_training_gives_its_memory_back(number, code, message, start):
    def spoil(net: Net) -> None:
        net.refers = [net]  # as engine and handlers to each other
        weakref.finalize(net, print, "freed")
        if number:
            signal.raise_signal(number)
        raise Failure("it broke")

    run = start(spoil=spoil)
    freed = run.out.splitlines()[-1]
    assert (run.code, run.error, freed) == (code, f"tiny: {message}\n", "freed")


def test_a_full_disk_under_what_is_printed_is_a_failure(start, monkeypatch):
    monkeypatch.setattr(sys, "stdout", os.fdopen(os.open("/dev/full", os.O_WRONLY), "w"))
    run = start()
    with suppress(OSError):  # what it holds cannot be written
        sys.stdout.close()
    assert (run.code, "No space left on device" in one_line(run.error)) == (1, True)


@pytest.mark.parametrize("closed", [False, True])
def test_a_run_ends_as_it_should_when_nobody_reads_what_it_prints(closed, start, monkeypatch):
    """As with ``2>&1 | tee log`` and Ctrl-C, which ends tee, too; and as with ``>&- 2>&-``."""
    for name in ("stdout", "stderr"):
        reader, writer = os.pipe()
        os.close(reader)
        monkeypatch.setattr(sys, name, None if closed else os.fdopen(writer, "w"))
    run = start(every=lambda *_: signal.raise_signal(signal.SIGTERM))
    assert run.code == 128 + signal.SIGTERM
    assert read_checkpoint(run.folder / "checkpoints" / "latest.pt")["progress"]["frames"] == 25


@pytest.mark.parametrize(
    ("first", "more", "goal", "end"), [(-1.0, 1, -0.9, 40), (0.0, 1, 0.0, 30), (0.0, -1, 0.0, 88)]
)
def test_the_bar_follows_what_ends_the_phase_first(first, more, goal, end, start, monkeypatch):
    """The buffer is full, and then: the frame limit, or the goal. It is drawn 4 times a second."""
    now = 0.0

    def play(_):
        nonlocal now
        for steps in stream([first + more * game for game in range(100)]):
            now += len(steps) / 8  # of a second
            yield steps

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr("lib.training.handlers.LOG_EVERY", 10)
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    start("--stop-reward", str(goal), frames=89, play=play)
    form = r"(filling|training) (\d+)( of 20)? frames(, [\d,]+ FPS)?"
    form += r"(?:, avg_reward (\S+), goal \S+)? *\|[^|]*\|\s*(\d+)%"
    bars = re.findall(form, screen.getvalue())
    drawn = [int(frames) for _, frames, *_ in dict.fromkeys(bars)]
    assert drawn == [*range(2, end + 1, 2)]
    for phase, frames, whole, fps, average, percent in bars:
        done = int(frames) / (20 if phase == "filling" else 89)
        assert (bool(whole), bool(fps)) == (phase == "filling", int(frames) >= 30)  # 10 updates
        assert bool(average) == (phase == "training")
        if average and float(average) >= goal:
            done = 1.0
        elif average and first < goal:
            done = max(done, (float(average) - first) / (goal - first))
        assert int(percent) == pytest.approx(100 * done, abs=6)


def test_slow_work_shows_its_time_unless_a_bar_is_there_and_leaves_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    before = {*threading.enumerate(), tqdm.monitor}
    with suppress(KeyboardInterrupt), show_elapsed("compiling"):
        assert capsys.readouterr().out == "compiling\n"
        assert "\r00:00 (up to two minutes at the first start" in (shown := screen.getvalue())
        with show_elapsed("part of it"):
            assert screen.getvalue().count("minutes") == shown.count("minutes") + 1  # redrawn
        raise KeyboardInterrupt
    assert not screen.getvalue().split("\r")[-2].strip()
    for clock in {*threading.enumerate()} - before - {tqdm.monitor}:
        clock.join(60)
        assert not clock.is_alive()


def test_lines_fit_a_terminal_and_no_bar_is_left_on_it(start, monkeypatch):
    def narrow(engine: Engine, run: Run) -> None:
        print("^C", end="", flush=True)  # as a terminal when Ctrl-C is pressed
        if engine.state.iteration == 10:
            termios.tcsetwinsize(writer, (24, 50))
            print("\rnarrower\r", end="", flush=True)

    terminal, writer = os.openpty()
    termios.tcsetwinsize(writer, (24, 80))
    with os.fdopen(writer, "w") as stream, monkeypatch.context() as patch:
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, stream)
        run = start(frames=45, every=narrow)
    text = b""
    with suppress(OSError):  # all is read, and the other side is closed
        while part := os.read(terminal, 65_536):
            text += part
    assert b"nan" not in text
    assert next(part for part in re.split(b"[\r\n]", text) if b"|" in part).startswith(
        b"starting |"
    )
    shown = []
    for line in text.decode().replace("\r\n", "\n").split("\n"):
        shown.append("")
        for over in line.split("\r"):  # is written over what was there
            shown[-1] = shown[-1][:50] if over == "narrower" else over + shown[-1][len(over) :]
    first, *lines = filter(None, map(str.rstrip, shown))
    assert first == f"run folder {run.folder}"
    played = "after 4 episodes, 45 frames and 25 updates"
    assert re.fullmatch(rf"frame limit reached in 0:00:\d\d, {played}", lines[-1])
    assert max(map(len, lines)) <= 80
    assert not {"%", "^"} & {*"".join(lines)}


def test_times_are_those_of_the_clock_without_the_pause_between_two_parts(start, monkeypatch):
    """In each part the n-th frame takes 1 / n seconds, and an update an eighth of a second."""
    now, updates = 50.0, count(1)

    def wind(seconds: float) -> None:
        nonlocal now
        now += seconds

    def play(rewards):
        for number, steps in enumerate(filter(None, stream(rewards)), start=1):
            wind(1 / number)
            yield steps

    def learn(*_: object) -> None:
        wind(1 / 8)
        if next(updates) == 45:
            signal.raise_signal(signal.SIGTERM)

    def after(frames: int, updates: int = 0) -> float:
        return sum(1 / number for number in range(1, frames + 1)) + updates / 8

    def fps(first: tuple[int, ...], last: tuple[int, ...]) -> float:
        return (last[0] - first[0]) / (after(*last) - after(*first))

    def check(tag: str, expected: dict[int, float]) -> None:
        assert dict(curve(run.folder, tag)) == pytest.approx(expected, rel=1e-5), tag

    monkeypatch.setattr("time.perf_counter", lambda: now)
    monkeypatch.setattr("lib.training.handlers.FILLING_EVERY", 8)
    monkeypatch.setattr("lib.training.handlers.LOG_EVERY", 15)
    begin = lambda net: net.register_forward_hook(learn)  # noqa: E731
    run = start(play=play, spoil=begin)
    check("filling/time_passed", {8: after(8), 16: after(16)})
    check("filling/fps", {8: fps((0,), (8,)), 16: fps((8,), (16,))})
    check("filling/avg_fps", {8: fps((0,), (8,)), 16: fps((0,), (16,))})
    full, *laps = (20, 0), (34, 15), (49, 30), (64, 45)  # the first update follows frame 20
    pace = [fps(*lap) for lap in pairwise([full, *laps])]
    check("train/time_passed", {lap[1]: after(*lap) for lap in laps})
    check("train/fps", dict(zip((15, 30, 45), pace, strict=True)))
    check("train/avg_fps", {lap[1]: fps(full, lap) for lap in laps})
    games = [after(10 * game, max(0, 10 * game - 20)) for game in range(1, 7)]
    check("episodes/time_passed", dict(enumerate(games, start=1)))
    check("outcome/minutes", {0: after(64, 45) / 60})
    check("outcome/fps", {0: fps(full, (64, 45))})
    assert f"frame 20; filling ran at {fps((0,), full):.0f} FPS, without updates" in run.out
    told = [f"{pace[0]:.0f} FPS", *[f"{pace[1]:.0f} FPS"] * 2]
    told = ["filling", "filling", "training", *told]
    averages = accumulate(range(6), lambda average, reward: 0.98 * average + 0.02 * reward)
    assert re.findall("episode  .*", run.out) == [
        f"episode {n + 1:5}  reward {n:4}  avg {average:6.2f}  frames {10 * n + 10:9}  {pace:>9}  "
        f"0:00:{int(seconds):02}"
        for n, average, pace, seconds in zip(range(6), averages, told, games, strict=True)
    ]

    wind(1_000)
    again = start(of=run, frames=65, play=play)
    assert ("training begins" in again.out, "was reached" in again.out) == (False, False)
    check("outcome/seconds", {0: after(64, 45) + after(1)})
    check("outcome/fps", {0: fps(full, (64, 45))})  # of training, though it made no update now
    assert listed(run.folder)["max_frames"] == 65
    wind(1_000)
    again = start(of=run, frames=0, reward=1_000, play=play, spoil=begin)
    seconds = after(64, 45) + after(1) + after(10, 10)
    assert f"avg_reward 17 after 75 frames and {seconds:.0f} seconds" in again.out
    assert "training begins at frame 65\n" in again.out
    assert f"solved in 0:00:{int(seconds)}, after 7 episodes, 75 frames" in again.out
    check("outcome/seconds", {0: seconds})
    check("outcome/reached_minutes", {0: seconds / 60})
    check("outcome/fps", {0: 54 / (seconds - after(20) - after(1))})


def test_what_a_checkpoint_counts_is_on_the_disk_before_it_replaces_another(start, monkeypatch):
    synced, seen, flushed, fsync, flush = {}, [], [], os.fsync, SummaryWriter.flush

    def note(descriptor: int) -> None:
        fsync(descriptor)
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced[file.name] = os.fstat(descriptor).st_size
        if file.name == "latest.pt.tmp":
            assert flushed  # so that no point still waits to be written
            flushed.clear()
            new = read_checkpoint(file)["progress"]
            assert new["events"].items() <= synced.items()
            assert len(curve(file.parent.parent, "episodes/reward")) == new["episodes"]
            others = map(read_checkpoint, sorted(file.parent.glob("[lp]*.pt")))
            seen.append([new["frames"], *(old["progress"]["frames"] for old in others)])

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(SummaryWriter, "flush", lambda writer: flushed.append(flush(writer)))
    start(frames=45)
    assert seen == [[29], [39, 29], [45, 39, 29]]  # the new one, latest.pt and previous.pt


def test_a_resumed_run_logs_each_point_once_and_leaves_a_shortened_file(start, monkeypatch):
    """Its clock is behind that of the machine where it began, and TensorBoard sorts by time."""
    now, with_curves = time.time, "events.out.tfevents.[1-9]*"
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + 1_000)
        run = start(frames=45)
    (file,) = run.folder.glob(with_curves)
    for every in ("0", "10"):  # the first part saves nothing
        assert start("--checkpoint-every", every, of=run, frames=65).code == 0
        kept = read_checkpoint(run.folder / "checkpoints" / "latest.pt")["progress"]["frames"]
        assert kept == (65 if int(every) else 45)
    seconds = [file.name.split(".")[3] for file in run.folder.glob(with_curves)]
    assert len(seconds) == len({*seconds}) == 2
    points = [point[:2] for point in curves(run.folder)]
    assert len(points) == len({*points})
    assert [step for tag, step in points if tag == "episodes/reward"] == [1, 2, 3, 4, 5, 6]
    file.write_bytes(shorter := file.read_bytes()[:-100])
    assert start(of=run, frames=75).code == 0
    assert file.read_bytes() == shorter


def test_an_older_checkpoint_takes_the_place_of_a_damaged_one(start):
    run = start(frames=45)
    contents = {file: file.read_bytes() for file in run.checkpoints()}
    for damaged in (
        lambda content: b"",
        lambda content: content[:-10_000],
        lambda content: content[:400_000] + bytes(65_536) + content[465_536:],
    ):
        for file, content in contents.items():
            file.write_bytes(damaged(content))
        before = everything(run.folder)
        again = start(of=run, frames=45)
        assert again.code == 2
        assert "latest.pt is damaged" in one_line(again.error)
        assert everything(run.folder) == before

    file.write_bytes(content)  # of previous.pt, the last one
    again = start(of=run, frames=45)
    assert again.code == 0, again.error
    assert "resumed after 39 frames, 20 updates" in again.out
    assert "previous.pt takes its place" in again.out
    assert re.search("best.pt is damaged.*; the next best agent takes its place\n", again.out)
    updates = [read_checkpoint(file)["progress"]["iteration"] for file in again.checkpoints()]
    assert updates == [25, 25, 20]  # the damaged one is none of them


def test_a_run_that_cannot_be_resumed_keeps_its_curves_and_settings(start):
    run = start("--checkpoint-every", "200", frames=250)
    told = lambda: (curves(run.folder), listed(run.folder))  # noqa: E731
    whole = told()
    assert ("outcome/frames", 0, 250.0) in whole[0]
    again = start(of=run, frames=300, other=nn.Linear(1, 1))
    assert again.code == 1
    assert "has no other: resume the run with the earlier version" in one_line(again.error)
    assert "resume it with" not in again.out
    assert told() == whole
    file = run.folder / "checkpoints" / "latest.pt"
    kept = read_checkpoint(file)
    others = [{name: {}} for name in ("optimizer", "buffer", "speed")]
    others += [{"net": nn.Linear(5, 5).state_dict()}]
    others += [{"optimizer": {"state": {}, "param_groups": []}}]
    for other in others:
        write_checkpoint(file, kept | other)
        again = start(of=run, frames=300)
        assert again.code == 1
        assert "the earlier version that saved it" in one_line(again.error)
        assert told() == whole
    write_checkpoint(file, kept)
    assert start(of=run, frames=300).code == 0
    assert curve(run.folder, "outcome/frames") == [(0, 300.0)]


def test_what_cannot_be_resumed_is_refused(start, ends):
    run = start(frames=45)
    place = run.folder / "checkpoints"
    kept = read_checkpoint(place / "latest.pt")
    main = lambda: launch(None, ReplayOptions, "")  # noqa: E731

    def refused(*flags: object, script: str = "tiny.py", folder: Path = run.folder) -> str:
        before = everything(run.folder)
        again = ends(main, script, "--resume", folder, *flags)
        assert (again.code, again.out) == (2, "")
        assert everything(run.folder) == before
        return one_line(again.error)

    nowhere = ends(main, "tiny.py", "--run-dir", "/proc/nothing")
    assert (nowhere.code, "--run-dir: " in one_line(nowhere.error)) == (2, True)
    assert "is a run of tiny.py" in refused(script="other.py")
    assert "--run-dir: a resumed run stays in its folder" in refused("--run-dir", "elsewhere")
    assert "--learning-rate" in refused("--learning-rate", "1e-3")
    assert "has already played 45 frames" in refused("--max-frames", "45")
    assert "is no checkpoint, and" in refused(folder=place)
    runs = [run.folder, *(Path(f"{run.folder}-{number}") for number in range(2, 8))]
    for age, other in enumerate(runs):
        (other / "checkpoints").mkdir(parents=True, exist_ok=True)
        os.utime(other / "checkpoints", (0, 1_000 - age))
    (place.parent.parent / "other-pong" / "checkpoints").mkdir(parents=True)  # another rung's
    several = ends(main, "tiny.py", "--resume", place.parent.parent)
    assert (several.code, several.out) == (2, "")
    assert several.error.splitlines()[1:] == [f"  {other}" for other in runs[:5]]  # the newest
    agent = kept | {"settings": {"script": "tiny"}}
    changed = read_checkpoint(place / "latest.pt")
    changed["settings"]["hyperparameters"]["dropout"] = 0.5
    (place / "previous.pt").unlink()
    for foreign, message in (
        (changed, "no setting dropout: resume "),
        (agent, "is an agent without its run"),
        ({"model": torch.zeros(2)}, "latest.pt is not a checkpoint of this project"),
        ({"settings": Path("/")}, "latest.pt is damaged, or not a checkpoint"),  # it has code
    ):
        write_checkpoint(place / "latest.pt", foreign)
        assert message in refused()


def test_a_run_may_move_to_another_device(start):
    run = start(frames=45)
    place = run.folder / "checkpoints" / "latest.pt"
    kept = read_checkpoint(place)
    kept["settings"]["hyperparameters"] |= {"device": "cuda:98", "cuda": True}
    kept["progress"]["device_random"] = torch.zeros(16, dtype=torch.uint8)
    write_checkpoint(place, kept)
    refused = start(of=run, frames=80)
    assert (refused.code, "--device cpu resumes" in one_line(refused.error)) == (2, True)
    again = start("--device", "cpu", "--run-dir", run.folder.parent, of=run, frames=80)
    assert (again.code, "moved from cuda:98 to cpu" in again.out) == (0, True)
    assert "moved" not in start(of=run, frames=100).out


def test_a_resumed_run_reaches_another_goal_anew(start):
    run = start("--stop-reward", "0.05", experience=nn.Linear(1, 1))
    kept = [{"buffer", "experience"} & read_checkpoint(file).keys() for file in run.checkpoints()]
    assert [*map(len, kept)] == [0, 2, 2, 0]  # an agent needs neither
    assert curve(run.folder, "outcome/reached_frames") == [(0, 30.0)]
    (run.folder / "checkpoints" / "solved.pt").write_bytes(b"")  # damaged, and not needed
    again = start("--stop-reward", "0.15", of=run)
    assert "solved.pt is damaged" in again.out
    assert "was reached" not in again.out  # it had no limit
    assert "avg_reward 0.15 after 70 frames" in again.out
    kept = [file.stem for file in again.checkpoints()]
    assert kept == ["best", "latest", "previous", "solved-0.05", "solved"]
    for goal in ((), ("--stop-reward", "0.15"), ("--stop-reward", "0.1")):
        error = one_line(start(*goal, of=run).error)
        assert "solved: watch it with play.py, or train on with a --stop-reward above 0.15" in error
    (place := run.folder / "checkpoints").joinpath("previous.pt").replace(place / "latest.pt")
    assert start(of=run, reward=1).code == 0  # the latest checkpoint of the solved run was lost
    assert start("--stop-reward", "1000", of=run, frames=90).code == 0
    assert "outcome/reached_frames" not in {tag for tag, *_ in curves(run.folder)}


def test_a_run_is_resumed_while_its_buffer_fills(start):
    run = start(frames=15)
    assert [file.stem for file in run.checkpoints()] == ["latest"]  # the best agent has learned
    again = start(of=run, frames=45, reward=7)
    assert again.code == 0, again.error
    assert "nan" not in run.out  # it has no FPS
    assert "training begins at frame 20; filling ran at " in again.out
    *_, latest, _ = again.checkpoints()
    kept = read_checkpoint(latest)
    assert len(kept["buffer"]["actions"]) == 45
    assert kept["progress"]["first_reward"] == 0  # where the bar begins


def test_hparams_follow_what_changes_when_a_run_is_resumed(start):
    left_out = lambda net: fallbacks.append("the update: no g++")  # noqa: E731
    run = start("--threads", "3", "--amp", frames=45, spoil=left_out)
    assert re.search("tiny in bfloat16 autocast on device cpu.* threads 3,", run.out, re.DOTALL)
    found = listed(run.folder)
    assert (found["script"], found["threads"], found["max_frames"]) == ("tiny", 3, 45)
    assert (found["left_out"], found["torch"]) == ("the update: no g++", torch.__version__)
    assert start("--seed", "3", of=run, frames=60).code == 2
    assert listed(run.folder) == found
    again = start(of=run, frames=60)
    assert (again.code, "was reached" in again.out) == (0, False)
    changed = {"max_frames": 60, "resume": str(run.folder), "run_dir": "runs", "left_out": ""}
    assert listed(run.folder) == found | changed


def test_a_run_that_is_alive_cannot_be_resumed(start):
    def resume(engine: Engine, run: Run) -> None:
        assert run.checkpoint is None  # its buffer would take the memory twice
        assert run.tensorboard.writer.flush_secs <= 5  # new points are shown within seconds
        run.tensorboard.writer.flush()  # else its thread may write at any time
        before = everything(run.folder)
        with pytest.raises(CheckpointError, match="is in use"):
            open_folder(replace(run.params, resume=str(run.folder)), "tiny")
        assert everything(run.folder) == before
        tried.append(run.folder)

    tried: list[Path] = []
    run = start(frames=50, every=resume)
    again = start(of=run, frames=80, every=resume)
    assert (run.code, again.code) == (0, 0), again.error
    assert len(tried) == 6 + 6


def test_a_file_system_without_locks_is_told_and_used(start, monkeypatch):
    refuse = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr(FileLock, "acquire", refuse)
    run = start(frames=45)
    assert (run.code, run.error) == (0, "")
    assert run.out.startswith("this file system has no locks: do not resume a run before it has")
    refuse.side_effect = OSError(errno.EIO, "Input/output error")
    again = start(of=run)
    assert (again.code, "--resume: [Errno 5]" in one_line(again.error)) == (2, True)


def test_only_cores_that_others_use_are_told_and_left_to_them(start, monkeypatch):
    monkeypatch.setattr("lib.training.launch.cores", lambda: 4)
    for free, most, flags, threads, told in (
        (4, 4, (), 4, False),
        (4, 2, (), 2, False),  # OMP_NUM_THREADS
        (3, 4, (), 3, True),
        (1, 4, ("--threads", "2"), 2, False),
    ):
        monkeypatch.setattr(torch, "get_num_threads", lambda most=most: most)
        monkeypatch.setattr("lib.training.launch.free_cores", lambda free=free: free)
        monkeypatch.setattr(torch, "set_num_threads", Mock())
        run = start(*flags, frames=25)
        assert torch.set_num_threads.call_args_list[0].args == (threads,)
        assert (f"{free} of 4 cores are free" in run.out) == told


@pytest.mark.parametrize("units", [True, False])
def test_a_processor_without_bfloat16_units_tells_that_amp_is_slower(units, start, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": units})
    assert ("has no units for bfloat16" in start("--amp", frames=25).out) == (not units)


def test_a_run_leaves_a_notebook_as_it_was(start, monkeypatch):
    """Standard output may only have ``write`` there, and a cell may run in a thread."""
    matmul = torch.backends.cuda.matmul

    def state() -> list[object]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)]
        switches = [torch.get_num_threads(), torch.full((), 1e-39).mul(1).item(), matmul.allow_tf32]
        heard = logging.getLogger("ignite.engine.engine.Engine").isEnabledFor(logging.ERROR)
        return [*handlers, *switches, threading.excepthook, heard]

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=(told := []).append))
    torch.set_num_threads(2)
    before, runs, compiled = state(), list[Ended](), list[object]()

    def switch(*_: object) -> None:
        torch.compiler.set_stance("force_eager")
        matmul.allow_tf32 = True  # as with a GPU

    run = start("--threads", "1", frames=45, every=switch)
    assert (run.code, state()) == (0, before)
    backend = lambda graph, _: compiled.append(graph) or graph  # noqa: E731
    torch.compile(lambda x: -x, backend=backend)(torch.ones(1))
    assert compiled
    in_a_thread(lambda: runs.append(start(of=run, frames=60)))
    assert (runs[0].code, state()) == (0, before)
    assert "".join(told).count("frame limit reached") == 2


@pytest.mark.parametrize(("options", "of_four"), [(SpeedrunOptions, 4), (SharedCoresOptions, 2)])
def test_threads_are_the_free_cores_or_as_many_as_asked_for(options, of_four):
    assert [options().torch_threads(free) for free in (4, 1)] == [of_four, 1]
    assert options(cuda=True).torch_threads(4) == 1
    assert [options(threads=3, cuda=cuda).torch_threads(1) for cuda in (False, True)] == [3, 3]
