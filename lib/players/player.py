"""A player in a process of its own, and the bounded queue between it and the trainer.

The queue is one pipe in each direction. The player sends transitions. The trainer answers with the
number of transitions it has taken, and a player that is ``bound`` ahead waits for this answer.

So nobody polls in a loop, and a killed process leaves nothing in the system. If one side dies, the
other reads the end of the pipe at once, even in the middle of a message. A
``multiprocessing.Queue`` could hang: a dead process may still hold its lock.
"""

import copy
import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import multiprocessing, nn

from lib.devices import first_line
from lib.games.experience import Transition
from lib.gpu_checks import leave_out
from lib.running.machine import prepare_torch
from lib.running.options import PlayerOptions
from lib.running.run import Failure, describe_error
from lib.transfer import is_asynchronous

WAIT_SECONDS = 1.0  # between checks whether the trainer was asked to stop
EXIT_SECONDS = 10.0  # for a player to end by itself, which is slow on a GPU or a busy machine
SHARED_MEMORY = Path("/dev/shm")
START_SECONDS = 120.0  # for its first transition, if the time limit is shorter


class Refused(str):
    """What a player sends that could not open the trainer's memory: why."""


class ExperienceQueue:
    """The player's end of the bounded queue.

    Args:
        pipe: to the trainer.
        bound: transitions that may be on their way.
    """

    def __init__(self, pipe: Connection, bound: int) -> None:
        self._pipe = pipe
        self._free = bound

    def put(self, transition: Transition) -> None:
        """Send a transition; wait while the queue is full.

        Raises:
            EOFError, BrokenPipeError, ConnectionResetError: if the trainer is gone.
        """
        while self._free == 0 or self._pipe.poll():
            self._free += self._pipe.recv()
        self._pipe.send(transition)
        self._free -= 1


class Player:
    """The trainer's end: starts the process, and iterates over what it played.

    Iterating yields lists of the transitions that have arrived. After a second without any it
    yields an empty list, so that the caller can stop.

    Args:
        play: a module-level function (the process is started with ``spawn``), called in the player
            with the queue and ``args``. Its exceptions become the trainer's ``Failure``.
        args: passed to ``play``. Networks in it share their weights with the trainer: in shared
            memory on the CPU, through CUDA IPC on the GPU. If a network is on the GPU and the
            player acts on the CPU, the player gets the copy of a ``Mirror``. If the system
            refuses to share the GPU's memory, as WSL2 does, the player acts on the CPU, too.
        bound: how many transitions the player may be ahead.
        seed: of the player's process.
        timeout: seconds without a transition after which the player counts as lost.
        device: where the player acts.
    """

    def __init__(
        self,
        play: Callable[..., None],
        args: tuple[Any, ...],
        bound: int,
        seed: int = 0,
        timeout: float = 60.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.bound, self.timeout = bound, timeout
        self._play, self._args, self._seed = play, args, seed
        self._device = torch.device(device)
        self._shares_gpu = False

    def __enter__(self) -> Self:
        try:
            self._start()
        except RuntimeError as error:
            if not self._shares_gpu:
                raise
            self._start_on_cpu(first_line(error))
        return self

    def _start(self) -> None:
        self._mirrors: list[Mirror] = []
        args = tuple(map(self._handed_over, self._args))
        self._shares_gpu = any(map(_is_on_gpu, args))
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_run_player,
            args=(theirs, self.bound, self._seed, self._play, Packed(args), self._shares_gpu),
            name="player",
            daemon=True,  # never outlives the trainer
        )
        self.process.start()
        theirs.close()  # now the player alone holds this end, so its death ends the pipe

    def _start_on_cpu(self, reason: str) -> None:
        """Start again, with a player that needs no memory of the GPU, as --play-device cpu does."""
        leave_out("the player on the GPU, it acts on the CPU", reason)
        self._pipe.close()
        if self.process.is_alive():
            self.process.join(EXIT_SECONDS)
        self._device = torch.device("cpu")
        self._args = tuple(
            replace(arg, play_device="cpu") if isinstance(arg, PlayerOptions) else arg
            for arg in self._args
        )
        self._start()

    def _handed_over(self, arg: Any) -> Any:
        """The argument as the player gets it."""
        if self._device.type != "cpu" or not _is_on_gpu(arg):
            return arg
        self._mirrors.append(Mirror(arg))
        return self._mirrors[-1].network

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pipe.close()  # the player notices this and ends
        if error is None or self._shares_gpu:  # after a failure there is nothing to wait for
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
                    if isinstance(message, Refused):
                        self._start_on_cpu(message)
                        deadline = time.monotonic() + max(self.timeout, START_SECONDS)
                        continue
                    if isinstance(message, str):
                        raise Failure(f"the player failed: {message}")
                    taken.append(message)
                    if len(taken) == self.bound:
                        break
                if taken:
                    for mirror in self._mirrors:
                        mirror.refresh()
                    self._pipe.send(len(taken))
                    deadline = time.monotonic() + self.timeout
                elif time.monotonic() > deadline:
                    self.process.kill()  # it would not notice a closed pipe
                    raise Failure(f"the player sent nothing for {self.timeout:g} seconds")
            except (EOFError, OSError):  # between messages, or within one
                raise Failure(f"the player {how_it_ended(self.process)}") from None
            yield taken


