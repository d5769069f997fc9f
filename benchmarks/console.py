"""Time the console of ``emulator`` beside ALE's and EnvPool's vector environments.

Random play, observations of 84 x 84 and one frame, the maximum of the last two of four emulated
frames. Everybody plays in turn, round by round. From 1,024 games on there is one round, since ALE
builds 4,096 games in half a minute. Beside that: emulation alone, one ALE environment with this
ladder's wrappers, the first start and later ones, memory per game.

EnvPool is asked in the peers' environment (requirements-peers.txt); where there is none, it is left
out.

    python -m benchmarks console
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numba
import numpy as np
import psutil
import torch
from tqdm import tqdm

from benchmarks import Failed, calibration, plots
from benchmarks.arguments import add_counts, add_out, seconds
from benchmarks.calibration import EMULATED_AT_A_TIME, Emulator
from benchmarks.console_campaign import Settings, ale_games
from benchmarks.report import join_machine, output_folder, short_machine, spread, write_table
from benchmarks.runner import ROOT
from benchmarks.techniques.environments import make_env
from benchmarks.techniques.process import in_fresh_process
from emulator import PongVectorEnv
from emulator.games import step
from emulator.translated import entry_point
from lib.run import describe_machine

GAMES = (1, 4, 16, 64, 256, 1_024, 4_096)
ONE_ROUND = 1_024  # games, from there on
THREADS = (1, 2)
SKIP = 4  # emulated frames of an agent step
CONSOLE, ALE, ENVPOOL = "this console", "AtariVectorEnv", "EnvPool"
ALONE = "this console, emulation alone"
ALE_ALONE, WRAPPERS = "ALE, emulation alone", "ALE with the wrappers of lib"
COLOURS = dict(
    zip((CONSOLE, ALE, ENVPOOL, ALONE, ALE_ALONE, WRAPPERS), plots.PALETTE, strict=False)
)
ONE_FRAME = Settings(stack=1)
START = """
import time; begin = time.perf_counter()
from emulator import PongVectorEnv
envs = PongVectorEnv(2, seed=0); envs.reset(); envs.step([0, 0])
print(time.perf_counter() - begin)
"""

Rate = tuple[str, int, int, float]  # who, threads, games, agent steps per second


@entry_point
def emulate_games(s, games, actions, skip):
    """Play a step of each game; nobody looks."""
    points = 0
    for g in range(games):
        points += step(s, g, actions[g], skip, False, 1 << 30)[0]
    return points


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(".venv-peers/bin/python"),
        help="interpreter with EnvPool (default: .venv-peers/bin/python)",
    )
    parser.add_argument(
        "--seconds", type=seconds, default=0.5, help="of each measurement (default: %(default)s)"
    )
    counts = {"rounds": (3, "measurements of everything"), "most": (GAMES[-1], "games at most")}
    add_counts(parser, counts)
    add_out(parser, "runs/console")


def run(args: argparse.Namespace) -> int:
    """Measure, and write tables, a figure and the record."""
    out = output_folder(args.out)
    print("first and cached start", flush=True)
    first, cached = starts()
    memory = in_fresh_process(memory_per_game, min(args.most, GAMES[-1]))
    rates: list[Rate] = []
    with ExitStack() as cleanup:
        peer = cleanup.enter_context(EnvPool(args.python)) if args.python.exists() else None
        if peer is None:
            print(f"there is no {args.python}: without EnvPool (see requirements-peers.txt)")
        work = list(measurements(args, peer))
        for number, measure in enumerate(tqdm(work, unit="measurement", disable=None)):
            rates.append(measure())
            who, threads, games, rate = rates[-1]
            if not sys.stderr.isatty():
                print(
                    f"{number + 1}/{len(work)} {who}, {threads}, {games:,}: {rate:,.0f}", flush=True
                )
        version = peer.version if peer else None
    machine = describe_machine(torch.device("cpu")) | {"numba": numba.__version__}
    record = {
        "machine": machine | ({"envpool": version} if version else {}),
        "commit": calibration.commit(ROOT),
        "first_start_s": first,
        "cached_start_s": cached,
        "bytes_per_game": memory,
        "agent_steps_per_second": rates,
    }
    (out / "console.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    write(out, record)
    return 0


def measurements(args: argparse.Namespace, peer: "EnvPool | None") -> Iterator[Callable[[], Rate]]:
    """Everything that is to be measured, in turn."""
    for number in range(args.rounds):
        yield partial(one_game, WRAPPERS, args.seconds)
        yield partial(one_game, ALE_ALONE, args.seconds)
        for games in GAMES:
            if games > args.most or (number and games >= ONE_ROUND):
                continue
            yield partial(alone, games, args.seconds)
            for threads in THREADS:
                if threads > games:
                    continue
                yield partial(vector, CONSOLE, threads, games, args.seconds)
                yield partial(vector, ALE, threads, games, args.seconds)
                if peer:
                    yield partial(peer.measure, threads, games, args.seconds)


def timed(work: Callable[[int], Any], per_call: int, seconds: float) -> float:
    """Agent steps per second; ``work`` is told how often it was called."""
    work(0)
    begin, calls = perf_counter(), 0
    while calls == 0 or perf_counter() - begin < seconds:
        work(calls)
        calls += 1
    return per_call * calls / (perf_counter() - begin)


def vector(who: str, threads: int, games: int, seconds: float) -> Rate:
    """A vector environment."""
    if who == CONSOLE:
        envs: Any = PongVectorEnv(games, seed=0, stack=1, threads=threads)
        envs.reset()
    else:
        envs = ale_games(games, ONE_FRAME, threads)
        envs.reset(seed=0)
    choices = random_actions(games)
    rate = timed(lambda n: envs.step(choices[n % len(choices)]), games, seconds)
    envs.close()
    return who, threads, games, rate


def alone(games: int, seconds: float) -> Rate:
    """The console in one thread, without drawing or preprocessing."""
    envs = PongVectorEnv(games, seed=0, stack=1, threads=1)
    envs.reset()
    choices = random_actions(games)

    def play(number: int) -> None:
        emulate_games(envs._state, games, choices[number % len(choices)], SKIP)

    return ALONE, 1, games, timed(play, games, seconds)


def one_game(who: str, seconds: float) -> Rate:
    """One environment of ALE."""
    if who == ALE_ALONE:
        emulator = Emulator()
        per_call = EMULATED_AT_A_TIME / SKIP
        return who, 1, 1, per_call * timed(lambda _: emulator.play(), 1, seconds)
    env = make_env()
    env.reset(seed=0)
    choices = random_actions(1)[:, 0]

    def play(number: int) -> None:
        _, _, terminated, truncated, _ = env.step(int(choices[number % len(choices)]))
        if terminated or truncated:
            env.reset()

    return who, 1, 1, timed(play, 1, seconds)


def random_actions(games: int) -> np.ndarray:
    """Actions of 64 steps, int64 (64, games)."""
    return np.random.default_rng(0).integers(6, size=(64, games))


class EnvPool:
    """EnvPool in the interpreter of the peers."""

    def __init__(self, python: Path) -> None:
        program = Path(__file__).parent / "peers" / "envpool_loop.py"
        command = [str(python), str(program)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.version = self._read()

    def __enter__(self) -> "EnvPool":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends with its input

    def measure(self, threads: int, games: int, seconds: float) -> Rate:
        """As ``vector``."""
        assert self._process.stdin is not None
        flags = {"games": games, "threads": threads, "seconds": seconds}
        print(json.dumps(flags), file=self._process.stdin, flush=True)
        return ENVPOOL, threads, games, self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failed("EnvPool ended; what it said is above")
        return json.loads(line)


def starts() -> tuple[float, float]:
    """Seconds from the import to the first step: of a copy that never ran, and of one that did."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "emulator"
        shutil.copytree(ROOT / "emulator", package, ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-c", START]
        took = []
        for _ in range(2):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise Failed(f"the console did not start: {done.stderr.strip().splitlines()[-1]}")
            took.append(float(done.stdout))
    return took[0], took[1]


def memory_per_game(games: int) -> dict[str, float]:
    """Bytes per game: of the state; and what the process takes, with and without observations."""
    small = PongVectorEnv(2, seed=0, stack=1, threads=1)  # what the first one needs
    small.reset()
    small.step([0, 0])
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    envs = PongVectorEnv(games, seed=0, stack=1, threads=1)
    seen = envs.reset()[0]
    seen = envs.step(np.zeros(games, int))[0]
    resident = (process.memory_info().rss - before) / games
    own = (envs._state.nbytes + envs._noops.nbytes) / games
    return {"state": own, "resident": resident, "observation": seen.nbytes / games}


def write(out: Path, record: dict[str, Any]) -> None:
    """Table and figure from what was measured."""
    found: dict[tuple[str, int, int], list[float]] = {}
    for who, threads, games, rate in record["agent_steps_per_second"]:
        found.setdefault((who, threads, games), []).append(rate / threads)
    sizes = sorted({games for _, _, games in found})
    lines = list(dict.fromkeys((who, threads) for who, threads, _ in found))
    rows = []
    for who, threads in lines:
        cells = [spread(found.get((who, threads, games), [])) for games in sizes]
        rows.append([who, f"{threads}", *cells])

    def ratio(name: str, one: tuple[str, int], other: tuple[str, int]) -> list[str]:
        pairs = [(found.get((*one, games)), found.get((*other, games))) for games in sizes]
        shown = [
            f"{one[1] / other[1] * median(a) / median(b):.2f}x" if a and b else "" for a, b in pairs
        ]
        return [name, "", *shown]

    rows += [
        ratio("this console / AtariVectorEnv, per core", (CONSOLE, 1), (ALE, 1)),
        ratio("this console, two threads / one", (CONSOLE, 2), (CONSOLE, 1)),
        ratio("AtariVectorEnv, two threads / one", (ALE, 2), (ALE, 1)),
    ]
    machine, memory = record["machine"], record["bytes_per_game"]
    notes = [
        "Agent steps per second and thread (four emulated frames each); medians, and ranges",
        f"From {ONE_ROUND:,} games on one round; random play from the beginning of games",
        f"First start {record['first_start_s']:.1f} s (translated and compiled), later ones "
        f"{record['cached_start_s']:.1f} s, from the import to the end of the first step",
        f"Bytes per game: state {memory['state']:,.0f}; resident memory {memory['resident']:,.0f}, "
        f"of which observations are two of {memory['observation']:,.0f}",
        f"Machine: {join_machine(machine)}, numba {machine['numba']}, EnvPool "
        f"{machine.get('envpool', 'not installed')}",
        f"python -m benchmarks console, commit {record['commit'] or 'unknown'}",
    ]
    header = ["who", "threads", *(f"{games:,} game{'s' * (games > 1)}" for games in sizes)]
    write_table(out / "console", "Pong's consoles", header, rows, notes)
    print((out / "console.md").read_text(encoding="utf-8"))
    plots.scaling_figure(
        out / "console.png",
        "Pong on one core and two, with the whole preprocessing",
        "games played at once",
        "agent steps per second and core",
        [
            plots.Scaling(
                f"{who}, {threads} thread{'s' * (threads > 1)}",
                {
                    games: found[who, threads, games]
                    for games in sizes
                    if (who, threads, games) in found
                },
                COLOURS[who],
                plots.STYLES[threads - 1],
            )
            for who, threads in lines
        ],
        short_machine(machine),
    )
