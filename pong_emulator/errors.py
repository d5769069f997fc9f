"""What goes wrong in the emulator itself; gymnasium has errors for wrong calls."""


class EmulatorError(Exception):
    """The emulator cannot be built, or cannot go on; the message says why, in one line."""
