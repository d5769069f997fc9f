"""Run a rung under torch's profiler, with names for its functions.

    python -c "from benchmarks.profiled import main; main()" FOLDER UPDATES RUNG.py [flags]

``python -m benchmarks breakdown`` starts it. After a warm-up, UPDATES updates are timed and as many
are profiled; then the run ends. FOLDER gets a trace of each process, and the timings.
"""

import functools
import json
import runpy
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

from lib.envs.atari_wrappers import FrameStack
from lib.learning.agents import EpsilonGreedyAgent, Exploration
from lib.learning.compiled_update import CapturedForward
from lib.learning.dqn_model import DQN
from lib.learning.replay_buffer import ReplayBuffer
from lib.parallel import player
from pong_emulator.threads import ThreadedPongVectorEnv

import ale_py
import torch
from ignite.engine import Engine, Events
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import profile, record_function

WARM_UP = 20  # updates before anything is timed
PROFILER_WARM_UP = 2  # updates in which the profiler allocates memory
MEASURED = "measured"  # the name of the whole profiled span
TRAINER, PLAYER, LAPS = "trainer.json.gz", "player.json.gz", "laps.json"
OPERATORS = "operators.txt"
# Part of an iteration -> its functions, as a class and methods. The time of nested parts counts for
# the inner part alone. ``update`` is the function that the engine calls.
PARTS: dict[str, list[tuple[Any, ...]]] = {
    "environment": [(ale_py.env.AtariEnv, "step", "reset"), (ThreadedPongVectorEnv, "_play")],
    "wrappers": [(FrameStack, "step", "reset")],
    "choosing actions": [
        (EpsilonGreedyAgent, "__call__"),
        (CapturedForward, "__call__"),
        (Exploration, "__call__"),
    ],
    "waiting": [  # includes unpacking
        (type(Pipe()[0]), "poll", "recv"),  # Windows has another class
        (ale_py.AtariVectorEnv, "recv"),
        (ThreadedPongVectorEnv, "recv"),
    ],
    "sending": [(player.ExperienceQueue, "put")],
    "storing": [(ReplayBuffer, "extend")],
    "sampling": [(ReplayBuffer, "sample")],
    "forward": [(DQN, "forward")],
    "backward": [(torch.Tensor, "backward")],
    "optimizer": [(torch.optim.Adam, "step", "zero_grad")],
    "update": [],
    "logging and handlers": [(Engine, "_fire_event")],
}


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its calls have a name in the trace."""

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        with record_function(name):
            return function(*args, **keywords)

    return call


def name_parts() -> None:
    """Name the functions of the parts."""
    show_threads_of_ale()
    for name, functions in PARTS.items():
        for owner, *methods in functions:
            for method in methods:
                setattr(owner, method, named(name, getattr(owner, method)))


def show_threads_of_ale() -> None:
    """Call recv() in a Python thread, so that the profiler sees when ALE plays."""
    send, recv, waits = ale_py.AtariVectorEnv.send, ale_py.AtariVectorEnv.recv, Event()
    waiter = ThreadPoolExecutor(1)

    def receive(self: Any) -> Any:
        waits.set()
        return recv(self)

    def send_and_wait(self: Any, actions: Any) -> None:
        waits.clear()
        self.outcome = waiter.submit(named("environment", receive), self)
        waits.wait()  # before the games take all cores
        send(self, actions)

    ale_py.AtariVectorEnv.send = send_and_wait
    ale_py.AtariVectorEnv.recv = lambda self: self.outcome.result()


def profile_player(target: Callable[..., None], folder: Path, *args: Any) -> None:
    """Run the player process under a profiler of its own."""
    name_parts()
    profiler = new_profiler()
    try:
        with profiler:
            target(*args)
    finally:
        profiler.export_chrome_trace(str(folder / PLAYER))


def new_profiler() -> profile:
    """Return a profiler of all threads, and of the GPU if there is one."""
    return profile(experimental_config=_ExperimentalConfig(profile_all_threads=True))


def main() -> None:
    """Run the rung."""
    folder, updates = Path(sys.argv[1]), int(sys.argv[2])
    sys.argv[:3] = []
    name_parts()
    make_player, run_engine = player.Player.__init__, Engine.run
    profiler, measured = new_profiler(), record_function(MEASURED)
    laps: list[tuple[int, float]] = []  # frames and seconds

    def end() -> None:
        measured.__exit__(None, None, None)
        profiler.stop()
        profiler.export_chrome_trace(str(folder / TRAINER))
        operators = profiler.key_averages().table("self_cpu_time_total", row_limit=20)
        (folder / OPERATORS).write_text(operators)
        (folder / LAPS).write_text(json.dumps(laps))

    begin = WARM_UP + updates + PROFILER_WARM_UP
    moments: dict[int, Callable[[], Any]] = {
        WARM_UP: lambda: None,
        WARM_UP + updates: profiler.start,
        begin: measured.__enter__,
        begin + updates: end,
    }

    def lap(engine: Engine) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        laps.append((engine.state.frames, perf_counter()))
        moments[engine.state.iteration]()
        if len(laps) == len(moments):
            engine.terminate()

    def run(engine: Engine, *args: Any, **keywords: Any) -> Any:
        engine._process_function = named("update", engine._process_function)
        for number in moments:
            engine.add_event_handler(Events.ITERATION_COMPLETED(once=number), lap)
        return run_engine(engine, *args, **keywords)

    def make(self: player.Player, target: Callable[..., None], *args: Any, **keywords: Any) -> None:
        make_player(self, functools.partial(profile_player, target, folder), *args, **keywords)

    Engine.run, player.Player.__init__ = run, make  # type: ignore[method-assign]
    player.EXIT_SECONDS = 300.0  # to write its trace
    runpy.run_path(sys.argv[0], run_name="__main__")