def how_it_ended(process: BaseProcess) -> str:
    """How a process ended whose pipes have ended, in words."""
    process.join(EXIT_SECONDS)
    code = process.exitcode
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


class Mirror:
    """A copy of a network on the GPU in the CPU's shared memory, refreshed without waiting.

    The weights go to the CPU in one piece, in the order of their bytes in memory. The first refresh
    after their arrival puts them into the copy.

    Args:
        network: on the GPU, with weights of one dtype; it may keep learning.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = copy.deepcopy(network).cpu()
        self._sources = [_as_vector(weight) for weight in network.parameters()]
        self._gathered = torch.cat(self._sources)
        # One piece of shared memory; the copy's weights are parts of it.
        self._shared = self._gathered.cpu().share_memory_()
        begin = 0
        for weight in self.network.parameters():
            part = self._shared[begin : begin + weight.numel()]
            weight.data = part.as_strided(weight.shape, weight.stride(), begin)
            begin += weight.numel()
        self._arriving = torch.empty_like(self._shared).pin_memory()
        self._arrived: torch.cuda.Event | None = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Put the weights that have arrived into the copy, and request the newest ones."""
        if self._arrived is not None:
            if not self._arrived.query():
                return
            self._shared.copy_(self._arriving)
        torch.cat(self._sources, out=self._gathered)
        self._arriving.copy_(self._gathered, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()


def _as_vector(weight: torch.Tensor) -> torch.Tensor:
    """The numbers of a dense tensor in memory order, without a copy."""
    return weight.detach().as_strided((weight.numel(),), (1,))


def _is_on_gpu(arg: Any) -> bool:
    return isinstance(arg, nn.Module) and any(
        is_asynchronous(weight.device) for weight in arg.parameters()
    )


class Packed:
    """Arguments of a player, which it unpacks itself, so that it can report an error in one line.

    ``multiprocessing`` would unpack them before our code runs. If memory of the GPU cannot be
    opened, that would end in a traceback.
    """

    def __init__(self, args: tuple[Any, ...]) -> None:
        self._args: Any = args

    def __getstate__(self) -> bytes:
        return bytes(ForkingPickler.dumps(self._args))

    def __setstate__(self, packed: bytes) -> None:
        self._args = packed

    def unpack(self) -> tuple[Any, ...]:
        """The arguments; call it once, in the player."""
        packed, self._args = self._args, None
        return ForkingPickler.loads(packed)


def _run_player(
    pipe: Connection,
    bound: int,
    seed: int,
    play: Callable[..., None],
    packed: Packed,
    shares_gpu: bool,
) -> None:
    """The main function of the player's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the trainer decides
    prepare_torch(seed)
    torch.set_num_threads(1)  # one state at a time needs no more; the trainer needs the cores
    exit_code, opened = 0, False
    try:
        args = packed.unpack()
        opened = True
        play(ExperienceQueue(pipe, bound), *args)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the trainer has ended
    except Exception as error:
        exit_code = 1
        message = describe_error(error)
        pipe.send(Refused(message) if shares_gpu and not opened else message)
    if shares_gpu:
        args = ()
        gc.collect()  # releases the trainer's memory
        if trainer := parent_process():
            remove_leftovers(trainer)
    sys.exit(exit_code)


def remove_leftovers(trainer: BaseProcess) -> None:
    """If the trainer was killed, remove the file in shared memory in which torch counts users.

    Its name contains the process id. A trainer that ends by itself removes the file.
    """
    if wait([trainer.sentinel], timeout=0.1):
        for file in SHARED_MEMORY.glob(f"torch_{trainer.pid}_*"):
            file.unlink(missing_ok=True)
