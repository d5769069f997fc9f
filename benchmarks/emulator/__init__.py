"""Time the emulator beside ALE's and EnvPool's vector environments.

Random play, observations of 84 x 84 and one frame, the maximum of the last two of four emulated
frames. For each number of games everybody is started once, and then all play in turn, round by
round; the table, the chart and the record are written after each number. Beside that: emulation
alone, one ALE environment with this ladder's wrappers, the first start and later ones, memory per
game. With --cuda the games are on the GPU, and nobody else plays.

ALE and EnvPool take 80 ms of a core to make a game, and one MB of memory, so they play 1,024 games
at most. ``--most-peers 4096`` takes a quarter of an hour and 15 GB more, on two cores. EnvPool is
asked in the peers' environment (requirements-peers.txt); where there is none, it is left out.

    python -m benchmarks emulator
    python -m benchmarks emulator --cuda --games 1024 65536
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numba
import numpy as np
import psutil
import torch

from benchmarks import Failed, charts
from benchmarks.arguments import add_counts, add_out, positive
from benchmarks.processes import in_fresh_process, output_of, started
from benchmarks.report import ROOT, here, output_folder, short_machine, spread, write_table
from benchmarks.techniques.environments import make_env, random_play
from benchmarks.timing import chosen_device, now, seconds_per_call
from emulator import PongVectorEnv
from emulator.compiling import entry_point
from emulator.games import reset, step
from emulator.state import NOOPS_DRAWN
from lib.running.machine import describe_machine

GAMES = (1, 4, 16, 64, 256, 1_024, 4_096)
GAMES_ON_GPU = (32, 256, 1_024, 4_096, 16_384, 65_536)
THREADS = (1, 2)
SHOWN = 64  # games in the chart
SKIP = 4  # emulated frames of an agent step
CULE = 155e6 / 3600 / SKIP  # agent steps per second: Dalton et al., arXiv:1907.08467
EMULATOR, ALE, ENVPOOL = "this emulator", "AtariVectorEnv", "EnvPool"
ALONE, ON_GPU = "this emulator, emulation alone", "this emulator on the GPU"
ALE_ALONE, WRAPPERS = "ALE, emulation alone", "ALE with the wrappers of lib"
START = """
import time; begin = time.perf_counter()
from emulator import PongVectorEnv
envs = PongVectorEnv(2, seed=0); envs.reset(); envs.step([0, 0])
print(time.perf_counter() - begin)
"""
RATIOS = (
    (f"{EMULATOR} / {ALE}, per core", (EMULATOR, 1), (ALE, 1)),
    (f"{EMULATOR}, two threads / one", (EMULATOR, 2), (EMULATOR, 1)),
    (f"{ALE}, two threads / one", (ALE, 2), (ALE, 1)),
)
VERSION = "from importlib.metadata import version; print(version('envpool'))"

Player = tuple[str, int]  # who, threads
Measure = Callable[[float], float]  # agent steps per second, while it plays for so many seconds


@entry_point
def emulate_games(s, games, actions, skip, beginning, noops):
    """Play a step of each game, and begin anew what ends; nobody looks.

    Arguments are as in ``emulator.games.reset_games``; ``actions``, int64 (games,), are held for
    ``skip`` frames. After the last draw of no-ops the first comes again.
    """
    for g in range(games):
        if step(s, g, actions[g], skip, False, 1 << 30)[1]:
            s[NOOPS_DRAWN, g] %= len(noops)
            reset(s, g, beginning, noops)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    python = Path(".venv-peers/bin/python")
    text = "interpreter with EnvPool (default: %(default)s)"
    parser.add_argument("--python", type=Path, default=python, help=text)
    parser.add_argument("--cuda", action="store_true", help="play on the GPU alone")
    text = f"games at once (default: {' '.join(map(str, GAMES))})"
    parser.add_argument("--games", type=positive, nargs="+", metavar="N", help=text)
    counts = {
        "milliseconds": (500, "length of one measurement"),
        "rounds": (3, "measurements of everything"),
        "most-peers": (1_024, "games at most that ALE and EnvPool play"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/emulator")


def run(args: argparse.Namespace) -> int:
    """Measure, and write tables, a chart and the record."""
    device = chosen_device(args.cuda)
    out, args.python = output_folder(args.out), args.python.absolute()
    sizes = args.games or (GAMES_ON_GPU if args.cuda else GAMES)
    machine = describe_machine(device) | {"numba": numba.__version__}
    rates: list[tuple[str, int, int, float]] = []
    record: dict[str, Any] = {"agent_steps_per_second": rates}  # who, threads, games, how many
    notes = [
        "Agent steps per second and thread (four emulated frames each); medians, and ranges",
        "Random play; who plays is started once for each number of games, then all take turns",
    ]
    if args.cuda:
        notes += [f"CuLE: {CULE:,.0f} agent steps per second at most (arXiv:1907.08467)"]
    else:
        if args.python.exists():
            machine["envpool"] = output_of([args.python, "-c", VERSION], "EnvPool")[0]
        else:
            print(f"there is no {args.python}: without EnvPool (see requirements-peers.txt)")
        record["first_start_s"], record["cached_start_s"] = first, later = starts()
        record["bytes_per_game"] = memory = in_fresh_process(memory_per_game, max(sizes))
        state, resident, observation = memory
        notes += [
            f"First start {first:.1f} s (translated and compiled), later ones {later:.1f} s, from "
            "the import to the end of the first step",
            f"Bytes per game: state {state:,.0f}; resident memory with its observation "
            f"{resident:,.0f}, of which {observation:,.0f} are the observation",
            f"AtariVectorEnv and EnvPool: {args.most_peers:,} games at most",
        ]
    notes += [here(machine)]
    record["machine"] = notes[-1]
    for number, games in enumerate(sizes):
        print(f"{games:,} game{'s' * (games > 1)}", flush=True)
        with ExitStack() as cleanup:
            players = start_players(games, args, cleanup)
            for _ in range(args.rounds):
                for (who, threads), measure in players.items():
                    rates.append((who, threads, games, measure(args.milliseconds / 1e3)))
        record["not_measured"] = sizes[number + 1 :]
        text = write(out, record, notes, short_machine(machine))
    print(text)
    return 0


def start_players(
    games: int, args: argparse.Namespace, cleanup: ExitStack
) -> dict[Player, Measure]:
    """Everybody who plays so many games, ready to be measured; they end with ``cleanup``."""
    if args.cuda:
        return {(ON_GPU, 1): cleanup.enter_context(vector(games, 1, "cuda"))}
    players: dict[Player, Measure] = {}
    if games == 1:
        players = {(WRAPPERS, 1): timed(random_play(make_env(), 0), 1), (ALE_ALONE, 1): ale_alone()}
    players[ALONE, 1] = alone(games)
    peers: list[Peer] = []
    pythons = {ALE: Path(sys.executable), ENVPOOL: args.python}
    asked = [who for who, python in pythons.items() if games <= args.most_peers and python.exists()]
    for threads in (n for n in THREADS if n <= games):
        players[EMULATOR, threads] = cleanup.enter_context(vector(games, threads))
        for who in asked:
            peers.append(cleanup.enter_context(Peer(pythons[who], who, threads, games)))
            players[who, threads] = peers[-1].measure
    for peer in peers:  # they build at the same time
        peer.wait()
    return players


def timed(work: Callable[[], Any], steps: float) -> Measure:
    """Measure agent steps, so many in each call."""
    return lambda seconds: steps / seconds_per_call(work, seconds)


@contextmanager
def vector(games: int, threads: int, device: str = "cpu") -> Iterator[Measure]:
    """The emulator with the whole preprocessing; on a GPU actions are drawn there."""
    begin = perf_counter()
    with closing(PongVectorEnv(games, seed=0, stack=1, threads=threads, device=device)) as envs:
        envs.reset()
        if device == "cpu":
            choices = random_actions(games)
            yield timed(lambda: envs.step(next(choices)), games)
            return
        random = torch.Generator(device).manual_seed(0)

        def play() -> None:
            envs.step(torch.randint(6, (games,), device=device, generator=random))

        play()
        print(f"{now(torch.device(device)) - begin:.1f} s until the first step", flush=True)
        yield timed(play, games)


def alone(games: int) -> Measure:
    """The emulator in one thread, without drawing or preprocessing."""
    envs = PongVectorEnv(games, seed=0, stack=1, threads=1)
    envs.reset()
    choices = random_actions(games)
    begin = envs._beginning, envs._noops
    return timed(lambda: emulate_games(envs._state, games, next(choices), SKIP, *begin), games)


def ale_alone() -> Measure:
    """One ALE, whose pictures nobody sees, played by pressing nothing."""
    from ale_py import ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)  # no welcome
    ale = ALEInterface()
    ale.setInt("random_seed", 0)
    ale.loadROM(roms.get_rom_path("pong"))

    def play() -> None:
        ale.act(0)
        if ale.game_over():
            ale.reset_game()

    return timed(play, 1 / SKIP)


def random_actions(games: int) -> Iterator[np.ndarray]:
    """Actions of a step, int64 (games,), again and again those of 64 steps."""
    return cycle(np.random.default_rng(0).integers(6, size=(64, games)))


class Peer(ExitStack):
    """A vector environment of ALE or EnvPool, in a process of its own, which rests until asked."""

    def __init__(self, python: Path, who: str, threads: int, games: int) -> None:
        super().__init__()
        self._who = who
        loop, pipe = Path(__file__).with_name("vector_loop.py"), subprocess.PIPE
        command = [python, loop, who, f"{games}", f"{threads}"]
        self._process = self.enter_context(started(command, grace=1.0, stdin=pipe, stdout=pipe))

    def measure(self, seconds: float) -> float:
        """Agent steps per second, once its games stand."""
        print(seconds, file=self._process.stdin, flush=True)
        return float(self.wait())

    def wait(self) -> str:
        """The next line that it says; the first one when its games stand."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise Failed(f"{self._who} ended; what it said is above")
        return line


