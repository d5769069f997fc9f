"""Several learners, each a process on a core of its own, that learn one network together.

Each plays a part of the games, and computes the gradients of a part of each batch. The mean of
these gradients is that of the whole batch. All learners make the same step with it, from the same
weights. So this is the arithmetic of one learner. They exchange gradients in shared memory, and
everything else through pipes.

The first learner is the run: it logs, saves, decides when to stop, and starts the others. If a
learner dies, the others read the end of their pipes at once.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import combinations
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events, State
from torch import multiprocessing
from tqdm import tqdm

from lib.games.device_games import DeviceStep
from lib.games.experience import Episode
from lib.games.vector_env import VectorStep
from lib.learning.agents import Progress, QFunction, Schedule
from lib.learning.compiled_update import Weights
from lib.players.player import EXIT_SECONDS, how_it_ended
from lib.running.events import COUNTERS, PlayEvents, announce
from lib.running.handlers import attach_handlers, stop_at
from lib.running.machine import prepare_torch
from lib.running.run import Failure, Run, describe_error
from lib.running.speedrun_options import LearnersOptions

SPIN_SECONDS = 0.001  # a process that sleeps takes longer to wake up than most gradients are late
Train = Callable[[Any, Run, "Learners"], State]


class Learners:
    """The learners of a run, as one of them sees them.

    Args:
        rank: which one it is, from 0 on.
        pipes: to the others, by rank.
    """

    def __init__(self, rank: int = 0, pipes: dict[int, Connection] | None = None) -> None:
        self.rank, self.pipes = rank, pipes or {}
        self.count = 1 + len(self.pipes)
        self._compiling = False
        self._memory: torch.Tensor | None = None
        self._exchanges = 0
        self._steps = 0
        self._points = [0, 0]  # won and lost in this rollout
        self._episodes: list[Episode] = []  # that ended in this rollout
        _of_process[:] = [self]

    def mean(self, gradients: Weights) -> Weights:
        """The mean of the gradients of all learners, in float32; each gets the same numbers."""
        if self.count == 1:
            return gradients
        total = mean_of_learners([gradient.detach() for gradient in gradients.values()])
        parts = total.split([gradient.numel() for gradient in gradients.values()])
        return {
            name: part.view(gradient.shape)
            for (name, gradient), part in zip(gradients.items(), parts, strict=True)
        }

    def exchange(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """What ``mean`` does in one vector."""
        if self._compiling:
            return torch.cat([gradient.flatten().float() for gradient in gradients])
        if self._memory is None:
            size = sum(gradient.numel() for gradient in gradients)
            self._memory = self.told_by_first(torch.empty(2, self.count, size).share_memory_())
        # Two places, in turns: nobody writes into one from which somebody still reads.
        place = self._memory[self._exchanges % 2]
        self._exchanges += 1
        torch.cat([gradient.flatten() for gradient in gradients], out=place[self.rank])
        self.wait_for_all()
        return place.mean(0)

    @contextmanager
    def first_compiles(self) -> Iterator[None]:
        """The first learner compiles, then the others, who find it in the compiler's cache.

        An update that is called to compile it waits for nobody: the mean is its own gradients.
        """
        if self.rank > 0:
            self.told_by_first(None)
        self._compiling = True
        yield
        self._compiling = False
        if self.rank == 0:
            self.told_by_first(None)

    def wait_for_all(self) -> None:
        """Wait until every learner is here."""
        for pipe in self.pipes.values():
            pipe.send_bytes(b"here")
        for pipe in self.pipes.values():
            until = time.perf_counter() + SPIN_SECONDS
            while not pipe.poll() and time.perf_counter() < until:
                pass
            pipe.recv_bytes()

    def gather(self, message: Any) -> list[Any]:
        """The messages of all learners, by rank."""
        for pipe in self.pipes.values():
            pipe.send(message)
        messages = {rank: pipe.recv() for rank, pipe in self.pipes.items()} | {self.rank: message}
        return [messages[rank] for rank in range(self.count)]

    def told_by_first(self, message: Any) -> Any:
        """The message of the first learner."""
        if self.rank > 0:
            return self.pipes[0].recv()
        for pipe in self.pipes.values():
            pipe.send(message)
        return message

    def attach_handlers(
        self,
        engine: Engine,
        run: Run,
        epsilon: Schedule,
        saved: dict[str, Any],
        make_agent: Callable[[], QFunction],
    ) -> None:
        """As ``lib.running.handlers.attach_handlers``, for the first learner.

        The others only count frames and episodes. They begin with what the first one has made or
        loaded.
        """
        if self.rank == 0:
            attach_handlers(engine, run, epsilon, saved, make_agent)
        else:
            engine.logger.disabled = True  # the first learner reports a failure
            engine.register_events(*PlayEvents, event_to_attr=COUNTERS)
            stop_at(engine, run.options.max_frames)
            engine.state.solved = False  # that is for the first one to say

        @engine.on(Events.STARTED)
        def begin_alike() -> None:
            state, shared = engine.state, ("net", "points", "buffer")
            counters = state.frames, state.episodes
            kept = {name: saved[name].state_dict() for name in shared}
            kept, counters = self.told_by_first((kept, counters))
            if self.rank > 0:
                for name in shared:
                    saved[name].load_state_dict(kept[name])
                state.frames, state.episodes = counters
            self.wait_for_all()  # what was told may lie in the first one's own memory

    def announce(
        self, engine: Engine, hp: LearnersOptions, step: VectorStep | DeviceStep, progress: Progress
    ) -> None:
        """As ``lib.running.events.announce``, for a step of the games of all learners.

        After each rollout the learners tell each other which points and games have ended. Then the
        first one may try its agent, and says whether to stop.
        """
        announce(engine, hp.envs, [], step.seen)
        self._points = [mine + new for mine, new in zip(self._points, step.points, strict=True)]
        self._episodes += [episode for episode in step.episodes if episode]
        self._steps += 1
        if self._steps % hp.rollout:
            return
        for points, episodes in self.gather((self._points, self._episodes)):
            progress.add(*points)
            announce(engine, 0, episodes, [])
        self._points, self._episodes = [0, 0], []
        if self.told_by_first(engine.should_terminate):
            engine.terminate()


_of_process: list[Learners] = []  # the operation below gets tensors alone, and finds them here


@torch.library.custom_op("pong::mean_of_learners", mutates_args=())
def mean_of_learners(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The mean over the learners, in one vector; the compiler calls it as it is."""
    return _of_process[0].exchange(gradients)


