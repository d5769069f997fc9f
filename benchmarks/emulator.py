"""Time the emulator beside ALE's and EnvPool's vector environments.

All play at random, in turn: observations of 84x84 and one frame, the maximum of the last two of
four emulated frames. With --cuda only this emulator plays, on the GPU: a step is one CUDA graph,
with 1, 4 or 32 games per warp. ALE and EnvPool need 80 ms and 1 MB to make a game, so they play at
most 1,024. EnvPool plays if it is installed (requirements-peers.txt).

    .venv-peers/bin/python -m benchmarks emulator
    python -m benchmarks emulator --cuda --games 1024 65536
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from itertools import cycle
from typing import Any

from benchmarks.measuring import add_counts, add_out, chosen_device, positive, seconds_per_call
from benchmarks.report import here, spread, write_table
from lib.learning.compiled_update import cuda_graph
from lib.training.machine import describe_machine
from pong_emulator import PongVectorEnv

import numpy as np
import torch
from ale_py import AtariVectorEnv
from gymnasium.vector import AutoresetMode

EMULATOR, ON_GPU = "this emulator", "this emulator on the GPU"
ALE, ENVPOOL = "AtariVectorEnv", "EnvPool"
GAMES, GAMES_ON_GPU = (1, 16, 64, 256, 1_024), (32, 1_024, 16_384, 65_536)
THREADS, PER_WARP = (1, 2), (1, 4, 32)
MOST_GAMES = 1_024  # of ALE and EnvPool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's flags."""
    parser.add_argument("--cuda", action="store_true", help="play on the GPU only")
    text = f"games at once (default: {' '.join(map(str, GAMES))})"
    parser.add_argument("--games", type=positive, nargs="+", metavar="N", help=text)
    counts = {"milliseconds": (500, "length of a measurement"), "rounds": (3, "measurements each")}
    add_counts(parser, counts)
    add_out(parser, "runs/emulator")


def run(args: argparse.Namespace) -> int:
    """Measure, and write the table."""
    machine, out = describe_machine(chosen_device(args.cuda)), args.out
    machine |= {name: version(name) for name in ("numba", "envpool") if find_spec(name)}
    everybody = [EMULATOR, ALE, *[ENVPOOL] * ("envpool" in machine)]
    ways = [(who, n) for who in everybody for n in THREADS]
    if args.cuda:
        ways = [(ON_GPU, n) for n in PER_WARP]
    sizes = args.games or (GAMES_ON_GPU if args.cuda else GAMES)
    rates: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for games in sizes:
        print(f"games: {games:,}", flush=True)
        players = {
            (who, n, games): player(who, games, n)
            for who, n in ways
            if n <= games <= (MOST_GAMES if who in (ALE, ENVPOOL) else games)
        }
        for _ in range(args.rounds):
            for key, play in players.items():
                rates[key].append(games / seconds_per_call(play, args.milliseconds / 1e3))
    rows = [[who, f"{n}", *(spread(rates[who, n, games]) for games in sizes)] for who, n in ways]
    split = "games per warp" if args.cuda else "threads"
    header = ["who", split, *(f"games: {games:,}" for games in sizes)]
    note = "Agent steps per second (four emulated frames each): medians and ranges. Random play"
    print(write_table(out / "emulator", "Emulators of Pong", header, rows, [here(machine), note]))
    return 0


def player(who: str, games: int, n: int) -> Callable[[], Any]:
    """Return a function that plays a random step with n threads (or games per warp)."""
    if who == ON_GPU:
        return player_on_gpu(PongVectorEnv(games, stack=1, device="cuda", games_per_warp=n))
    envs: Any
    if who == ENVPOOL:
        import envpool

        how = {"stack_num": 1, "use_inter_area_resize": True, "num_threads": n}
        envs = envpool.make_gymnasium("Pong-v5", num_envs=games, seed=0, **how)
    elif who == ALE:
        same_step = AutoresetMode.SAME_STEP
        envs = AtariVectorEnv("pong", games, autoreset_mode=same_step, stack_num=1, num_threads=n)
    else:
        envs = PongVectorEnv(games, seed=0, stack=1, threads=n)
    envs.reset()  # with a seed, ALE would compute its tables of colours again
    actions = cycle(np.random.default_rng(0).integers(6, size=(64, games)))
    return lambda: envs.step(next(actions))


def player_on_gpu(envs: Any) -> Callable[[], Any]:
    """Return a function that plays a random step on the GPU, as one CUDA graph."""
    frames, _ = envs.reset(seed=0)
    actions = torch.zeros(envs.num_envs, dtype=torch.int64, device=frames.device)
    rewards = torch.zeros_like(actions, dtype=torch.int32)
    terminated, truncated = (torch.zeros_like(actions, dtype=torch.bool) for _ in range(2))
    play = cuda_graph(envs.stepper(actions, frames, rewards, terminated, truncated))

    def step() -> None:
        actions.random_(6)
        play()

    return step
