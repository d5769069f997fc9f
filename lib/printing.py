"""Terminal output: lines above a live bar, and the elapsed time."""

import errno
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm


def open_streams() -> None:
    """Ensure that printing cannot fail: discard text for closed streams, escape unknown letters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115, open until exit
        if hasattr(stream, "reconfigure"):  # a notebook's stream has none
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, stream)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 frame, 2 frames."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def print_line(line: str, file: TextIO | None = None) -> None:
    """Print a line above the live bar; if the pipe or terminal is closed, the run goes on."""
    file = file or sys.stdout
    try:
        tqdm.write(line, file=file)
        if hasattr(file, "flush"):  # a notebook's stream may have none
            file.flush()  # so that log files and pipes show it at once, too
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        # The pipe or terminal is gone: discard everything, also the text flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


@contextmanager
def show_elapsed(line: str) -> Iterator[None]:
    """Announce slow work; a terminal also shows the elapsed time until it is done."""
    print_line(line)
    done = threading.Event()
    # The final \r returns the cursor to the line's beginning, so later text overwrites a ^C.
    layout = "{elapsed} (up to two minutes at the first start, then seconds)\r"
    within = bool(tqdm._instances)  # another clock runs already
    with tqdm(bar_format=layout, leave=False, disable=within or None) as clock:

        def tick() -> None:
            while not done.wait(1):
                clock.refresh()

        threading.Thread(target=tick, daemon=True).start()
        try:
            yield
        finally:
            done.set()
