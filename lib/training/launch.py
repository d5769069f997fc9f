"""A rung as a program: from its command line to its exit code."""

import errno
import gc
import math
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from datetime import timedelta
from itertools import accumulate, chain, count
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from lib.devices import choose_precision, cores
from lib.gpu_checks import fallbacks
from lib.printing import open_streams, plural, print_line
from lib.training.checkpoints import (
    EVENT_FILES,
    SETTINGS,
    CheckpointError,
    find_checkpoint,
    read_first,
)
from lib.training.flags import parse, shortened
from lib.training.machine import describe_machine, free_cores, prepare_torch, process_as_before
from lib.training.options import Options
from lib.training.run import Failure, Run, describe_device_error, end_on_signals, ignore_signals

import torch
from filelock import FileLock, Timeout
from ignite.handlers import TensorboardLogger

MOST_LETTERS = 60  # of the settings in the name of a run folder


@process_as_before()
def launch(
    train: Callable[[Options, Run[Options]], None], options_class: type[Options], description: str
) -> NoReturn:
    """Run a rung as a program.

    Exit codes: 0 solved (even if a signal ends the games after training) or frame limit reached, 1
    failure (in one line), 2 bad arguments, 128 + the signal that ended training (130: Ctrl-C).
    """
    script, folder, lock = Path(sys.argv[0]).stem, None, None
    open_streams()
    threading.excepthook = _report_unless_reported
    fallbacks.clear()
    try:
        end_on_signals()
        torch.set_flush_denormal(True)  # as in prepare_torch; --init-from starts torch's threads
        params = parse(options_class, description or "")  # python -OO has no docstrings
        device = params.training_device
        if device.type == "cuda":
            torch.cuda.set_device(device.index or 0)  # where streams and graphs are made
        prepare_torch(params.seed)
        # Counting free cores takes a while; skip it if the threads do not depend on them.
        free = cores() if params.threads or device.type != "cpu" else free_cores()
        torch.set_num_threads(params.torch_threads(min(free, torch.get_num_threads())))
        try:
            folder, checkpoint, lock = open_folder(params, script)
        except (OSError, CheckpointError) as error:
            flag = "--resume" if params.resume else "--run-dir"
            print_line(f"{script}: error: {flag}: {error}", sys.stderr)
            sys.exit(2)
        print_line(f"run folder {folder}")
        machine = describe_machine(device)
        text = ", ".join(f"{name} {value}" for name, value in machine.items())
        precision = getattr(params, "precision", "bfloat16 autocast" if params.amp else "float32")
        text = f"{script} in {precision} on {text}"
        print_line(textwrap.fill(text, 80, subsequent_indent="  "))
        if free < cores():
            print_line(f"{free} of {cores()} cores are free (see --threads)")
        if params.amp and device.type == "cpu" and choose_precision(device) != "bfloat16":
            print_line("--amp: this processor has no units for bfloat16, so updates are far slower")
        for notice in params.notices():
            print_line(notice)
        if params.stop_reward is None and not params.max_frames:
            print_line("no goal: set --stop-reward or --max-frames, or stop the run with Ctrl-C")
        if checkpoint:
            frames, updates = (checkpoint["progress"][name] for name in ("frames", "iteration"))
            print_line(f"resumed after {plural(frames, 'frame')}, {plural(updates, 'update')}")
            before = checkpoint[SETTINGS]["hyperparameters"]
            if 0 < before["max_frames"] <= frames and not params.max_frames:
                print_line(f"--max-frames {before['max_frames']:,} was reached: no limit now")
            if (place := before["device"]) != params.device:
                print_line(f"moved from {place} to {params.device}: rounding differs from now on")
        with open_event_file(folder) as tensorboard:
            run = Run(params, device, folder, tensorboard, script, checkpoint, machine=machine)
            del checkpoint  # now only ``run`` holds it, until training begins
            if not params.resume:  # a resumed run does this after loading
                run.write_settings()
            try:
                train(params, run)
            except KeyboardInterrupt:
                if run.signal is not None or not run.outcome:  # training itself was interrupted
                    raise
                ignore_signals()
                if run.solved:
                    print_line("the games after training were cut short")
            ignore_signals()
        gc.collect()  # engine and handlers refer to each other, and hold torch's memory
        print_outcome(run)
        if run.signal is None or run.solved:
            sys.exit(0)
        print_resume_command(folder)
        sys.exit(128 + run.signal)
    except Exception as error:
        ignore_signals()
        _free_memory(error)
        known = isinstance(error, (Failure, CheckpointError, OSError))  # e.g. the disk is full
        failure = error if known else describe_device_error(error)
        if not failure:
            raise
        print_line(f"{script}: failed: {failure}", sys.stderr)
        if not isinstance(error, CheckpointError):  # resuming would fail again
            print_resume_command(folder)
        sys.exit(1)
    except KeyboardInterrupt as error:
        ignore_signals()
        _free_memory(error)
        print_line(f"{script}: interrupted", sys.stderr)
        print_resume_command(folder)
        sys.exit(128 + next(iter(error.args), signal.SIGINT))  # Python's own Ctrl-C has no number
    finally:
        if lock:
            lock.release()


