"""A rung run in this process, as it is or without something; its player may be timed, too."""

import contextlib
import functools
import importlib
import io
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from ignite.engine import Engine, Events
from ignite.handlers import TensorboardLogger
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import Failed
from benchmarks.breakdown.stopwatch import PARTS, REST, Clock, Parts, Span, timed_parts
from benchmarks.runner import ROOT
from benchmarks.timing import now
from lib.learning.replay_buffer import ReplayBuffer
from lib.players.player import ExperienceQueue, Player
from lib.running.events import PlayEvents
from lib.running.options import ReplayOptions
from lib.running.run import Failure, Run

WARM_UP = 20  # updates before anything is timed
PROFILED = 10  # updates in the trace: enough to look at, small enough to open
TOP_OPERATORS = 20  # of the table, the parts of an iteration among them
WHAT_IFS = ("as it is", "without sampling", "without optimizer step", "without any update")


@dataclass
class Measured:
    """One run of a rung, after warming up."""

    begin: float = 0.0  # seconds, of a clock that all processes have in common
    end: float = 0.0
    frames: int = 0
    filling_fps: float = 0.0

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.frames / (self.end - self.begin)

    def milliseconds(self, spans: Iterable[Span]) -> dict[str, float]:
        """What a process spent on each part while this was measured, per frame."""
        spent = dict.fromkeys([*PARTS, REST], 0.0)
        for part, begin, end in spans:
            spent[part] += max(min(end, self.end) - max(begin, self.begin), 0.0)
        return {part: time / self.frames * 1e3 for part, time in spent.items() if time}


def load(rung: str) -> ModuleType:
    """Import a rung under its own name, under which its player process will find it again."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(rung)


def run_rung(
    module: ModuleType,
    settings: dict[str, Any],
    updates: int,
    begin: Callable[[], None] = lambda: None,
    end: Callable[[], None] = lambda: None,
) -> Measured:
    """Run a rung for so many updates after warming up, without a word on the screen.

    The settings are those that differ from its defaults; ``begin`` and ``end`` are called when
    measuring begins and ends.
    """
    endless = {"stop_reward": 1e9, "checkpoint_every": 0}
    options = getattr(module, "Options", ReplayOptions)(**settings, **endless)
    device = torch.device("cuda" if options.cuda else "cpu")
    measured = Measured()
    attach_handlers = module.attach_handlers

    def attach(engine: Engine, *args: Any) -> None:
        attach_handlers(engine, *args)
        first: dict[str, float] = {}

        # Not the rung's own rate of filling: that one includes the start of a player.
        @engine.on(PlayEvents.FRAMES_PLAYED)
        def first_frames(engine: Engine) -> None:
            if not first:
                first.update(frames=engine.state.frames, time=now(device))

        @engine.on(Events.ITERATION_STARTED(once=1))
        def filled(engine: Engine) -> None:
            frames = engine.state.frames - first["frames"]
            measured.filling_fps = frames / (now(device) - first["time"])

        @engine.on(Events.ITERATION_COMPLETED(once=WARM_UP))
        def start(engine: Engine) -> None:
            measured.frames -= engine.state.frames
            begin()
            measured.begin = now(device)

        @engine.on(Events.ITERATION_COMPLETED(once=WARM_UP + updates))
        def stop(engine: Engine) -> None:
            measured.end = now(device)
            end()
            measured.frames += engine.state.frames
            engine.terminate()

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),  # the bar is no terminal's
        mock.patch.object(module, "attach_handlers", attach),
        TensorboardLogger(folder) as tensorboard,
    ):
        run = Run(options, device, Path(folder), tensorboard, module.__name__)
        try:
            module.train(options, run)
        except Failure as failure:
            raise Failed(f"{module.__name__}: {failure}") from None
        finally:
            for number, handler in handlers.items():  # the rung has put its own
                signal.signal(number, handler)
    if run.signal is not None:
        raise KeyboardInterrupt
    if not measured.end:
        raise Failed(f"{module.__name__} ended before {WARM_UP + updates} updates")
    return measured


def without(what: str, module: ModuleType, device: torch.device) -> AbstractContextManager[Any]:
    """Leave out what one of ``WHAT_IFS`` does without, of a rung that learns on the device."""
    sample = functools.cache(ReplayBuffer.sample)  # the same batch again and again
    loss = torch.zeros((), device=device)  # one on the CPU would be copied every time
    idle = Engine(lambda engine, batch: loss)
    patches: dict[str, AbstractContextManager[Any]] = {
        "as it is": nullcontext(),
        "without sampling": mock.patch.object(ReplayBuffer, "sample", sample),
        "without optimizer step": mock.patch.object(torch.optim.Adam, "step", return_value=None),
        "without any update": mock.patch.object(module, "Engine", return_value=idle),
    }
    return patches[what]


def count_operations(module: ModuleType, settings: dict[str, Any]) -> float:
    """Additions and multiplications per update, in the trainer's convolutions and products."""
    counter = FlopCounterMode(display=False)
    run_rung(module, settings, 1, counter.__enter__, lambda: counter.__exit__(None, None, None))
    return counter.get_total_flops()


class TimedPlay:
    """What a player does, with a stopwatch whose spans are written to a file in the end."""

    def __init__(self, play: Callable[..., None], parts: Parts, device: str, file: Path) -> None:
        self.play, self.parts, self.device, self.file = play, parts, device, file

    def __call__(self, queue: ExperienceQueue, *args: Any) -> None:
        """Play, in the player's process."""
        clock = Clock(self.device)
        try:
            with timed_parts(clock.part, self.parts):
                self.play(queue, *args)
        finally:
            self.file.write_bytes(pickle.dumps(clock.spans))


@contextmanager
def timed_player(spans: list[Span], parts: Parts = PARTS) -> Iterator[None]:
    """Put a stopwatch into the player's process, if the rung has one; its spans come at the end."""
    make_player = Player.__init__
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "spans")

        def make(self: Player, play: Any, *args: Any, device: str, **named: Any) -> None:
            play = TimedPlay(play, parts, device, file)
            make_player(self, play, *args, device=device, **named)

        with mock.patch.object(Player, "__init__", make):
            yield
        if file.exists():
            spans += pickle.loads(file.read_bytes())


def profile_rung(module: ModuleType, settings: dict[str, Any], folder: Path) -> str:
    """Write a trace for TensorBoard or Perfetto; returns torch's table of the longest operators."""
    gpu = settings["cuda"]
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * gpu]
    handler = torch.profiler.tensorboard_trace_handler(str(folder), use_gzip=True)
    profiler = profile(activities=activities, on_trace_ready=handler)
    with timed_parts(record_function):
        run_rung(module, settings, PROFILED, profiler.start, profiler.stop)
    sort_by = "self_device_time_total" if gpu else "self_cpu_time_total"
    return profiler.key_averages().table(sort_by, row_limit=TOP_OPERATORS)
