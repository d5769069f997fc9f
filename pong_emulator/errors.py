"""Errors of the emulator itself; wrong calls raise gymnasium's."""


class EmulatorError(Exception):
    """The emulator cannot be built, or cannot continue; the message says why, in one line."""