def _free_memory(error: BaseException) -> None:
    traceback.clear_frames(error.__traceback__)
    gc.collect()


def _report_unless_reported(args: threading.ExceptHookArgs) -> None:
    """Ignore an OSError of TensorBoard's thread, because ``launch`` reports it."""
    if not isinstance(args.exc_value, OSError):
        threading.__excepthook__(args)


def open_folder(params: Options, script: str) -> tuple[Path, dict[str, Any] | None, FileLock]:
    """Return the run's folder, its latest checkpoint if it is resumed, and its lock.

    The operating system releases the lock when the process ends, even if it is killed.
    """
    folder = Path(params.resume) if params.resume else make_folder(params, script)
    lock = FileLock(folder / "lock", blocking=False, thread_local=False, preserve_lock_file=True)
    try:
        lock.acquire()
    except Timeout:
        raise CheckpointError(f"{folder} is in use: its run has not ended") from None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK):
            raise
        print_line("this file system has no locks: do not resume a run before it has ended")
    if not params.resume:
        return folder, None, lock
    file, checkpoint, notice = read_first(folder, "latest", "previous")
    if notice:
        print_line(notice)
    # The checkpoint has the length of each event file, and ``load_checkpoint`` cuts files to it. A
    # file that it does not know was left by a resumed run that saved nothing: 0 lets it be deleted.
    progress = checkpoint["progress"]
    files = [events.name for events in folder.glob(EVENT_FILES)]
    progress["events"] = {name: progress["events"].get(name, 0) for name in files}
    return folder, checkpoint | {"file": file}, lock


def open_event_file(folder: Path) -> TensorboardLogger:
    """Open a new event file, which TensorBoard reads after the earlier ones.

    The time in a name decides the order, and an earlier machine's clock may have been ahead.
    """
    times = [int(file.name.split(".")[3]) for file in folder.glob(EVENT_FILES)]
    with patch("time.time", return_value=max([time.time(), *(last + 1 for last in times)])):
        return TensorboardLogger(folder, flush_secs=5)  # new points are shown within seconds


def make_folder(params: Options, script: str) -> Path:
    """Make a new folder for this run, even if another run starts in the same second."""
    game = params.env.split("NoFrameskip")[0].lower()
    started = time.strftime("%Y-%m-%dT%H-%M-%S")
    name = "-".join([script, game, *changed(params), f"seed{params.seed}", started])
    Path(params.run_dir).mkdir(parents=True, exist_ok=True)
    for suffix in chain([""], (f"-{number}" for number in count(2))):
        folder = Path(params.run_dir) / (name + suffix)
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


def changed(params: Options) -> list[str]:
    """Abbreviate the settings that differ from the defaults, for the name of the run folder.

    Leave out those that may change on ``--resume`` (except devices), and those that make the name
    too long.
    """
    usual = replace(type(params)(), device=params.device, amp=params.amp)
    usual, parts = usual.resolved(), list[str]()
    for entry in reversed(fields(params)):  # the rung's own come first
        value, name = getattr(params, entry.name), shortened(entry.name)
        # left out: already in the name, a path, or free to change on --resume
        excluded = entry.metadata["may_change"] or entry.name in ("seed", "env", "init_from")
        if not excluded and value != getattr(usual, entry.name):
            number = f"{value:g}" if isinstance(value, float) else value
            text = "no" * (not value) + name if isinstance(value, bool) else f"{name}{number}"
            parts.append(re.sub(r"[^\w.+-]", "", text))  # for every file system
    parts += [params.device.replace(":", "")] * (params.device != "cpu") + ["amp"] * params.amp
    lengths = accumulate(len(part) for part in parts)
    shown = [part for part, length in zip(parts, lengths, strict=True) if length <= MOST_LETTERS]
    more = len(parts) - len(shown)
    return [*shown, f"and{more}more"] if more else shown


def print_outcome(run: Run) -> None:
    """Print the outcome of training."""
    outcome = run.outcome or {}
    fps, time_passed = outcome["fps"], timedelta(seconds=int(outcome["seconds"]))
    reward = f"avg_reward {outcome['avg_reward']:.2f}" if outcome["episodes"] else "no game ended"
    print_line(reward + f", {fps:,.1f} FPS" * math.isfinite(fps))  # none without training
    end = "solved" if run.solved else "interrupted" if run.signal else "frame limit reached"
    played = [plural(int(outcome[f"{noun}s"]), noun) for noun in ("episode", "frame", "update")]
    text = "{} in {}, after {}, {} and {}".format(end, time_passed, *played)
    print_line(textwrap.fill(text, 80, subsequent_indent="  "))


def print_resume_command(folder: Path | None) -> None:
    """Print the command that resumes this run, if it has a checkpoint."""
    if folder is None:
        return
    with suppress(CheckpointError):  # it has none
        find_checkpoint(folder, "latest", "previous")
        join = subprocess.list2cmdline if sys.platform == "win32" else shlex.join
        print_line(f"resume it with\n  python {join([sys.argv[0], '--resume', str(folder)])}")
