"""A rung as a program: from its command line to its exit code."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any, NoReturn

import torch
from filelock import FileLock, Timeout
from ignite.engine import State
from ignite.handlers import TensorboardLogger

from lib.training.checkpoints import EVENT_FILES, CheckpointError, read_latest
from lib.training.flags import parse
from lib.training.machine import describe_machine, prepare_torch
from lib.training.options import Options
from lib.training.run import Failure, Run, Terminated, describe_device_error, end_on_signals


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