@mean_of_learners.register_fake
def _shape_of_mean(gradients: list[torch.Tensor]) -> torch.Tensor:
    return gradients[0].new_empty(sum(g.numel() for g in gradients), dtype=torch.float32)


@dataclass(frozen=True)
class Other:
    """Another learner, as the first one sees it."""

    process: BaseProcess
    pipe: Connection
    complaint: Any  # the end of a pipe; gets one message, if the learner fails


def many_learners(train: Train) -> Callable[[Any, Run], State]:
    """``train`` with as many learners as ``--learners`` says, for ``lib.running.run.launch``.

    Args:
        train: a module-level function (the others are started with ``spawn``), called in each
            process with the settings, the run, and its ``Learners``.
    """

    def lead(hp: LearnersOptions, run: Run) -> State:
        with other_learners(train, hp, run) as others:
            pipes = {rank: other.pipe for rank, other in others.items()}
            try:
                return train(hp, run, Learners(0, pipes))
            except (EOFError, ConnectionError):  # the end of a pipe
                raise Failure(who_ended(others)) from None

    return lead


def pipes_between(count: int) -> list[dict[int, Any]]:
    """A pipe between any two of so many learners: for each of them its ends, by rank."""
    # Any: on Windows the ends of pipes are of another class, with the same methods.
    pipes: list[dict[int, Any]] = [{} for _ in range(count)]
    for first, second in combinations(range(count), 2):
        pipes[first][second], pipes[second][first] = multiprocessing.Pipe()
    return pipes


@contextmanager
def other_learners(train: Train, hp: LearnersOptions, run: Run) -> Iterator[dict[int, Other]]:
    """Start the other learners, and end them; by rank."""
    context = multiprocessing.get_context("spawn")
    pipes = pipes_between(hp.learners)
    others: dict[int, Other] = {}
    for rank in range(1, hp.learners):
        complaint, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_follow,
            args=(train, hp, run.folder, rank, pipes[rank], theirs),
            name=f"learner {rank}",
            daemon=True,  # never outlives the run
        )
        process.start()
        theirs.close()
        others[rank] = Other(process, pipes[0][rank], complaint)
    for ends in pipes[1:]:
        for pipe in ends.values():
            pipe.close()  # now each learner alone holds its ends, so its death ends the pipes
    try:
        yield others
    finally:
        for other in others.values():
            other.pipe.close()  # the learner notices this and ends
        for other in others.values():
            other.process.join(EXIT_SECONDS)
            if other.process.is_alive():
                other.process.kill()
                other.process.join()


def who_ended(others: dict[int, Other]) -> str:
    """Why a learner is gone, in one line: its own word, or how its process ended."""
    wait([other.process.sentinel for other in others.values()], EXIT_SECONDS)
    for rank, other in others.items():
        if other.complaint.poll():
            with suppress(EOFError):  # it ended without a word
                return f"learner {rank} failed: {other.complaint.recv()}"
    for rank, other in others.items():
        told = how_it_ended(other.process)  # without its pipes it ends, too
        if other.process.exitcode:
            return f"learner {rank} {told}"
    return "a learner ended"


def _follow(
    train: Train,
    hp: LearnersOptions,
    folder: Path,
    rank: int,
    pipes: dict[int, Connection],
    complaint: Connection,
) -> None:
    """The main function of another learner's process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they reach all; the first learner decides
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, the first learner says it
    # The compiler's cache knows things by a hash of their pickled names, and pickle names what is
    # torch's after the first module that has it. If that is the script, whose name is another one
    # in this process, the first learner's work is not found.
    if script := sys.modules.pop("__mp_main__", None):
        sys.modules["__mp_main__"] = script
    tqdm.set_lock(threading.RLock())  # its own would outlive a learner that is killed
    prepare_torch(hp.seed + rank)  # it draws samples of its own; weights it gets from the first
    torch.set_num_threads(hp.torch_threads)
    exit_code = 0
    nobody: Any = None  # the first learner logs
    try:
        run = Run(hp, hp.training_device, folder, nobody, f"learner {rank}")
        train(hp, run, Learners(rank, pipes))
    except (EOFError, ConnectionError):
        pass  # the run has ended
    except Exception as error:
        exit_code = 1
        complaint.send(describe_error(error))
    sys.exit(exit_code)
