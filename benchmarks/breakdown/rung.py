"""A rung run in this process, as it is, without something, or in the player's place."""

import contextlib
import functools
import importlib
import io
import itertools
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from ignite.engine import Engine, Events
from ignite.handlers import TensorboardLogger
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks import Failed
from benchmarks.breakdown.stopwatch import PARTS, SENDING, Clock, timed_parts
from benchmarks.runner import ROOT
from benchmarks.timing import now
from lib.games.experience import Transition
from lib.learning.replay_buffer import ReplayBuffer
from lib.players import player
from lib.running.events import PlayEvents
from lib.running.options import ReplayOptions
from lib.running.run import Failure, Run

WARM_UP = 20  # updates before anything is timed
PROFILED = 10  # updates in the trace: enough to look at, small enough to open
TOP_OPERATORS = 10
WHAT_IFS = ("as it is", "without sampling", "without optimizer step", "without any update")


@dataclass
class Measured:
    """One run of a rung, after warming up."""

    seconds: float = 0.0
    frames: int = 0
    filling_fps: float = 0.0
    player: tuple[Callable[..., None], tuple[Any, ...]] | None = None  # its function and arguments

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.frames / self.seconds


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
    options = getattr(module, "Options", ReplayOptions)(**settings, checkpoint_every=0)
    device = torch.device("cuda" if options.cuda else "cpu")
    measured = Measured()
    attach_handlers, make_player = module.attach_handlers, player.Player.__init__

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
            measured.seconds -= now(device)

        @engine.on(Events.ITERATION_COMPLETED(once=WARM_UP + updates))
        def stop(engine: Engine) -> None:
            measured.seconds += now(device)
            end()
            measured.frames += engine.state.frames
            engine.terminate()

    def remember(self: player.Player, play: Any, args: Any, *rest: Any, **named: Any) -> None:
        measured.player = (play, args)
        make_player(self, play, args, *rest, **named)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),  # the bar is no terminal's
        mock.patch.object(module, "attach_handlers", attach),
        mock.patch.object(player.Player, "__init__", remember),
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
    if measured.seconds <= 0:
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


class _Enough(Exception):  # noqa: N818, it is no error
    """The player has played what was to be timed."""


def time_player(measured: Measured, clock: Clock, frames: int) -> dict[str, float]:
    """Play in this process, by itself and with one thread as a player does; ms per frame."""
    assert measured.player
    play, args = measured.player
    sent = itertools.count(1)

    def put(transition: Transition) -> None:
        with clock.part(SENDING):  # of which this is only the pickling
            ForkingPickler.dumps(transition)
        if (number := next(sent)) == WARM_UP:
            clock.restart()
        elif number == WARM_UP + frames:
            raise _Enough

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with timed_parts(clock.part), contextlib.suppress(_Enough):
            play(SimpleNamespace(put=put), *args)
    finally:
        torch.set_num_threads(threads)
    return clock.milliseconds(frames)


def profile_rung(module: ModuleType, settings: dict[str, Any], folder: Path) -> list[list[str]]:
    """Write a trace for TensorBoard or Perfetto; the operators that take longest."""
    gpu = settings["cuda"]
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * gpu]
    handler = torch.profiler.tensorboard_trace_handler(str(folder), use_gzip=True)
    profiler = profile(activities=activities, on_trace_ready=handler)
    with timed_parts(record_function):
        run_rung(module, settings, PROFILED, profiler.start, profiler.stop)
    return top_operators(profiler.key_averages(), gpu)


def top_operators(events: Iterable[Any], gpu: bool) -> list[list[str]]:
    """The operators that take longest: name, milliseconds and calls per update.

    On a GPU a kernel is an event of its own, and its time is also that of the operator that
    launched it: the operators alone are counted.
    """

    def own_time(event: Any) -> float:  # microseconds
        return event.self_device_time_total if gpu else event.self_cpu_time_total

    operators = [
        event for event in events if event.key not in PARTS and event.device_type == DeviceType.CPU
    ]
    operators.sort(key=own_time, reverse=True)
    return [
        [event.key, f"{own_time(event) / PROFILED / 1e3:.3f}", f"{event.count / PROFILED:.1f}"]
        for event in operators[:TOP_OPERATORS]
    ]
