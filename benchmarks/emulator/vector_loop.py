"""A vector environment of others plays Pong: a number of seconds in, agent steps per second out.

    python vector_loop.py {AtariVectorEnv,EnvPool} GAMES THREADS

Run by ``python -m benchmarks emulator``, EnvPool in the peers' environment. A first line comes out
once the games stand. That takes 80 ms of a core for each game, in which ALE's emulator, which
EnvPool has, too, computes a table of colours.
"""

import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # of this project, only the timing
from benchmarks.timing import seconds_per_call


def build(who: str, games: int, threads: int) -> Any:
    """The environment, with observations of one frame."""
    if who == "EnvPool":
        import envpool

        how = {"stack_num": 1, "use_inter_area_resize": True, "num_threads": threads}
        return envpool.make_gymnasium("Pong-v5", num_envs=games, seed=0, **how)
    import ale_py
    from gymnasium.vector import AutoresetMode

    how = {"stack_num": 1, "num_threads": threads, "autoreset_mode": AutoresetMode.SAME_STEP}
    return ale_py.AtariVectorEnv("pong", games, **how)


def main(who: str, games: int, threads: int) -> None:
    """Play whenever a line comes in."""
    envs = build(who, games, threads)
    envs.reset()  # with a seed, ALE would compute its tables again
    choices = np.random.default_rng(0).integers(6, size=(64, games))
    actions = cycle(choices)
    envs.step(next(actions))
    print("ready", flush=True)
    for line in sys.stdin:
        print(games / seconds_per_call(lambda: envs.step(next(actions)), float(line)), flush=True)
    envs.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
