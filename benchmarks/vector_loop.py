"""A vector environment plays Pong: a number of seconds in, agent steps per second out.

    python vector_loop.py WHO GAMES THREADS

Run by ``python -m benchmarks emulator``, EnvPool in the peers' environment. A first line comes out
once the games stand. That takes ALE and EnvPool 80 ms of a core for each game.
"""

import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.timing import seconds_per_call

EMULATOR, ON_GPU = "this emulator", "this emulator on the GPU"
ALE, ENVPOOL = "AtariVectorEnv", "EnvPool"


def build(who: str, games: int, threads: int) -> Any:
    """The environment, with observations of one frame."""
    if who == ENVPOOL:
        import envpool

        how = {"stack_num": 1, "use_inter_area_resize": True, "num_threads": threads}
        return envpool.make_gymnasium("Pong-v5", num_envs=games, seed=0, **how)
    if who == ALE:
        import ale_py
        from gymnasium.vector import AutoresetMode

        how = {"stack_num": 1, "num_threads": threads, "autoreset_mode": AutoresetMode.SAME_STEP}
        return ale_py.AtariVectorEnv("pong", games, **how)
    from emulator import PongVectorEnv

    device = "cuda" if who == ON_GPU else "cpu"
    return PongVectorEnv(games, seed=0, stack=1, threads=threads, device=device)


def random_actions(who: str, games: int) -> Callable[[], Any]:
    """Gives the actions of a step: again and again those of 64 steps, on a GPU drawn there."""
    if who == ON_GPU:
        return lambda: torch.randint(6, (games,), device="cuda")
    return cycle(np.random.default_rng(0).integers(6, size=(64, games))).__next__


def main(who: str, games: int, threads: int) -> None:
    """Play whenever a line comes in."""
    envs, actions = build(who, games, threads), random_actions(who, games)
    envs.reset()  # with a seed, ALE would compute its tables of colours again
    envs.step(actions())
    print("ready", flush=True)
    for line in sys.stdin:
        print(games / seconds_per_call(lambda: envs.step(actions()), float(line)), flush=True)
    envs.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
