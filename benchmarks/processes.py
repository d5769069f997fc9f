"""The one way to start a program and to stop it."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks import Failed
from benchmarks.report import ROOT


@contextmanager
def started(
    command: Sequence[str | Path], grace: float | None = None, **how: Any
) -> Iterator[subprocess.Popen[str]]:
    """A running program; it ends before the ``with`` does, and what it started, too.

    It is in a process group of its own: a Ctrl-C of the terminal reaches us alone. We pass it on
    once, because a rung that gets a second one does not write its records.

    Args:
        command: what is run, in the root of this repository.
        grace: seconds until a program that was asked to stop is killed; None: it is waited for.
        how: as of ``subprocess.Popen``.
    """
    process = subprocess.Popen(
        command, text=True, errors="replace", process_group=0, cwd=ROOT, **how
    )
    try:
        yield process
    finally:
        _stop(process, grace)


def _stop(process: subprocess.Popen[str], grace: float | None) -> None:
    below = []
    if process.poll() is None:
        below = psutil.Process(process.pid).children(recursive=True)
        if process.stdin is None:  # else the end of its input is its end
            process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=grace)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):  # whoever presses again has no time
        process.kill()
        process.communicate()
    for child in psutil.wait_procs(below, timeout=1)[1]:
        child.kill()


def run_for(seconds: float, command: Sequence[str], grace: float, log: IO[str]) -> int | None:
    """Run Python with these arguments; the exit code, None if it had to be stopped then."""
    full = [sys.executable, *command]
    with started(full, grace, stdout=log, stderr=subprocess.STDOUT) as process:
        try:
            return process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            return None


def lines_of(log: Path) -> list[str]:
    """The lines that a program printed, without the empty ones."""
    lines = log.read_text(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def output_of(command: Sequence[str | Path], who: str, **how: Any) -> list[str]:
    """Run a program to its end.

    Args:
        command: what is run, in the root of this repository.
        who: what it is called.
        how: as of ``subprocess.run``.

    Returns:
        The lines that it printed.

    Raises:
        Failed: it did not end well, or printed nothing.
    """
    done = subprocess.run(command, capture_output=True, text=True, **({"cwd": ROOT} | how))
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise Failed(f"{who}: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    return lines


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """Call a module's function in a process that has done nothing before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *args).result()
