"""Where one iteration of a rung goes, and what bounds the rung on this machine.

The rung itself is run in this process with a stopwatch around the functions it calls, then
without sampling, without the optimizer step and without any update, and once more, shortly,
under torch.profiler. For a rung with a player process, the player's own loop is timed, too.
"""

import argparse
import contextlib
import functools
import importlib
import io
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType
from typing import Any
from unittest import mock

import ale_py
import matplotlib
import torch
from ignite.engine import Engine, Events
from ignite.handlers import TensorboardLogger
from torch.profiler import ProfilerActivity, profile, record_function
from tqdm import tqdm

from benchmarks.report import machine_line, write_table
from lib import atari_wrappers, player
from lib.arguments import Hyperparams
from lib.dqn_model import DQN
from lib.events import PlayEvents
from lib.experience import EpsilonGreedyAgent, Transition
from lib.replay_buffer import ReplayBuffer
from lib.run import Failure, Run, prepare_torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parent.parent
WARM_UP = 20  # updates before anything is timed
PROFILED = 10  # updates in the trace: enough to look at, small enough to open
TOP_OPERATORS = 10
REST = "rest (ignite, Python)"
WAITING = "waiting for the player"

# Part of an iteration -> the functions that do it, as (class, method). What one of them calls
# is charged to the inner part alone. A rung uses some of them.
PARTS: dict[str, list[tuple[type, str]]] = {
    "environment": [
        (ale_py.env.AtariEnv, "step"),
        (ale_py.env.AtariEnv, "reset"),
        (ale_py.AtariVectorEnv, "step"),
    ],
    "wrappers": [(atari_wrappers.FrameStack, "step"), (atari_wrappers.FrameStack, "reset")],
    "action selection": [(EpsilonGreedyAgent, "__call__")],
    WAITING: [(Connection, "poll")],
    "receiving": [(Connection, "recv")],
    "insert": [(ReplayBuffer, "extend")],
    "sample": [(ReplayBuffer, "sample")],
    "forward": [(DQN, "forward")],
    "backward": [(torch.Tensor, "backward")],
    "optimizer": [(torch.optim.Adam, "step"), (torch.optim.Adam, "zero_grad")],
    "logging and handlers": [(Engine, "_fire_event")],
}
PLAYING = ("environment", "wrappers", "action selection")
UPDATING = ("sample", "forward", "backward", "optimizer")
ORDER = [*PARTS, "sending", REST]

WHAT_IFS = ("as it is", "without sampling", "without optimizer step", "without any update")

# What bounds a rung -> the rungs that attack it, in the order of the ladder, and how.
REMEDIES: dict[str, list[tuple[str, str]]] = {
    "updating": [
        ("02_n_envs", "makes one larger update for the frames of several environments"),
        ("03_parallel", "plays in a process of its own while this one updates"),
        ("04_new_wrappers_parallel", "also halves the pixels of an update"),
    ],
    "playing": [
        ("03_parallel", "plays in a process of its own"),
        ("04_new_wrappers_n_env", "makes preprocessing cheaper"),
        ("04_new_wrappers_parallel", "makes preprocessing cheaper, in a process of its own"),
    ],
    WAITING: [("04_new_wrappers_parallel", "makes the player's preprocessing cheaper")],
    "overhead": [
        ("02_n_envs", "shares it among the frames of several environments"),
        ("03_parallel", "shares it among the frames of a larger update"),
    ],
}


@dataclass
class Measured:
    """One run of a rung, after warming up."""

    seconds: float = 0.0
    frames: int = 0
    updates: int = 0
    filling_fps: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)  # seconds
    player: tuple[Callable[..., None], tuple[Any, ...]] | None = None  # its function and arguments

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.frames / self.seconds


@dataclass
class Breakdown:
    """All that was found out about a rung; times in milliseconds per frame."""

    rung: str
    trainer: dict[str, float]
    player: dict[str, float]  # empty if the rung has none
    frames_per_update: float
    what_ifs: dict[str, list[float]]  # FPS of every repeat
    filling_fps: float
    operators: list[list[str]]
    verdict: str = ""


