"""An Atari 2600 as Pong needs it, in Python that is compiled: ``PongVectorEnv``.

The emulator is translated when somebody first makes games, and compiled when they first begin.
After an import ``missing`` tells what the emulator lacks. ``gymnasium.make_vec`` makes the games,
too; their name there is that of this package and ``/Pong-v0``.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import gymnasium

from .errors import EmulatorError
from .rom import read_rom

if TYPE_CHECKING:
    import numpy as np

    from .vector_env import BasePongVectorEnv

__all__ = ["EmulatorError", "PongVectorEnv", "missing", "prepare", "preparing"]


def missing(device: str = "cpu") -> str | None:
    """What the emulator needs and this machine has not, in one line; None if all is there.

    Args:
        device: cpu, or cuda to play on a GPU.
    """
    try:
        import_module("numba")
    except ImportError as error:  # not installed, or not for this NumPy
        return (
            f"Numba, which compiles the emulator, is missing ({error}): pip install numba==0.68.1"
        )
    if device.startswith("cuda"):
        needed = "on a GPU the emulator needs"
        if find_spec("torch") is None:
            return f"{needed} torch: see pytorch.org/get-started"
        torch, simulated = import_module("torch"), import_module("numba").config.ENABLE_CUDASIM
        if not simulated and (torch.device(device).index or 0) >= torch.cuda.device_count():
            return f"torch finds no GPU {device} on this machine"
        if find_spec("numba_cuda") is None:
            how = 'pip install "numba-cuda[cu13]" "cuda-toolkit==13.0.*"'
            return f"{needed} numba_cuda: {how}"
    try:
        read_rom()
    except EmulatorError as error:
        return str(error)
    return None


def PongVectorEnv(  # noqa: N802, a class for those who call it, as threading.Lock was
    num_envs: int,
    *,
    seed: "int | Sequence[int] | np.ndarray | None" = None,
    device: Any = "cpu",
    threads: int = 0,
    games_per_warp: int = 0,
    stack: int = 4,
    frame_skip: int = 4,
    max_pool: bool = True,
    noop_max: int = 30,
    reward_clipping: bool = True,
    max_num_frames_per_episode: int = 108_000,
    rows: tuple[int, int] = (0, 84),
    render_mode: str | None = None,
) -> "BasePongVectorEnv":
    """Games of Pong, emulated in compiled Python, and preprocessed as DeepMind did.

    The same seeds and actions give the same games as ``ale_py.AtariVectorEnv("pong", ...)`` with
    ``AutoresetMode.SAME_STEP``, pixel for pixel. What ends is followed by the next game in the same
    step; ``info["final_obs"]`` then has the last observations.

        envs = PongVectorEnv(32, seed=0)
        observations, info = envs.reset()
        observations, rewards, terminated, truncated, info = envs.step(actions)

    Args:
        num_envs: games played at once.
        seed: game ``i`` is seeded with ``seed + i``, or a seed for each, below 2**31; None for
            chance. ``reset`` may change it.
        device: cpu; or cuda, then arrays are torch tensors there (see ``cuda.py``).
        threads: of the CPU that play, outside of the interpreter's lock; 0 for one per core. A
            single one is the caller's own.
        games_per_warp: of a GPU: so many games, 1 to 32, wait for each other's branches; 0 for as
            few as let all games play at once.
        stack: frames of an observation; a new game begins with black ones.
        frame_skip: emulated frames of a frame: how long an action is held.
        max_pool: see the maximum of the last two emulated frames in grey, not the last one alone.
        noop_max: games begin with FIRE and up to so many emulated frames, less two, of doing
            nothing.
        reward_clipping: rewards as their sign.
        max_num_frames_per_episode: emulated frames after which a game is cut short.
        rows: of an observation, those that are drawn, from one to before the other; the others
            stay black.
        render_mode: rgb_array, then ``render`` returns pictures; or None.

    Raises:
        ValueError: a number is too small, too large or not whole, there are not as many seeds as
            games, or there is no such device or render mode.
        EmulatorError: something is missing, see ``missing``.
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", str(device)):
        raise ValueError(f"device is {device}, and must be cpu, cuda or cuda:1")
    if problem := missing(str(device)):
        raise EmulatorError(problem)
    from .vector_env import Settings

    settings = Settings(
        stack, frame_skip, max_pool, noop_max, reward_clipping, max_num_frames_per_episode,
        rows, render_mode,
    )  # fmt: skip
    if str(device).startswith("cuda"):
        from .cuda import CudaPongVectorEnv  # torch and CUDA are wanted there alone

        return CudaPongVectorEnv(num_envs, settings, seed, device, games_per_warp)
    from .threads import ThreadedPongVectorEnv

    return ThreadedPongVectorEnv(num_envs, settings, seed, threads)


def prepare(device: str = "cpu") -> None:
    """Compile the emulator now, or load what was compiled, so that no games wait for it.

    Args:
        device: cpu, or that of a GPU, for its kernels alone: its games need the CPU's part, too.

    Raises:
        EmulatorError: something is missing, see ``missing``.
    """
    if device.startswith("cuda"):
        if problem := missing(device):
            raise EmulatorError(problem)
        import_module(f"{__name__}.cuda").prepare(device)
    else:
        games = PongVectorEnv(1, threads=1)
        games.reset()
        games.step(games.action_space.sample())
        games.screen(0)
        games.close()
    _prepared(device).touch()


def _prepared(device: str) -> Path:
    """The file that says that everything is compiled for this device, or for GPUs of its kind."""
    from .compiling import folder

    if device.startswith("cuda"):
        kind = import_module("torch").cuda.get_device_capability(device)
        device = "sm_{}{}".format(*kind)
    return folder() / f"prepared-{device}"


@contextmanager
def preparing(device: Any = "cpu") -> Iterator[None]:
    """``prepare`` in other processes, while the ``with`` lasts; it ends when all are done.

    One is for the CPU, and one for a GPU, if that is the device, and can play. If everything was
    compiled before, nothing is done. If a process fails, the first games compile, and raise what is
    wrong. No signal to this process or its group reaches them.

    Raises:
        EmulatorError: something is missing on the CPU, see ``missing``.
    """
    if problem := missing():
        raise EmulatorError(problem)
    from .compiling import folder

    devices = ["cpu"]
    if str(device).startswith("cuda") and not missing(str(device)):
        devices.append(str(device))
    # Into this process's folder: where nothing can be kept, they would have their own.
    program = (
        f"import pathlib, {__name__} as p, {__name__}.compiling as c; "
        f"c.folder = lambda: pathlib.Path({str(folder())!r}); p.prepare"
    )
    settings: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    settings |= {"cwd": Path(__file__).parent.parent, "start_new_session": True}
    processes: list[subprocess.Popen] = []
    try:
        for name in devices:
            if not _prepared(name).exists():
                command = [sys.executable, "-c", f"{program}({name!r})"]
                processes.append(subprocess.Popen(command, **settings))
        yield
        for process in processes:
            process.wait()
    finally:
        for process in processes:
            process.kill()
            process.wait()


_id = f"{__name__.rpartition('.')[2]}/Pong-v0"  # gymnasium's names have no dots


def _single_game(**_: Any) -> NoReturn:
    """Say in place of ``gymnasium.make`` what makes these games."""
    call = f"gymnasium.make_vec({_id!r}, num_envs=1)"
    raise gymnasium.error.Error(f"this is a vector environment, which {call} makes")


gymnasium.register(_id, f"{__name__}:_single_game", vector_entry_point=f"{__name__}:PongVectorEnv")
