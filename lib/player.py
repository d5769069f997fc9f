"""A player in a process of its own, and the bounded queue between it and the trainer.

The queue is one pipe in each direction. Transitions go one way; the other way go the numbers
of transitions that were taken, and a player that is ``bound`` ahead waits for them. So
nobody spins, nothing is left in the system when a process is killed, and whichever
side dies, the other one reads the end of the pipe at once, in the middle of a message too,
where a lock of ``multiprocessing.Queue`` would have died with its holder.
"""

import copy
import gc
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import multiprocessing, nn

from lib.experience import Transition
from lib.run import Failure, describe_device_error, prepare_torch
from lib.transfer import is_asynchronous

WAIT_SECONDS = 1.0  # between looks at whether the trainer was asked to stop
EXIT_SECONDS = 10.0  # for a player to go by itself: on a GPU, or a busy machine, that takes a while
SHARED_MEMORY = Path("/dev/shm")
START_SECONDS = 120.0  # for its first transition, where the limit is shorter


NO_SHARING = "; memory of this GPU cannot be shared: --play-device cpu does without"


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
            trainer: through shared memory on the CPU, through CUDA IPC on the GPU. One that is
            on the GPU while the player acts on the CPU gets there as a ``Mirror``.
        bound: transitions that the player may be ahead.
        seed: of the process.
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

    def __enter__(self) -> Self:
        self._mirrors: list[Mirror] = []
        args = tuple(map(self._handed_over, self._args))
        self._shares_gpu = any(map(_is_on_gpu, args))
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_run_player,
            args=(theirs, self.bound, self._seed, self._play, Packed(args), self._shares_gpu),
            name="player",
            daemon=True,  # never outlives the trainer, even if that forgets to close
        )
        try:
            self.process.start()
        except RuntimeError as error:
            if self._shares_gpu:
                raise Failure(f"{_first_line(error)}{NO_SHARING}") from None
            raise
        theirs.close()  # the player holds the only other end, so its death ends the pipe
        return self

    def _handed_over(self, arg: Any) -> Any:
        """What the player gets in an argument's place."""
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
        self._pipe.close()  # which the player notices
        if error is None or self._shares_gpu:  # after a failure nothing is left to wait for
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
                    for mirror in self._mirrors:
                        mirror.refresh()
                    self._pipe.send(len(taken))
                    deadline = time.monotonic() + self.timeout
                elif time.monotonic() > deadline:
                    self.process.kill()  # it would not hear that it is to go
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


class Mirror:
    """A copy of a network on the GPU in the CPU's shared memory, refreshed without waiting.

    The weights go to the CPU in one piece, in the order of their bytes in memory, and are put
    into the copy at the first refresh after they have arrived.

    Args:
        network: on the GPU, its weights of one dtype; may go on learning.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = copy.deepcopy(network).cpu()
        self._sources = [_as_vector(weight) for weight in network.parameters()]
        self._gathered = torch.cat(self._sources)
        # What the copy's weights are parts of: one memory, shared in one piece.
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
        """Put what has arrived into the copy, and ask for the newest weights."""
        if self._arrived is not None:
            if not self._arrived.query():
                return
            self._shared.copy_(self._arriving)
        torch.cat(self._sources, out=self._gathered)
        self._arriving.copy_(self._gathered, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()


def _as_vector(weight: torch.Tensor) -> torch.Tensor:
    """The numbers of a dense tensor in the order in which they lie in memory, without a copy."""
    return weight.detach().as_strided((weight.numel(),), (1,))


def _is_on_gpu(arg: Any) -> bool:
    return isinstance(arg, nn.Module) and any(
        is_asynchronous(weight.device) for weight in arg.parameters()
    )


class Packed:
    """Arguments of a player, which it unpacks when it is ready to say what went wrong with that.

    ``multiprocessing`` would unpack them before anything of ours runs, and memory of the GPU
    that cannot be opened would end in a traceback.
    """

    def __init__(self, args: tuple[Any, ...]) -> None:
        self._args: Any = args

    def __getstate__(self) -> bytes:
        return bytes(ForkingPickler.dumps(self._args))

    def __setstate__(self, packed: bytes) -> None:
        self._args = packed

    def unpack(self) -> tuple[Any, ...]:
        """The arguments, once, in the player."""
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
    """What the player's process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to both; the trainer decides
    prepare_torch(seed)
    torch.set_num_threads(1)  # one state at a time; the cores belong to the trainer
    exit_code, hint = 0, NO_SHARING if shares_gpu else ""
    try:
        args = packed.unpack()
        hint = ""
        play(ExperienceQueue(pipe, bound), *args)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the trainer is done
    except Exception as error:
        exit_code = 1
        place = traceback.extract_tb(error.__traceback__)[-1]
        told = describe_device_error(error) or " ".join(str(error).split())
        message = f"{type(error).__name__}: {told}{hint}"
        pipe.send(f"{message} ({Path(place.filename).name}, line {place.lineno})")
    if shares_gpu:
        args = ()
        gc.collect()  # lets go of the trainer's memory
        if trainer := parent_process():
            remove_leftovers(trainer)
    sys.exit(exit_code)


def remove_leftovers(trainer: BaseProcess) -> None:
    """If the trainer was killed, remove the file in shared memory with which torch counts users.

    The file is named after its process. A trainer that ends by itself removes it.
    """
    if wait([trainer.sentinel], timeout=0.1):
        for file in SHARED_MEMORY.glob(f"torch_{trainer.pid}_*"):
            file.unlink(missing_ok=True)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
