"""A player in a process of its own, and the bounded queue between it and the trainer.

The queue is one pipe in each direction. Transitions go one way; the other way go the numbers
of transitions that were taken, and a player that is ``bound`` ahead waits for them. So
nobody spins, nothing is left in the system when a process is killed, and whichever
side dies, the other one reads the end of the pipe at once, in the middle of a message too,
where a lock of ``multiprocessing.Queue`` would have died with its holder.
"""

import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import multiprocessing

from lib.experience import Transition
from lib.run import Failure, prepare_torch

WAIT_SECONDS = 1.0  # between looks at whether the trainer was asked to stop
EXIT_SECONDS = 1.0  # for a player to go by itself; it has nothing to save
START_SECONDS = 120.0  # for its first transition, where the limit is shorter


class ExperienceQueue:
    """The player's end of the bounded queue.

    Args:
        pipe: to the trainer.
        bound: transitions that may be under way.
    """

    def __init__(self, pipe: Connection, bound: int) -> None:
        self._pipe = pipe
        self._free = bound

    def put(self, transition: Transition) -> None:
        """Send a transition; wait while the queue is full.

        Raises:
            EOFError, BrokenPipeError, ConnectionResetError: the trainer is gone.
        """
        while self._free == 0 or self._pipe.poll():
            self._free += self._pipe.recv()
        self._pipe.send(transition)
        self._free -= 1


class Player:
    """The trainer's end: starts the process, and iterates over what it played.

    Iterating yields lists of the transitions that are there, at least one; an empty list
    after a second without any, so that whoever iterates can stop.

    Args:
        play: a function of a module (it is started with ``spawn``), called in the player with
            the queue and ``args``. What it raises becomes the trainer's ``Failure``.
        args: passed to ``play``. Networks among them keep sharing their weights with the
            trainer: through shared memory on the CPU, through CUDA IPC on the GPU.
        bound: transitions that the player may be ahead.
        seed: of the process.
        timeout: seconds without a transition after which the player counts as lost.
    """

    def __init__(
        self,
        play: Callable[..., None],
        args: tuple[Any, ...],
        bound: int,
        seed: int = 0,
        timeout: float = 60.0,
    ) -> None:
        self.bound, self.timeout = bound, timeout
        self._play, self._args, self._seed = play, args, seed

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_run_player,
            args=(theirs, self.bound, self._seed, self._play, self._args),
            name="player",
            daemon=True,  # never outlives the trainer, even if that forgets to close
        )
        self.process.start()
        theirs.close()  # the player holds the only other end, so its death ends the pipe
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pipe.close()  # which the player notices
        self.process.join(EXIT_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def __iter__(self) -> Iterator[list[Transition]]:
        deadline = time.monotonic() + max(self.timeout, START_SECONDS)
        while True:
            taken: list[Transition] = []
            try:
                while self._pipe.poll(0 if taken else WAIT_SECONDS):
                    message = self._pipe.recv()
                    if isinstance(message, str):
                        raise Failure(f"the player failed: {message}")
                    taken.append(message)
                    if len(taken) == self.bound:
                        break
                if taken:
                    self._pipe.send(len(taken))
                    deadline = time.monotonic() + self.timeout
                elif time.monotonic() > deadline:
                    raise Failure(f"the player sent nothing for {self.timeout:g} seconds")
            except (EOFError, OSError):  # between messages, or within one
                raise Failure(f"the player {self._how_it_ended()}") from None
            yield taken

    def _how_it_ended(self) -> str:
        self.process.join(EXIT_SECONDS)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def _run_player(
    pipe: Connection, bound: int, seed: int, play: Callable[..., None], args: tuple[Any, ...]
) -> None:
    """What the player's process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to both; the trainer decides
    prepare_torch(seed)
    torch.set_num_threads(1)  # one state at a time; the cores belong to the trainer
    try:
        play(ExperienceQueue(pipe, bound), *args)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the trainer is done
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(f"{type(error).__name__}: {error}".split())
        pipe.send(f"{message} ({Path(place.filename).name}, line {place.lineno})")
        sys.exit(1)
