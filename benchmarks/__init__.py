"""Measuring the ladder; see ``python -m benchmarks --help``."""


class UserError(Exception):
    """The command cannot be done; the message says why in one line. Exit code 2."""


class Failed(Exception):  # noqa: N818, it is how a command ends
    """A program that was started did not finish; the message says why in one line. Exit code 1."""
