"""An Atari 2600 as Pong needs it, in Python that is compiled: ``PongVectorEnv``.

The console is translated and compiled when somebody first asks for that name, not before:
``import emulator`` takes no time, and tells by ``missing`` what the console lacks.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from emulator.rom import EmulatorError, read_rom

if TYPE_CHECKING:
    from emulator.vector_env import PongVectorEnv

__all__ = ["EmulatorError", "PongVectorEnv", "missing"]


def missing(device: str = "cpu") -> str | None:
    """What the console needs and this machine has not, in one line; None if all is there.

    Args:
        device: cpu, or cuda to play on a GPU.
    """
    try:
        import_module("numba")
    except ImportError as error:  # not installed, or not for this NumPy
        return f"Numba, which compiles the console, is missing ({error}): pip install numba==0.68.1"
    if device.startswith("cuda"):
        for name in ("torch", "numba_cuda"):
            if find_spec(name) is None:
                return f"on a GPU the console needs {name}: pip install -r requirements-cuda.txt"
    try:
        read_rom()
    except EmulatorError as error:
        return str(error)
    return None


def __getattr__(name: str) -> Any:
    if name != "PongVectorEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if problem := missing():
        raise EmulatorError(problem)
    return import_module("emulator.vector_env").PongVectorEnv
