"""An Atari 2600 as Pong needs it, in Python that is compiled: ``PongVectorEnv``."""

from emulator.rom import EmulatorError
from emulator.vector_env import PongVectorEnv

__all__ = ["EmulatorError", "PongVectorEnv"]
