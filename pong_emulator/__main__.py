"""Print Pong as Python: ``python -m emulator``."""

from .translated import source

print(source())
