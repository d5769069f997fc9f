"""A run from the command line to its exit code: seeds, threads, folder, records, failures."""

import math
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, Generic, NoReturn

import torch
from filelock import FileLock, Timeout
from ignite.engine import State
from ignite.handlers import TensorboardLogger
from torch.utils.tensorboard import summary

from lib.gpu_checks import left_out
from lib.running import hparams
from lib.running.checkpoints import EVENT_FILES, CheckpointError, read_latest
from lib.running.flags import parse
from lib.running.machine import describe_machine, prepare_torch
from lib.running.options import Options

# What torch has no exception of its own for, cuDNN's and cuBLAS's errors among them.
DEVICE_ERRORS = ("CUDA error", "CUDA driver error", "cuDNN error", "cuFFT error", "NVRTC error")


Handler = Callable[[int, Any], Any]  # of a signal


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, whose number this holds, ends the program as Ctrl-C does."""


class Failure(Exception):  # noqa: N818, it is how a run ends
    """Training cannot continue; the message says why in one line."""


@dataclass
class Run(Generic[Options]):
    """A run: what ``train`` gets besides its settings."""

    options: Options
    device: torch.device
    folder: Path
    tensorboard: TensorboardLogger
    script: str
    checkpoint: dict[str, Any] | None = None  # the one to resume from
    signal: int | None = field(default=None)  # the signal that ended training
    machine: Mapping[str, Any] = field(default_factory=dict)  # see ``describe_machine``
    outcome: dict[str, float] | None = None  # once training has ended

    @property
    def solved(self) -> bool:
        """Whether training has ended with the game solved."""
        return self.outcome is not None and bool(self.outcome["solved"])

    def write_outcome(self, state: State) -> None:
        """Write the outcome to TensorBoard: training has ended."""
        self.outcome = {
            "frames": state.frames,
            "updates": state.iteration,
            "episodes": state.episodes,
            "seconds": state.time_passed,
            "minutes": state.time_passed / 60,
            "fps": state.avg_fps,  # of training, if training began
            "avg_reward": state.avg_reward,
            "solved": float(state.solved),
            **{f"reached_{name}": value for name, value in state.reached.items()},
        }
        for name, value in self.outcome.items():
            if math.isfinite(value):  # avg_reward is not, before the first episode, for example
                self.tensorboard.writer.add_scalar(f"outcome/{name}", value)
        *_, ended = summary.hparams({}, {})
        self.tensorboard.writer.file_writer.add_summary(ended)
        self.tensorboard.writer.flush()

    @property
    def frames_before(self) -> int:
        """Frames played before the checkpoint that this run resumes from; 0 in a new run."""
        return self.checkpoint["progress"]["frames"] if self.checkpoint else 0

    def write_settings(self) -> None:
        """List the run in TensorBoard's HPARAMS tab, with what was left out until now."""
        parts = "; ".join([*self.options.remarks(), *left_out])
        told = {"script": self.script, **asdict(self.options), **self.machine, "left_out": parts}
        hparams.write_settings(self.folder, told)

    def autocast(self) -> torch.autocast:
        """bfloat16 where it is safe, if ``--amp`` was given."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.amp)


def launch(
    train: Callable[[Options, Run[Options]], State], options_class: type[Options], description: str
) -> NoReturn:
    """Run a rung as a program.

    Exit codes: 0 solved or frame limit reached, 1 failure, 2 bad arguments, 130 Ctrl-C,
    143 SIGTERM, 129 SIGHUP (a closed terminal). A signal in the games after training leaves a
    solved run solved: 0. Every expected failure is one line on standard error.

    Args:
        train: trains until it is done, and returns the engine's state.
        options_class: the class of the rung's settings.
        description: for ``--help``.
    """
    script = Path(sys.argv[0]).stem
    threading.excepthook = _report_unless_reported
    try:
        options = parse(options_class, description)
        end_on_signals()
        device = options.training_device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # streams and graphs are made on the current one
        prepare_torch(options.seed)
        if options.torch_threads:
            torch.set_num_threads(options.torch_threads)
        try:
            folder, checkpoint, _lock = open_folder(options, script)
        except (OSError, CheckpointError) as error:
            flag = "--resume" if options.resume else "--run-dir"
            print(f"{script}: error: {flag}: {error}", file=sys.stderr)
            sys.exit(2)
        machine = describe_machine(device)
        told = ", ".join(f"{name} {value}" for name, value in machine.items())
        autocast = "bfloat16 autocast" if options.amp else "float32"
        print(f"{script} in {getattr(options, 'precision', autocast)} on {told}")
        for remark in options.remarks():
            print(remark)
        print(f"run folder {folder}", flush=True)
        if checkpoint:
            frames, updates = (checkpoint["progress"][name] for name in ("frames", "iteration"))
            print(f"resumed after {frames:,} frames, {updates:,} updates", flush=True)
        # TensorBoard should show new points within seconds.
        with TensorboardLogger(folder, flush_secs=5) as tensorboard:
            run = Run(options, device, folder, tensorboard, script, checkpoint, machine=machine)
            del checkpoint  # the run has it, and drops it when it has started
            if not options.resume:  # else when it is known to work
                run.write_settings()
            try:
                train(options, run)
            except KeyboardInterrupt:
                if run.signal is not None or not run.solved:  # training itself was interrupted
                    raise
                print("the games after training were cut short", flush=True)
        print(_last_line(run))
        sys.exit(0 if run.signal is None or run.solved else 128 + run.signal)
    except (Failure, CheckpointError, OSError, RuntimeError) as error:  # e.g. the disk is full
        failure = describe_device_error(error) if isinstance(error, RuntimeError) else error
        if not failure:
            raise
        print(f"{script}: failed: {failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as error:
        print(f"{script}: interrupted", file=sys.stderr)
        sys.exit(128 + (error.args[0] if isinstance(error, Terminated) else signal.SIGINT))


def end_on_signals() -> None:
    """Let signals end the program at once; ``lib.running.handlers`` changes that in training."""
    on_signals(signal.default_int_handler, _terminate)


def on_signals(interrupt: Handler, terminate: Handler) -> None:
    """Handle Ctrl-C, and SIGTERM and SIGHUP; SIGHUP stays ignored if ``nohup`` began this."""
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, terminate)
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, terminate)


def describe_device_error(error: Exception) -> str | None:
    """The error of the GPU, in one line; None if it is another kind of error.

    A GPU reports an error late, at whatever call comes next.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if isinstance(error, torch.OutOfMemoryError):
        sentences = lines[0].split(". ")[:3]  # what was asked for, what is free; then advice
        return ". ".join(sentences) + "; a smaller --batch-size or --replay-size may fit"
    told = isinstance(error, torch.AcceleratorError) or lines[0].startswith(DEVICE_ERRORS)
    return lines[0] if told else None


