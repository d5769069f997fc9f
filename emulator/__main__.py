"""Print Pong as Python: ``python -m emulator``."""

from emulator.translated import source

print(source())