class Clock:
    """A stopwatch whose parts may nest: time goes to the innermost one alone."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.restart()

    def restart(self) -> None:
        """Forget what was measured; parts that are being measured go on."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.stack = [REST]
        self.since = perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge the time within to a part."""
        self._charge()
        self.stack.append(name)
        try:
            yield
        finally:
            self._charge()
            if len(self.stack) > 1:  # restarted in between
                self.stack.pop()

    def _charge(self) -> None:
        if self.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(self.device)  # the GPU's work belongs to who asked for it
        now = perf_counter()
        self.seconds[self.stack[-1]] += now - self.since
        self.since = now


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument("rungs", nargs="+", metavar="RUNG", help="such as 01_baseline")
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    parser.add_argument(
        "--updates", type=int, default=200, help="updates that are timed (default: 200)"
    )
    parser.add_argument(
        "--replay-initial", type=int, default=1_000,
        help="transitions to play before training begins (default: 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--epsilon", type=float, default=0.02,
        help="share of random actions; a run spends most of its time at 0.02 (default)",
    )  # fmt: skip
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of every what-if rate (default: 3)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/benchmarks"), help="folder of tables and figure"
    )


def run(args: argparse.Namespace) -> int:
    """Take the rungs apart, write tables, figure and traces."""
    if min(args.updates, args.repeats) < 1:
        print("breakdown: error: --updates and --repeats must be positive", file=sys.stderr)
        return 2
    rungs = [Path(name).stem for name in args.rungs]
    for rung in rungs:
        if not (ROOT / f"{rung}.py").exists():
            print(f"breakdown: error: there is no rung {rung}.py", file=sys.stderr)
            return 2
    settings = {
        "cuda": args.cuda,
        "replay_initial": args.replay_initial,
        "epsilon_start": args.epsilon,
        "epsilon_final": args.epsilon,
        "stop_reward": 1e9,
    }
    if message := Hyperparams(**settings).problem():
        print(f"breakdown: error: {message}", file=sys.stderr)
        return 2
    prepare_torch(seed=0)
    args.out.mkdir(parents=True, exist_ok=True)
    found = []
    try:
        for rung in rungs:
            found.append(take_apart(rung, settings, args.updates, args.repeats, args.out))
            print(found[-1].verdict, flush=True)
    except Failure as failure:
        print(f"breakdown: failed: {failure}", file=sys.stderr)
        return 1
    write(found, args)
    return 0


def take_apart(
    rung: str, settings: dict[str, Any], updates: int, repeats: int, out: Path
) -> Breakdown:
    """Everything about one rung."""
    module = load(rung)
    device = torch.device("cuda" if settings["cuda"] else "cpu")
    bar = tqdm(total=repeats * len(WHAT_IFS) + 2, desc=rung, unit="run", disable=None)

    what_ifs: dict[str, list[float]] = {name: [] for name in WHAT_IFS}
    for _ in range(repeats):
        for name in WHAT_IFS:
            with without(name, module):
                plain = run_rung(module, settings, updates)
            what_ifs[name].append(plain.fps)
            bar.update()

    clock = Clock(device)
    with timed_parts(clock.part):
        timed = run_rung(module, settings, updates, begin=clock.restart)
        timed.parts = dict(clock.seconds)
    player_parts = time_player(timed, clock, updates) if timed.player else {}
    bar.update()

    operators = profile_rung(module, settings, out / f"trace-{rung}{_suffix(settings['cuda'])}")
    bar.update()
    bar.close()

    to_ms = 1e3 / timed.frames
    breakdown = Breakdown(
        rung=rung,
        trainer={part: timed.parts[part] * to_ms for part in ORDER if part in timed.parts},
        player=player_parts,
        frames_per_update=timed.frames / timed.updates,
        what_ifs=what_ifs,
        filling_fps=timed.filling_fps,
        operators=operators,
    )
    breakdown.verdict = verdict(breakdown)
    return breakdown


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

    Args:
        module: the rung.
        settings: what differs from its defaults.
        updates: how many are measured.
        begin: called when measuring begins.
        end: called when it ends.
    """
    options = getattr(module, "Options", Hyperparams)
    measured = Measured()
    filling: dict[str, float] = {}
    device = torch.device("cuda" if settings["cuda"] else "cpu")
    attach_handlers = module.attach_handlers

    def attach(engine: Engine, run: Run, epsilon: Any) -> None:
        attach_handlers(engine, run, epsilon)

        # Not the rung's own rate of filling: that one includes the start of a player.
        @engine.on(PlayEvents.FRAMES_PLAYED)
        def first_frames(engine: Engine) -> None:
            if not filling:
                filling.update(frames=engine.state.frames, begin=perf_counter())

        @engine.on(Events.ITERATION_STARTED(once=1))
        def filled(engine: Engine) -> None:
            frames = engine.state.frames - filling["frames"]
            measured.filling_fps = frames / (perf_counter() - filling["begin"])

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
            measured.updates = updates
            engine.terminate()

    def remember(self: player.Player, play: Any, args: Any, *rest: Any, **named: Any) -> None:
        measured.player = (play, args)
        make_player(self, play, args, *rest, **named)

    make_player = player.Player.__init__
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))  # the bar is no terminal's
        stack.enter_context(mock.patch.object(module, "attach_handlers", attach))
        stack.enter_context(mock.patch.object(player.Player, "__init__", remember))
        tensorboard = stack.enter_context(TensorboardLogger(folder))
        hyperparams = options(**settings)
        rung = Run(hyperparams, device, folder, tensorboard)
        try:
            module.train(hyperparams, rung)
        finally:
            for number, handler in handlers.items():  # the rung has put its own
                signal.signal(number, handler)
    if rung.signal is not None:
        raise KeyboardInterrupt
    if not measured.updates:
        raise Failure(f"{module.__name__} ended before {WARM_UP + updates} updates")
    return measured