def starts() -> tuple[float, float]:
    """Seconds from the import to the first step: of a copy that never ran, and of one that did."""
    with tempfile.TemporaryDirectory() as folder:
        unused = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "emulator", Path(folder) / "emulator", ignore=unused)
        command = [sys.executable, "-c", START]
        first, later = (float(output_of(command, "the emulator", cwd=folder)[-1]) for _ in range(2))
    return first, later


def memory_per_game(games: int) -> tuple[float, float, float]:
    """Bytes per game: of the state, what the process takes, and of that the observation."""
    small = PongVectorEnv(2, seed=0, stack=1, threads=1)  # what the first one needs
    small.reset()
    small.step([0, 0])
    process = psutil.Process()
    before = process.memory_info().rss
    envs = PongVectorEnv(games, seed=0, stack=1, threads=1)
    seen = envs.reset()[0]
    seen = envs.step(np.zeros(games, int))[0]
    resident = (process.memory_info().rss - before) / games
    return (envs._state.nbytes + envs._noops.nbytes) / games, resident, seen.nbytes / games


def write(out: Path, record: dict[str, Any], notes: list[str], machine: str) -> str:
    """Record, table and chart of what was measured until now; returns the table."""
    (out / "emulator.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    found: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for who, threads, games, rate in record["agent_steps_per_second"]:
        found[who, threads, games].append(rate / threads)
    sizes = sorted({games for _, _, games in found})
    players = list(dict.fromkeys(key[:2] for key in found))
    rows = [[who, f"{n}", *(spread(found[who, n, games]) for games in sizes)] for who, n in players]
    for name, one, other in RATIOS if (EMULATOR, 1) in players else ():
        pairs = [(found[*one, games], found[*other, games]) for games in sizes]
        times = one[1] / other[1]
        cells = (f"{times * median(a) / median(b):.2f}x" if a and b else "" for a, b in pairs)
        rows.append([name, "", *cells])
    if record["not_measured"]:
        missing = " and ".join(f"{games:,}" for games in record["not_measured"])
        notes = [f"Not finished: {missing} games were not measured", *notes]
    header = ["who", "threads", *(f"{games:,} game{'s' * (games > 1)}" for games in sizes)]
    shown = max((games for games in sizes if games <= SHOWN), default=sizes[0])
    alone = {who: found[who, n, shown] for who, n in players if n == 1}
    bars = [charts.Bar(who, rates, who) for who, rates in alone.items() if rates]
    title = f"Agent steps of Pong per second, {shown} games in one thread"
    charts.bar_chart(out / "emulator.png", title, "agent steps per second", bars, machine)
    return write_table(out / "emulator", "Emulators of Pong", header, rows, notes)
