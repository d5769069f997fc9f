"""Atari 2600 Pong in compiled Python: ``PongVectorEnv``.

The first games translate and compile the emulator. ``missing`` tells what it lacks on this machine.
``gymnasium.make_vec("pong_emulator/Pong-v0")`` makes the same games.
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
    """Return in one line what this machine lacks to play on a device, or None.

    Raise ValueError if the device is not cpu, cuda or cuda:1, for example.
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"device is {device}, and must be cpu, cuda or cuda:1")
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


def PongVectorEnv(  # noqa: N802, used like a class
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
    """Make games of Pong, emulated in compiled Python and preprocessed as DeepMind did.

    The same seeds and actions give the same games as ``ale_py.AtariVectorEnv("pong", ...)`` with
    ``AutoresetMode.SAME_STEP``, pixel for pixel. When a game ends, the next one begins in the same
    step; ``info["final_obs"]`` then has the last observations.

        envs = PongVectorEnv(32, seed=0)
        observations, info = envs.reset()
        observations, rewards, terminated, truncated, info = envs.step(actions)

    Args:
        num_envs: number of games.
        seed: game ``i`` gets ``seed + i``; or one seed per game, below 2**31; None: random.
            ``reset`` may change it.
        device: cpu or cuda, where arrays are torch tensors (see ``cuda.py``).
        threads: CPU threads that play, without the interpreter's lock; 0: one per core; 1: the
            caller's own.
        games_per_warp: on a GPU, games that run in lockstep, 1 to 32; 0: as few as let all games
            play at once.
        stack: frames per observation; a new game begins with black ones.
        frame_skip: emulated frames per action.
        max_pool: take the maximum of the last two emulated frames in grey, not the last one alone.
        noop_max: games begin with FIRE and up to ``noop_max`` - 2 emulated no-op frames.
        reward_clipping: clip rewards to their sign.
        max_num_frames_per_episode: emulated frames after which a game is truncated.
        rows: rows of an observation that are drawn, [first, last); the others stay black.
        render_mode: rgb_array, for ``render``, or None.

    Raises:
        ValueError: an argument is out of range or unknown, or there are not as many seeds as games.
        EmulatorError: something is missing, see ``missing``.
    """
    if problem := missing(str(device)):
        raise EmulatorError(problem)
    from .vector_env import Settings

    settings = Settings(
        stack, frame_skip, max_pool, noop_max, reward_clipping, max_num_frames_per_episode,
        rows, render_mode,
    )  # fmt: skip
    if str(device).startswith("cuda"):
        from .cuda import CudaPongVectorEnv  # imports torch and CUDA

        return CudaPongVectorEnv(num_envs, settings, seed, device, games_per_warp)
    from .threads import ThreadedPongVectorEnv

    return ThreadedPongVectorEnv(num_envs, settings, seed, threads)


def prepare(device: str = "cpu") -> None:
    """Compile the emulator now, or load it from the cache.

    For a GPU, this compiles only the kernels; its games need the CPU's part, too. Raise
    EmulatorError if something is missing, see ``missing``.
    """
    if problem := missing(device):
        raise EmulatorError(problem)
    if device.startswith("cuda"):
        import_module(f"{__name__}.cuda").prepare(device)
    else:
        games = PongVectorEnv(1, threads=1)
        games.reset()
        games.step(games.action_space.sample())
        games.screen(0)
        games.close()
    _prepared(device).touch()


def _prepared(device: str) -> Path:
    from .compiling import folder

    if device.startswith("cuda"):
        kind = import_module("torch").cuda.get_device_capability(device)
        device = "sm_{}{}".format(*kind)
    return folder() / f"prepared-{device}"


@contextmanager
def preparing(device: Any = "cpu") -> Iterator[None]:
    """Run ``prepare`` in other processes during the ``with`` block, and wait for them at its end.

    One compiles for the CPU, another for the GPU if ``device`` is one. If one fails, the first
    games compile, and raise the error. Signals to this process or its group do not reach them.
    Raise EmulatorError if something is missing on the CPU.
    """
    if problem := missing():
        raise EmulatorError(problem)
    from .compiling import folder

    devices = ["cpu"]
    if str(device).startswith("cuda") and not missing(str(device)):
        devices.append(str(device))
    # Use this process's folder: without a lasting cache, each would have its own.
    program = (
        f"import pathlib, {__name__} as p, {__name__}.compiling as c; "
        f"c.folder = lambda: pathlib.Path({str(folder())!r}); p.prepare"
    )
    settings: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    settings |= {"cwd": Path(__file__).parents[__name__.count(".") + 1], "start_new_session": True}
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
    call = f"gymnasium.make_vec({_id!r}, num_envs=1)"
    raise gymnasium.error.Error(f"this is a vector environment, which {call} makes")


gymnasium.register(_id, f"{__name__}:_single_game", vector_entry_point=f"{__name__}:PongVectorEnv")
