"""Print Pong as Python: ``python -m pong_emulator``."""

from .translated import source

print(source())
