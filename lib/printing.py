"""What a run prints: lines above a live bar, and the elapsed time."""

import errno
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm


def open_streams() -> None:
    """Let printing never fail: what a closed stream gets goes nowhere, foreign letters escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115, as long as this runs
        if hasattr(stream, "reconfigure"):  # that of a notebook has not
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, stream)


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 frame, 2 frames."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def print_line(line: str, file: TextIO | None = None) -> None:
    """Print a line above the live bar; if nobody reads any more, the run goes on without it."""
    file = file or sys.stdout
    try:
        tqdm.write(line, file=file)
        file.flush()  # so a log file or a pipe shows it at once, too
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        # The pipe or the terminal is gone. What is left to write, at the end of Python, too, goes
        # nowhere then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


@contextmanager
def show_elapsed(line: str) -> Iterator[None]:
    """Print what takes long; a terminal also shows the elapsed time until it is done."""
    print_line(line)
    done = threading.Event()
    # The cursor waits at the beginning, so that a ^C of Ctrl-C is cleared as well.
    layout = "{elapsed} (a minute or two the first time, then seconds)\r"
    within = bool(tqdm._instances)  # another clock, which tells the same
    with tqdm(bar_format=layout, leave=False, disable=within or None) as clock:

        def tick() -> None:
            while not done.wait(1):
                clock.refresh()

        threading.Thread(target=tick, daemon=True).start()
        try:
            yield
        finally:
            done.set()