def describe_error(error: Exception) -> str:
    """An error of another process in one line, with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    told = describe_device_error(error) or " ".join(str(error).split())
    return f"{type(error).__name__}: {told} ({Path(place.filename).name}, line {place.lineno})"


def _report_unless_reported(args: threading.ExceptHookArgs) -> None:
    """Stay silent about OSError: TensorBoard raises it again in the loop, see ``launch``."""
    if not isinstance(args.exc_value, OSError):
        threading.__excepthook__(args)


def open_folder(options: Options, script: str) -> tuple[Path, dict[str, Any] | None, FileLock]:
    """The folder of the run, its latest checkpoint if it is resumed, and its lock.

    The lock is the operating system's: it ends with its process, even if that is killed.
    """
    folder = Path(options.resume) if options.resume else make_folder(options, script)
    lock = FileLock(folder / "lock", blocking=False, thread_local=False, preserve_lock_file=True)
    try:
        lock.acquire()
    except Timeout:
        raise CheckpointError(f"{folder} is in use: its run has not ended") from None
    if not options.resume:
        return folder, None, lock
    file, checkpoint, remark = read_latest(folder)
    if remark:
        print(remark)
    # What was logged after it is cut off when all is loaded, not before. Files that it does not
    # know are from a resumed run that saved no checkpoint.
    progress = checkpoint["progress"]
    files = [events.name for events in folder.glob(EVENT_FILES)]
    progress["events"] = {name: progress["events"].get(name, 0) for name in files}
    return folder, checkpoint | {"file": file}, lock


def make_folder(options: Options, script: str) -> Path:
    """Make a new folder for this run, even if another run starts in the same second."""
    game = options.env.split("NoFrameskip")[0].lower()
    started = time.strftime("%Y-%m-%dT%H-%M-%S")
    name = f"{script}-{game}-seed{options.seed}-{started}"
    Path(options.run_dir).mkdir(parents=True, exist_ok=True)
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    while True:
        folder = Path(options.run_dir) / next(names)
        with suppress(FileExistsError):
            folder.mkdir()
            return folder


def _last_line(run: Run) -> str:
    outcome = run.outcome
    assert outcome is not None  # training has ended
    stopped = "frame limit reached" if run.signal is None else "interrupted"
    end = "solved" if run.solved else stopped
    return (
        f"{end} after {outcome['frames']:,} frames, {outcome['episodes']:,} episodes and "
        f"{outcome['seconds']:,.0f} seconds; avg_reward {outcome['avg_reward']:.2f}, "
        f"{outcome['fps']:,.1f} FPS"
    )


def _terminate(number: int, _: object) -> NoReturn:
    raise Terminated(number)
