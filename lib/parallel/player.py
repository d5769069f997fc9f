"""A player in a process of its own, and the bounded queue between it and the trainer.

The queue is a duplex pipe. The player sends its steps, and the trainer answers with the number of
steps it has received. A player that is ``bound`` steps ahead waits for this answer.

If one process dies, the other notices at once; a ``multiprocessing.Queue`` could hang.
"""

import copy
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Self

from lib.envs.experience import Transitions
from lib.gpu_checks import try_optimised
from lib.training.machine import prepare_torch
from lib.training.options import PlayerOptions
from lib.training.run import SIGNALS, Failure, describe_error
from lib.transfer import Download, is_asynchronous

import torch
from torch import multiprocessing, nn

WAIT_SECONDS = 1.0  # between checks whether the trainer was asked to stop
EXIT_SECONDS = 10.0  # for a player to end by itself, which takes long on a GPU or a busy machine
START_SECONDS = 120.0  # least time limit for the start and the first step


class ExperienceQueue:
    """The player's end of the queue, for up to ``bound`` steps."""

    def __init__(self, pipe: Connection, bound: int) -> None:
        self._pipe, self._free = pipe, bound

    def put(self, step: Transitions) -> None:
        """Send a step once there is room; raise EOFError or OSError if the trainer is gone."""
        while self._free == 0 or self._pipe.poll():
            self._free += self._pipe.recv()
        self._pipe.send(step)
        self._free -= 1


class Player:
    """The trainer's end of the queue, and the player's process, within a ``with`` block.

    Iterating yields a list of new steps at least once a second, even if empty, so that the caller
    can stop. If the player is lost, iteration ends, so that the run saves its checkpoint; then the
    end of the block raises ``Failure``.

    Networks share their weights with the player: in shared memory on the CPU, through CUDA IPC on
    the GPU. If the system refuses that (WSL2), the player acts on the CPU with a ``CopyOnCpu``.

    Args:
        target: a module-level function, called in the player with the queue and ``args``. Its
            exceptions become the trainer's ``Failure``.
        bound: how many steps the player may be ahead.
        options: the player's device, and the seconds after which it counts as lost.
    """

    def __init__(
        self,
        target: Callable[..., None],
        args: tuple[Any, ...],
        bound: int,
        options: PlayerOptions = PlayerOptions(),  # noqa: B008, it is frozen
    ) -> None:
        self.bound, self.timeout = bound, options.player_timeout
        self._target, self._args = target, args
        self._on_gpu = torch.device(options.player_device).type != "cpu"
        self._copies: list[CopyOnCpu] = []
        self._lost: Failure | None = None

    def __enter__(self) -> Self:
        if any(map(_is_on_gpu, self._args)):
            part = "acting on the GPU (the player uses the CPU)"
            if self._on_gpu and try_optimised(part, False, self._start):
                return self
            self._args = tuple(map(self._for_cpu, self._args))
        self._start()
        return self

    def _for_cpu(self, arg: Any) -> Any:
        if isinstance(arg, PlayerOptions):
            return replace(arg, play_device="cpu")
        if not _is_on_gpu(arg):
            return arg
        self._copies.append(CopyOnCpu(arg))
        return self._copies[-1].network

    def _start(self) -> bool:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        given = (theirs, self.bound, self._target, Packed(self._args))
        self.process = context.Process(target=_run_player, args=given, name="player", daemon=True)
        try:
            with signals_blocked():
                self.process.start()
            theirs.close()  # only the player holds this end, so its death ends the pipe
            if not self._received(max(self.timeout, START_SECONDS)):
                raise Failure("the player did not start")
            return True
        except BaseException:
            self._end(patience=0)
            raise

    def _received(self, seconds: float) -> Any:
        """Return the next message, or None if none arrives in time."""
        try:
            message = self._pipe.recv() if self._pipe.poll(seconds) else None
        except InterruptedError:  # a signal, on Windows
            return None
        except (EOFError, OSError):  # the pipe broke, maybe within a message
            self.process.join(EXIT_SECONDS)
            code = self.process.exitcode
            end = f"ended with exit code {code}"
            if code and code < 0:
                end = f"was killed by {signal.Signals(-code).name}"
            raise Failure(f"the player {end}") from None
        if isinstance(message, str):
            raise Failure(f"the player failed: {message}")
        return message

    def _end(self, patience: float) -> None:
        self._pipe.close()  # the player notices this and ends
        if self.process.pid is not None:
            self.process.join(patience)
            self.process.kill()
            self.process.join()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._end(EXIT_SECONDS)
        if self._lost and not error:
            raise self._lost

    def __iter__(self) -> Iterator[list[Transitions]]:
        # Count waits, not time: a pause of the whole run (Ctrl-Z) is not the player's fault.
        limit = seconds_left = max(self.timeout, START_SECONDS)
        while not self._lost:
            taken: list[Transitions] = []
            try:
                while len(taken) < self.bound and (
                    step := self._received(0 if taken else WAIT_SECONDS)
                ):
                    taken.append(step)
                seconds_left -= 0 if taken else WAIT_SECONDS
                if seconds_left <= 0:
                    self.process.kill()  # it would not notice a closed pipe
                    raise Failure(f"the player sent nothing for {limit:g} seconds")
            except Failure as failure:
                self._lost = failure
            if taken:
                limit = seconds_left = self.timeout
                for copied in self._copies:
                    copied.refresh()
                with suppress(OSError):  # receiving will notice that the player has ended
                    self._pipe.send(len(taken))
            yield taken


class CopyOnCpu:
    """A copy of a GPU's network in the CPU's shared memory, refreshed without waiting."""

    def __init__(self, network: nn.Module) -> None:
        self.network = copy.deepcopy(network).cpu().share_memory()
        self._sources = list(network.parameters())
        self._arriving: Download | None = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights that the last call requested, and request the newest."""
        if self._arriving:
            numbers = torch.from_numpy(self._arriving.read())
            parts = numbers.split([source.numel() for source in self._sources])
            for weight, part in zip(self.network.parameters(), parts, strict=True):
                weight.copy_(part.view(weight.shape))
        self._arriving = Download(torch.cat([source.flatten() for source in self._sources]))


def _is_on_gpu(arg: Any) -> bool:
    return isinstance(arg, nn.Module) and is_asynchronous(next(arg.parameters()).device)


class Packed:
    """Pickled arguments; ``_run_player`` unpickles them itself, to report its errors."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(ForkingPickler.dumps(self.args)),)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Shield processes started in this block from signals; the trainer ends them."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # first, because it unblocks SIGINT and SIGTERM
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_player(pipe: Connection, bound: int, target: Callable[..., None], packed: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # not blocked on Windows
    prepare_torch(seed=0)  # random numbers come from lib.seeds
    torch.set_num_threads(1)  # enough for one state at a time
    exit_code = 0
    try:
        args = ForkingPickler.loads(packed)
        pipe.send(True)
        target(ExperienceQueue(pipe, bound), *args)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the trainer has ended
    except Exception as error:
        exit_code = 1
        with suppress(OSError):
            pipe.send(describe_error(error))
    args = ()
    gc.collect()  # releases memory of the trainer's GPU
    sys.exit(exit_code)
