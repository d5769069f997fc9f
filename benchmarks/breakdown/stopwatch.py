"""Which functions make up a part of an iteration, and the stopwatch that is put around them."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import ale_py
import torch
from ignite.engine import Engine

from benchmarks.timing import now
from lib.games import atari_wrappers
from lib.games.vector_env import StackedVectorEnv
from lib.learning.agents import EpsilonGreedyAgent
from lib.learning.dqn_model import DQN
from lib.learning.replay_buffer import ReplayBuffer
from lib.players.player import ExperienceQueue

Part = Callable[[str], AbstractContextManager[Any]]  # measures what happens within
Parts = Mapping[str, Sequence[tuple[type, str]]]
Span = tuple[str, float, float]  # a part, and when it began and ended, in seconds
REST = "rest (ignite, Python)"
WAITING = "waiting for the other process"
SENDING = "sending"

# Part of an iteration -> the functions that do it, as (class, method). What one of them calls
# is charged to the inner part alone. A rung uses some of them.
PARTS: Parts = {
    "environment": [
        (ale_py.env.AtariEnv, "step"),
        (ale_py.env.AtariEnv, "reset"),
        (StackedVectorEnv, "recv"),
    ],
    "wrappers": [(atari_wrappers.FrameStack, "step"), (atari_wrappers.FrameStack, "reset")],
    "action selection": [(EpsilonGreedyAgent, "__call__")],
    WAITING: [(Connection, "poll")],
    "receiving": [(Connection, "recv")],
    SENDING: [(ExperienceQueue, "put")],
    "insert": [(ReplayBuffer, "extend")],
    "sample": [(ReplayBuffer, "sample")],
    "forward": [(DQN, "forward")],
    "backward": [(torch.Tensor, "backward")],
    "optimizer": [(torch.optim.Adam, "step"), (torch.optim.Adam, "zero_grad")],
    "logging and handlers": [(Engine, "_fire_event")],
}
PLAYING, UPDATING = "playing", "updating"
KINDS = {
    PLAYING: ("environment", "wrappers", "action selection"),
    UPDATING: ("sample", "forward", "backward", "optimizer"),
    WAITING: (WAITING,),
    "handing over": ("receiving", "insert", SENDING),
    "logging and the rest": ("logging and handlers", REST),
}


class Clock:
    """A stopwatch whose parts may nest: time goes to the innermost one alone."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.spans: list[Span] = []  # without gaps
        self._stack = [REST]
        self._since = now(self.device)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge the time within to a part."""
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def _charge(self) -> None:
        time = now(self.device)  # the GPU's work belongs to who asked for it
        self.spans.append((self._stack[-1], self._since, time))
        self._since = time


@contextmanager
def timed_parts(part: Part, parts: Parts = PARTS) -> Iterator[None]:
    """Put ``part(name)`` around every function of the parts."""
    acting = False

    def wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            nonlocal acting
            if name == "forward" and acting:  # this forward pass belongs to choosing the action
                return function(*args, **named)
            acting = acting or name == "action selection"
            try:
                with part(name):
                    return function(*args, **named)
            finally:
                acting = acting and name != "action selection"

        return call

    with ExitStack() as stack:
        for name, functions in parts.items():
            for owner, method in functions:
                function = wrapped(name, getattr(owner, method))
                stack.enter_context(mock.patch.object(owner, method, function))
        yield
