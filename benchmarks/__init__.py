"""Measuring the ladder; see ``python -m benchmarks --help``."""

import lib  # noqa: F401, before torch: it sets how OpenMP's threads wait


class UserError(Exception):
    """A command that cannot run; the message is one line. Exit code 2."""


class Failed(Exception):  # noqa: N818, it is how a command ends
    """A started program that failed; the message is one line. Exit code 1."""