def now(device: torch.device) -> float:
    """The time, once the GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


@contextmanager
def timed_parts(part: Callable[[str], AbstractContextManager[Any]]) -> Iterator[None]:
    """Put ``part(name)`` around every function of ``PARTS``."""
    acting = [False]

    def wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            # The forward pass that chooses an action belongs to choosing; compiled code is
            # left alone.
            if (name == "forward" and acting[0]) or torch.compiler.is_compiling():
                return function(*args, **named)
            if name == "action selection":
                acting[0] = True
            try:
                with part(name):
                    return function(*args, **named)
            finally:
                if name == "action selection":
                    acting[0] = False

        return call

    with ExitStack() as stack:
        for name, functions in PARTS.items():
            for owner, method in functions:
                function = wrapped(name, getattr(owner, method))
                stack.enter_context(mock.patch.object(owner, method, function))
        yield


@contextmanager
def without(what: str, module: ModuleType) -> Iterator[None]:
    """Leave out what a what-if rate does without."""
    sample = ReplayBuffer.sample
    batches: dict[int, Any] = {}

    def same_batch(self: ReplayBuffer, batch_size: int) -> Any:
        if batch_size not in batches:
            batches[batch_size] = sample(self, batch_size)
        return batches[batch_size]

    def idle_engine(process: Callable[..., Any]) -> Engine:
        nothing = torch.zeros(())
        return Engine(lambda engine, batch: nothing)

    patches = {
        "as it is": contextlib.nullcontext(),
        "without sampling": mock.patch.object(ReplayBuffer, "sample", same_batch),
        "without optimizer step": mock.patch.object(torch.optim.Adam, "step", return_value=None),
        "without any update": mock.patch.object(module, "Engine", idle_engine),
    }
    with patches[what]:
        yield


class _Enough(Exception):  # noqa: N818, it is no error
    """The player has played what was to be timed."""


class LocalQueue:
    """What a player that is timed in this process puts its experience on.

    Args:
        part: times the sending, of which only the pickling is done.
        begin: called when measuring begins.
        frames: that are measured.
    """

    def __init__(
        self,
        part: Callable[[str], AbstractContextManager[Any]],
        begin: Callable[[], None],
        frames: int,
    ) -> None:
        self._part, self._begin, self._frames = part, begin, frames
        self._put = 0

    def put(self, transition: Transition) -> None:
        """Pickle a transition."""
        with self._part("sending"):
            ForkingPickler.dumps(transition)
        self._put += 1
        if self._put == WARM_UP:
            self._begin()
        if self._put == WARM_UP + self._frames:
            raise _Enough


def time_player(measured: Measured, clock: Clock, frames: int) -> dict[str, float]:
    """Play in this process, by itself and with one thread as a player does; ms per frame."""
    assert measured.player
    play, args = measured.player
    queue = LocalQueue(clock.part, clock.restart, frames)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with timed_parts(clock.part), contextlib.suppress(_Enough):
            play(queue, *args)
    finally:
        torch.set_num_threads(threads)
    return {
        part: clock.seconds[part] / frames * 1e3 for part in ORDER if part in clock.seconds
    }  # fmt: skip


def profile_rung(module: ModuleType, settings: dict[str, Any], folder: Path) -> list[list[str]]:
    """Write a trace for TensorBoard or Perfetto, return the operators that take longest."""
    activities = [ProfilerActivity.CPU]
    if settings["cuda"]:
        activities.append(ProfilerActivity.CUDA)
    handler = torch.profiler.tensorboard_trace_handler(str(folder), use_gzip=True)
    profiler = profile(activities=activities, on_trace_ready=handler)
    with timed_parts(record_function):
        measured = run_rung(module, settings, PROFILED, profiler.start, profiler.stop)
    gpu = settings["cuda"]

    def own_time(event: Any) -> float:
        return event.self_device_time_total if gpu else event.self_cpu_time_total

    events = [event for event in profiler.key_averages() if event.key not in PARTS]
    events.sort(key=own_time, reverse=True)
    return [
        [event.key, f"{own_time(event) / measured.updates / 1e3:.3f}",
         f"{event.count / measured.updates:.1f}"]
        for event in events[:TOP_OPERATORS]
    ]  # fmt: skip


def verdict(breakdown: Breakdown) -> str:
    """One sentence: what bounds this rung here, and which rung attacks it."""
    parts = breakdown.trainer
    total = sum(parts.values())
    shares = {
        "playing": sum(parts.get(part, 0.0) for part in PLAYING) / total,
        "updating": sum(parts.get(part, 0.0) for part in UPDATING) / total,
        WAITING: parts.get(WAITING, 0.0) / total,
    }
    shares["overhead"] = 1 - sum(shares.values())
    bound = max(shares, key=lambda kind: shares[kind])
    largest = max((part for part in parts if part in _members(bound)), key=lambda part: parts[part])
    remedy = next(
        (f"{name}.py {how}" for name, how in REMEDIES[bound] if name > breakdown.rung),
        "no further rung of the book attacks that; --amp, or --cuda where there is a GPU, do"
        if bound == "updating"
        else "no further rung of the book attacks that",
    )
    detail = "" if bound == WAITING else f", most of it {largest}"
    return (
        f"{breakdown.rung} is bound by {bound} here "
        f"({shares[bound]:.0%} of {total:.2f} ms per frame{detail}): {remedy}."
    )


def _members(bound: str) -> Sequence[str]:
    if bound == "overhead":
        return [part for part in ORDER if part not in (*PLAYING, *UPDATING, WAITING)]
    return {"playing": PLAYING, "updating": UPDATING, WAITING: (WAITING,)}[bound]


def _suffix(cuda: bool) -> str:
    return "-cuda" if cuda else ""


def write(found: Sequence[Breakdown], args: argparse.Namespace) -> None:
    """Tables, figure, and a word on where the traces are."""
    path = args.out / f"breakdown{_suffix(args.cuda)}"
    where = "GPU" if args.cuda else "CPU"
    settings = (
        f"seed 0, {args.updates} updates after {WARM_UP} to warm up, epsilon {args.epsilon:g}, "
        f"{args.replay_initial:,} transitions in the replay buffer at the start"
    )
    machine = f"machine: {machine_line()}"
    rows = [
        [one.rung, process, part, f"{ms:.3f}", f"{ms * one.frames_per_update:.3f}",
         f"{ms / sum(parts.values()):.1%}"]
        for one in found
        for process, parts in (("trainer", one.trainer), ("player, alone", one.player))
        for part, ms in parts.items()
    ]  # fmt: skip
    write_table(
        path,
        f"Where an iteration goes, on the {where}",
        ["rung", "process", "part", "ms per frame", "ms per update", "share"],
        rows,
        [
            machine,
            settings,
            "a part is what its functions take without the parts they call; what is left is "
            f"called {REST!r}",
            *(["after every part the GPU is waited for, so nothing overlaps here; the rates "
               "beside this table are without that"] if args.cuda else []),
            "a player is timed by itself in the trainer's place; of sending, only the pickling",
            *(one.verdict for one in found),
        ],
    )  # fmt: skip
    write_table(
        args.out / f"breakdown-what-if{_suffix(args.cuda)}",
        f"Frames per second without one thing, on the {where}",
        ["rung", "what if", "FPS (median)", "spread", "change"],
        [
            [one.rung, name, f"{median(fps):,.1f}", f"{min(fps):,.1f} to {max(fps):,.1f}",
             f"{median(fps) / median(one.what_ifs['as it is']) - 1:+.0%}"]
            for one in found
            for name, fps in [*one.what_ifs.items(), ("filling the buffer", [one.filling_fps])]
        ],
        [
            machine,
            f"{settings}; {args.repeats} runs of each, in turn, one of filling the buffer",
            "without sampling: one batch is used again and again; without any update: the batch "
            "is sampled and not learned from",
        ],
    )  # fmt: skip
    write_table(
        args.out / f"breakdown-operators{_suffix(args.cuda)}",
        f"The operators that take longest in the trainer, on the {where}",
        ["rung", "operator", "ms per update", "calls per update"],
        [[one.rung, *operator] for one in found for operator in one.operators],
        [machine, f"{settings}; {PROFILED} updates under torch.profiler, which slows them"],
    )
    draw(found, Path(f"{path}.png"), f"Where a frame's time goes, on the {where}")
    traces = ", ".join(f"trace-{one.rung}{_suffix(args.cuda)}/" for one in found)
    print(
        f"wrote {path}.md, .csv and .png, the what-if rates and the operators; "
        f"traces for TensorBoard or ui.perfetto.dev in {args.out}: {traces}"
    )


def draw(found: Sequence[Breakdown], path: Path, title: str) -> None:
    """Stacked bars: the milliseconds of a frame, one bar per process of a rung."""
    bars = [
        (name, parts)
        for one in found
        for name, parts in ((one.rung, one.trainer), (f"{one.rung}\nplayer, alone", one.player))
        if parts
    ]
    figure, axes = plt.subplots(figsize=(10, 1.8 + 0.7 * len(bars)), layout="constrained")
    left = [0.0] * len(bars)
    for i, part in enumerate(ORDER):
        widths = [parts.get(part, 0.0) for _, parts in bars]
        if any(widths):
            hatch = "//" if i >= 10 else None  # there are ten colours
            axes.barh(
                range(len(bars)),
                widths,
                left=left,
                label=part,
                color=f"C{i % 10}",
                hatch=hatch,
                edgecolor="white",
                linewidth=0.3,
            )
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds per frame")
    axes.set_title(title)
    axes.legend(bbox_to_anchor=(1.01, 1), loc="upper left", fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
