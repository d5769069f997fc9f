"""The one way to start a program and to stop it."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import Failed
from benchmarks.report import ROOT


@contextmanager
def started(command: Sequence[str | Path], **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A running program, which ends before the ``with`` does.

    It is in a process group of its own, so that a Ctrl-C of the terminal reaches us alone. When the
    ``with`` ends, however it does, a program that reads from us gets the end of its input, and
    another one SIGTERM, upon which a rung saves its record. Whoever asks us twice gets it killed.
    """
    process = subprocess.Popen(
        command, text=True, errors="replace", process_group=0, cwd=ROOT, **how
    )
    try:
        yield process
    finally:
        try:
            if process.stdin is None:
                process.terminate()  # nothing happens if it has ended
            process.communicate()
        except BaseException:  # asked once more to end
            process.kill()
            process.wait()
            raise


def output_of(command: Sequence[str | Path], who: str) -> list[str]:
    """The lines that a program prints; it runs in the root of this repository.

    Raises:
        Failed: it did not end well, or printed nothing; ``who`` it is called.
    """
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise Failed(f"{who}: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    return lines
