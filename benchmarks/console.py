"""Time the console of ``emulator`` beside ALE's and EnvPool's vector environments.

Random play, observations of 84 x 84 and one frame, the maximum of the last two of four emulated
frames. For each number of games everybody is started once, and then all play in turn, round by
round. Tables, figure and record are written after each number of games. Beside that: emulation
alone, one ALE environment with this ladder's wrappers, the first start and later ones, memory per
game.

ALE and EnvPool take 80 ms of a core to make a game, and one MB of memory, so they play 1,024 games
at most. ``--most-peers 4096`` takes a quarter of an hour and 15 GB more, on two cores.

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
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numba
import numpy as np
import psutil
import torch

from benchmarks import Failed, UserError, calibration, plots
from benchmarks.arguments import add_counts, add_out, seconds
from benchmarks.calibration import EMULATED_AT_A_TIME, Emulator
from benchmarks.report import join_machine, output_folder, short_machine, spread, write_table
from benchmarks.runner import ROOT
from benchmarks.techniques.environments import make_env
from benchmarks.techniques.process import in_fresh_process
from emulator import PongVectorEnv
from emulator.games import reset, step
from emulator.state import NOOPS_DRAWN
from emulator.translated import entry_point
from lib.run import describe_machine

GAMES = (1, 4, 16, 64, 256, 1_024, 4_096)
THREADS = (1, 2)
SKIP = 4  # emulated frames of an agent step
CONSOLE, ALE, ENVPOOL = "this console", "AtariVectorEnv", "EnvPool"
ALONE = "this console, emulation alone"
ALE_ALONE, WRAPPERS = "ALE, emulation alone", "ALE with the wrappers of lib"
COLOURS = dict(
    zip((CONSOLE, ALE, ENVPOOL, ALONE, ALE_ALONE, WRAPPERS), plots.PALETTE, strict=False)
)
START = """
import time; begin = time.perf_counter()
from emulator import PongVectorEnv
envs = PongVectorEnv(2, seed=0); envs.reset(); envs.step([0, 0])
print(time.perf_counter() - begin)
"""

Player = tuple[str, int]  # who, threads
Measure = Callable[[float], float]  # agent steps per second, while it plays for so many seconds


@entry_point
def emulate_games(s, games, actions, skip, beginning, noops):
    """Play a step of each game, and begin anew what ends; nobody looks.

    Args:
        s, beginning: as in ``emulator.games.reset_games``.
        games: how many of them play.
        actions: int64 (games,).
        skip: frames that an action is held.
        noops: as in ``reset_games``; after the last draw the first comes again.
    """
    for g in range(games):
        if step(s, g, actions[g], skip, False, 1 << 30)[1]:
            s[NOOPS_DRAWN, g] %= len(noops)
            reset(s, g, beginning, noops)


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
    counts = {
        "rounds": (3, "measurements of everything"),
        "most": (GAMES[-1], "games at most"),
        "most-peers": (1_024, "games at most that ALE and EnvPool play"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/console")


def run(args: argparse.Namespace) -> int:
    """Measure, and write tables, a figure and the record."""
    out = output_folder(args.out)
    sizes = [games for games in GAMES if games <= args.most]
    machine = describe_machine(torch.device("cpu")) | {"numba": numba.__version__}
    if args.python.exists():
        machine["envpool"] = envpool_version(args.python)
    else:
        print(f"there is no {args.python}: without EnvPool (see requirements-peers.txt)")
    print("first and cached start", flush=True)
    first, cached = starts()
    rates: list[tuple[str, int, int, float]] = []
    record = {
        "machine": machine,
        "commit": calibration.commit(ROOT),
        "first_start_s": first,
        "cached_start_s": cached,
        "bytes_per_game": in_fresh_process(memory_per_game, sizes[-1]),
        "most_games_of_peers": args.most_peers,
        "agent_steps_per_second": rates,  # who, threads, games, and how many
    }
    for number, games in enumerate(sizes):
        print(f"{games:,} game{'s' * (games > 1)}", flush=True)
        with ExitStack() as cleanup:
            players = start_players(games, args, cleanup)
            for _ in range(args.rounds):
                for (who, threads), measure in players.items():
                    rates.append((who, threads, games, measure(args.seconds)))
        record["not_measured"] = sizes[number + 1 :]
        write(out, record)
    print((out / "console.md").read_text(encoding="utf-8"))
    return 0


def start_players(
    games: int, args: argparse.Namespace, cleanup: ExitStack
) -> dict[Player, Measure]:
    """Everybody who plays so many games, ready to be measured; they end with ``cleanup``."""
    players: dict[Player, Measure] = {}
    peers: list[Program] = []
    if games == 1:
        players[WRAPPERS, 1] = wrapped_game()
        players[ALE_ALONE, 1] = ale_alone()
    players[ALONE, 1] = alone(games)
    for threads in THREADS:
        if threads > games:
            continue
        players[CONSOLE, threads] = cleanup.enter_context(vector(threads, games))
        if games > args.most_peers:
            continue
        for who, python in ((ALE, Path(sys.executable)), (ENVPOOL, args.python)):
            if python.exists():
                peer = cleanup.enter_context(Program(python, who, threads, games))
                players[who, threads] = peer
                peers.append(peer)
    for peer in peers:  # they build at the same time
        peer.wait()
    return players


def timed(work: Callable[[int], Any], per_call: float) -> Measure:
    """Measure agent steps; ``work`` is told how often it was called, and called once before."""
    work(0)

    def measure(seconds: float) -> float:
        begin, calls = perf_counter(), 0
        while calls == 0 or perf_counter() - begin < seconds:
            work(calls)
            calls += 1
        return per_call * calls / (perf_counter() - begin)

    return measure


@contextmanager
def vector(threads: int, games: int) -> Iterator[Measure]:
    """The console with the whole preprocessing."""
    with closing(PongVectorEnv(games, seed=0, stack=1, threads=threads)) as envs:
        envs.reset()
        choices = random_actions(games)
        yield timed(lambda n: envs.step(choices[n % len(choices)]), games)


def alone(games: int) -> Measure:
    """The console in one thread, without drawing or preprocessing."""
    envs = PongVectorEnv(games, seed=0, stack=1, threads=1)
    envs.reset()
    choices = random_actions(games)
    begin = envs._beginning, envs._noops

    def play(number: int) -> None:
        emulate_games(envs._state, games, choices[number % len(choices)], SKIP, *begin)

    return timed(play, games)


def ale_alone() -> Measure:
    """One ALE, whose pictures nobody sees."""
    emulator = Emulator()
    return timed(lambda _: emulator.play(), EMULATED_AT_A_TIME / SKIP)


def wrapped_game() -> Measure:
    """One environment of ALE, with the wrappers of the ladder."""
    env = make_env()
    env.reset(seed=0)
    choices = random_actions(1)[:, 0]

    def play(number: int) -> None:
        _, _, terminated, truncated, _ = env.step(int(choices[number % len(choices)]))
        if terminated or truncated:
            env.reset()

    return timed(play, 1)


def random_actions(games: int) -> np.ndarray:
    """Actions of 64 steps, int64 (64, games)."""
    return np.random.default_rng(0).integers(6, size=(64, games))


def envpool_version(python: Path) -> str:
    """The version of EnvPool that an interpreter has."""
    command = [
        str(python),
        "-c",
        "from importlib.metadata import version; print(version('envpool'))",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{python} has no EnvPool: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()


class Program:
    """A vector environment of ALE or EnvPool, in a process of its own, which rests until asked."""

    def __init__(self, python: Path, who: str, threads: int, games: int) -> None:
        program = Path(__file__).parent / "peers" / "vector_loop.py"
        command = [str(python), str(program), who, str(games), str(threads)]
        pipe = subprocess.PIPE
        self._who = who
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait(self) -> None:
        """Until its games stand; to be called before it is measured."""
        self._read()

    def __call__(self, seconds: float) -> float:
        """Agent steps per second."""
        assert self._process.stdin is not None
        print(seconds, file=self._process.stdin, flush=True)
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"{self._who} ended; what it said is above")
        return line


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
    """Record, table and figure of what was measured until now."""
    (out / "console.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
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
        "Random play; who plays is started once for each number of games, then all take turns",
        f"First start {record['first_start_s']:.1f} s (translated and compiled), later ones "
        f"{record['cached_start_s']:.1f} s, from the import to the end of the first step",
        f"Bytes per game: state {memory['state']:,.0f}; resident memory with its observation "
        f"{memory['resident']:,.0f}, of which {memory['observation']:,.0f} are the observation",
        f"Machine: {join_machine(machine)}, numba {machine['numba']}, EnvPool "
        f"{machine.get('envpool', 'not installed')}",
        f"python -m benchmarks console, commit {record['commit'] or 'unknown'}",
    ]
    if record["most_games_of_peers"] < sizes[-1]:
        notes.insert(
            2, f"AtariVectorEnv and EnvPool: {record['most_games_of_peers']:,} games at most"
        )
    if record["not_measured"]:
        missing = " and ".join(f"{games:,}" for games in record["not_measured"])
        notes.insert(0, f"Not finished: {missing} games were not measured")
    header = ["who", "threads", *(f"{games:,} game{'s' * (games > 1)}" for games in sizes)]
    write_table(out / "console", "Pong's consoles", header, rows, notes)
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
