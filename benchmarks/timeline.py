"""Draw who plays, who learns and who waits, over some milliseconds of steady training.

The rungs run one after another, with a stopwatch around the functions that play, choose actions,
learn and wait, in the player's process, too. What is between them is "other": storing, logging,
Python. The threads of a vector environment are drawn while they play. Those of ALE cannot tell: a
thread of ours receives in the rung's place, and they are drawn from ``send`` until it has received.

    python -m benchmarks timeline --out results/here/timeline
"""

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any
from unittest import mock

import torch
from ale_py import AtariVectorEnv
from ignite.engine import Engine

from benchmarks import charts
from benchmarks.arguments import add_counts, add_epsilon, add_out
from benchmarks.breakdown.rung import load, run_rung, timed_player
from benchmarks.breakdown.stopwatch import REST, Clock, Parts, Span, timed_parts
from benchmarks.report import here, output_folder, short_machine, write_csv
from emulator.threads import ThreadedPongVectorEnv
from lib.games.resumable_env import ResumableEnv
from lib.learning.agents import EpsilonGreedyAgent, Exploration
from lib.learning.compiled_update import CapturedForward
from lib.learning.replay_buffer import ReplayBuffer
from lib.running.machine import describe_machine, prepare_torch

# The rungs that are drawn, and who works in each of them besides the main process.
RUNGS = {
    "01_baseline": "",
    "03_parallel": "player process",
    "05_vector_env": "ALE's threads",
    "08_recompiled_pong": "emulator's threads",
}
REPLAY_INITIAL = 1_000  # transitions to play before training begins
LEARN, CHOOSE, PLAY, OTHER, WAIT = charts.ACTIVITIES
PARTS: Parts = {
    LEARN: [(ReplayBuffer, "sample")],  # and the update of the rung
    CHOOSE: [(agent, "__call__") for agent in (EpsilonGreedyAgent, CapturedForward, Exploration)],
    PLAY: [(ResumableEnv, "step"), (ResumableEnv, "reset")],
    WAIT: [
        (Connection, "poll"),
        *((source, "recv") for source in (Connection, AtariVectorEnv, ThreadedPongVectorEnv)),
    ],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    counts = {
        "milliseconds": (100, "length of the time line"),
        "updates": (100, "updates over which FPS are measured"),
    }
    add_counts(parser, counts)
    add_epsilon(parser)
    add_out(parser, "runs/timeline")


def run(args: argparse.Namespace) -> int:
    """Run the rungs, write the spans, draw them."""
    out, machine = output_folder(args.out), describe_machine(torch.device("cpu"))
    prepare_torch(seed=0)
    rows = [row for rung in RUNGS for row in record(rung, args)]
    header = ["rung", "who", "does", "begin_ms", "end_ms"]
    spans = [[title, who, *span] for title, who, does in rows for span in does]
    write_csv(out / "timeline.csv", [header, *spans])
    charts.time_line(out / "timeline.png", rows, args.milliseconds, short_machine(machine))
    print(f"{here(machine)}\nwritten to {out}")
    return 0


def record(rung: str, args: argparse.Namespace) -> list[charts.Row]:
    """Run a rung; what its main process did, and who else works there."""
    module, clock, others = load(rung), Clock("cpu"), list[Span]()
    settings = {"epsilon_start": args.epsilon, "epsilon_final": args.epsilon}
    if hasattr(module, "replay_batches"):
        settings["replay_initial"] = REPLAY_INITIAL

    with (
        mock.patch.object(module, "Engine", lambda update: Engine(clock.part(LEARN)(update))),
        noted_threads(others),
        timed_player(others, PARTS),
        timed_parts(clock.part, PARTS),
    ):
        measured = run_rung(module, settings, args.updates)
    title = f"{rung}: {measured.fps:,.0f} frames per second"
    return [
        (title, who, list(within(spans, measured.begin, args.milliseconds)))
        for who, spans in {"main process": clock.spans, RUNGS[rung]: others}.items()
        if spans
    ]


@contextmanager
def noted_threads(spans: list[Span]) -> Iterator[None]:
    """Note when the threads of vector environments play."""
    play, send, recv = ThreadedPongVectorEnv._play, AtariVectorEnv.send, AtariVectorEnv.recv

    def noted(begin: float, work: Callable[..., Any], *args: Any) -> Any:
        outcome = work(*args)
        spans.append((PLAY, begin, perf_counter()))
        return outcome

    def send_and_wait(self: Any, actions: Any) -> None:
        begin = perf_counter()
        send(self, actions)
        self.outcome = waiter.submit(noted, begin, recv, self)

    changes = {"send": send_and_wait, "recv": lambda self: self.outcome.result()}
    with (
        ThreadPoolExecutor(1) as waiter,
        mock.patch.multiple(AtariVectorEnv, **changes),
        mock.patch.object(
            ThreadedPongVectorEnv, "_play", lambda *args: noted(perf_counter(), play, *args)
        ),
    ):
        yield


def within(spans: list[Span], zero: float, milliseconds: int) -> Iterator[Span]:
    """The spans after a moment, in milliseconds since then."""
    for part, begin, end in spans:
        begin, end = (round(1e3 * (time - zero), 3) for time in (begin, end))
        if end > 0 and begin < milliseconds:
            yield OTHER if part == REST else part, max(begin, 0.0), min(end, milliseconds)
