"""A run as its rung sees it: settings, device, folder and records, signals and failures."""

import math
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn

from lib.gpu_checks import fallbacks
from lib.seeds import resumed_seed
from lib.training import hparams
from lib.training.options import Options

import torch
from ignite.engine import State
from ignite.handlers import TensorboardLogger
from torch.utils.tensorboard import summary

# Errors without an exception class in torch: of CUDA, of its libraries and of Triton.
DEVICE_ERRORS = (
    "CUDA error", "CUDA driver error", "CUDA NVRTC error", "NVRTC error", "cuDNN error",
    "cuDNN Frontend error", "cuFFT error", "Triton Error [CUDA]",
    "GET was unable to find an engine",  # cuDNN, often without memory
)  # fmt: skip
NUMBA_ERRORS = ("CUDAError", "CudaAPIError")  # classes of packages that may not be installed
# The same for memory: Linux, Windows, and Apple's GPUs.
NO_MEMORY = ("can't allocate memory", "not enough memory", "MPS backend out of memory")
# Signals of a closed terminal, and of batch systems before they kill; Windows has none.
WARNINGS = [n for n in signal.Signals if n.name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")]
SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, *WARNINGS)  # they end a run


class Failure(RuntimeError):  # noqa: N818, it is how a run ends
    """Training cannot continue; the message says why in one line."""


@dataclass
class Run(Generic[Options]):
    """A run, as passed to a rung's ``train``."""

    params: Options
    device: torch.device
    folder: Path
    tensorboard: TensorboardLogger
    script: str
    checkpoint: dict[str, Any] | None = None  # the one to resume from
    signal: int | None = None  # the signal that ended training
    machine: Mapping[str, Any] = field(default_factory=dict)  # see ``describe_machine``
    outcome: dict[str, float] | None = None  # once training has ended

    @property
    def solved(self) -> bool:
        return self.outcome is not None and bool(self.outcome["solved"])

    def write_outcome(self, state: State) -> None:
        self.outcome = {
            "frames": state.frames,
            "updates": state.iteration,
            "episodes": state.episodes,
            "seconds": state.time_passed,
            "minutes": state.time_passed / 60,
            "fps": state.avg_fps,  # of training
            "avg_reward": state.avg_reward,
            "solved": float(state.solved),
            **{f"reached_{name}": value for name, value in state.reached.items()},
        }
        for name, value in self.outcome.items():
            if math.isfinite(value):  # no FPS without training, no avg_reward without an episode
                self.tensorboard.writer.add_scalar(f"outcome/{name}", value)
        *_, ended = summary.hparams({}, {})
        self.tensorboard.writer.file_writer.add_summary(ended)
        self.tensorboard.writer.flush()

    @property
    def frames_before(self) -> int:
        """Frames of the checkpoint that this run resumes from; 0 in a new run."""
        return self.checkpoint["progress"]["frames"] if self.checkpoint else 0

    @property
    def games(self) -> int:
        """How many games are played at the same time."""
        return getattr(self.params, "envs", 1) * getattr(self.params, "players", 1)

    @property
    def games_seed(self) -> int:
        """The seed of this process's games; a resumed run plays other ones."""
        return resumed_seed(self.params.seed, self.frames_before)

    def write_settings(self) -> None:
        """List the run in TensorBoard's HPARAMS tab, with the optimisations left out so far."""
        parts = "; ".join([*self.params.notices(), *fallbacks])
        settings = {"script": self.script, **asdict(self.params), **self.machine, "left_out": parts}
        hparams.write_settings(self.folder, settings)

    def autocast(self) -> torch.autocast:
        """Return a context that computes in bfloat16 where it is safe, if ``--amp`` was given."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.params.amp)


def end_on_signals() -> None:
    """Let signals end the program at once; ``lib.training.handlers`` changes that in training."""
    on_signals(_terminate)


def on_signals(handler: Callable[[int, Any], Any]) -> None:
    """Handle Ctrl-C, SIGTERM, and ``WARNINGS`` that are not ignored (``nohup`` ignores SIGHUP)."""
    asked = [number for number in WARNINGS if signal.getsignal(number) is not signal.SIG_IGN]
    set_signals(dict.fromkeys([signal.SIGINT, signal.SIGTERM, *asked], handler))


def ignore_signals() -> None:
    """Ignore the signals that end a run, because it is ending."""
    set_signals(dict.fromkeys(SIGNALS, signal.SIG_IGN))


def set_signals(handlers: Mapping[int, Any]) -> None:
    """Set handlers of signals; outside the main thread, where Python allows none, do nothing."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)


def describe_device_error(error: Exception) -> str | None:
    """Describe an error of the GPU or of memory in one line; return None for other errors."""
    line = str(error).strip().split("\n")[0]
    if isinstance(error, MemoryError) or any(words in line for words in NO_MEMORY):
        return f"out of memory: {line or 'MemoryError'}; a smaller --replay-size or --envs may fit"
    if "shared memory" in line:
        return f"{line}; enlarge /dev/shm (Docker: --shm-size=1g)"
    if isinstance(error, torch.OutOfMemoryError):
        sentences = line.split(". ")[:3]  # on what was requested and what is free
        return ". ".join(sentences) + "; a smaller --batch-size, --replay-size or --envs may fit"
    known = isinstance(error, torch.AcceleratorError) or line.startswith(DEVICE_ERRORS)
    return line if known or type(error).__name__ in NUMBA_ERRORS else None


def describe_error(error: Exception) -> str:
    """Describe an error of another process in one line, with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    message = describe_device_error(error) or " ".join(str(error).split())
    return f"{type(error).__name__}: {message} ({Path(place.filename).name}, line {place.lineno})"


def _terminate(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt(number)
