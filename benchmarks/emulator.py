"""Time the emulator beside ALE's and EnvPool's vector environments.

Random play, observations of 84 x 84 and one frame, the maximum of the last two of four emulated
frames. For each number of games everybody starts once, in a process of its own, and then all play
in turn, round by round. With --cuda the games are on the GPU, and nobody else plays.

ALE and EnvPool take 80 ms of a core to make a game, and one MB of memory, so they play 1,024 games
at most. EnvPool is asked in the peers' environment (requirements-peers.txt); where there is none,
it is left out.

    python -m benchmarks emulator
    python -m benchmarks emulator --cuda --games 1024 65536
"""

import argparse
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from benchmarks import Failed
from benchmarks.arguments import PEERS_PYTHON, add_counts, add_out, positive
from benchmarks.processes import started
from benchmarks.report import here, output_folder, spread, write_table
from benchmarks.timing import chosen_device
from benchmarks.vector_loop import ALE, EMULATOR, ENVPOOL, ON_GPU
from lib.running.machine import describe_machine

GAMES, GAMES_ON_GPU = (1, 16, 64, 256, 1_024), (32, 1_024, 16_384, 65_536)
THREADS = (1, 2)
MOST_GAMES = 1_024  # of ALE and EnvPool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    text = "interpreter with EnvPool (default: %(default)s)"
    parser.add_argument("--python", type=Path, default=PEERS_PYTHON, help=text)
    parser.add_argument("--cuda", action="store_true", help="play on the GPU alone")
    text = f"games at once (default: {' '.join(map(str, GAMES))})"
    parser.add_argument("--games", type=positive, nargs="+", metavar="N", help=text)
    counts = {
        "milliseconds": (500, "length of one measurement"),
        "rounds": (3, "measurements of everything"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/emulator")


def run(args: argparse.Namespace) -> int:
    """Measure, and write the table."""
    machine, out = describe_machine(chosen_device(args.cuda)), output_folder(args.out)
    pythons = {EMULATOR: Path(sys.executable), ALE: Path(sys.executable), ENVPOOL: args.python}
    if args.cuda:
        pythons = {ON_GPU: Path(sys.executable)}
    elif not args.python.exists():
        print(f"there is no {args.python}: without EnvPool (see requirements-peers.txt)")
        del pythons[ENVPOOL]
    rates: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    sizes = args.games or (GAMES_ON_GPU if args.cuda else GAMES)
    for games in sizes:
        print(f"games: {games:,}", flush=True)
        with ExitStack() as stack:
            players = {
                (who, threads, games): stack.enter_context(Player(python, who, games, threads))
                for who, python in pythons.items()
                for threads in (THREADS[:1] if args.cuda else THREADS)
                if threads <= games <= (MOST_GAMES if who in (ALE, ENVPOOL) else games)
            }
            for player in players.values():  # they build at the same time
                player.answer()
            for _ in range(args.rounds):
                for key, player in players.items():
                    rates[key].append(player.measure(args.milliseconds / 1e3))
    rows = [
        [who, f"{threads}", *(spread(rates.get((who, threads, games), [])) for games in sizes)]
        for who, threads in dict.fromkeys(key[:2] for key in rates)
    ]
    header = ["who", "threads", *(f"games: {games:,}" for games in sizes)]
    notes = [
        here(machine),
        "Agent steps per second (four emulated frames each), of all threads together; medians, "
        "and ranges. Random play, everybody in turn",
    ]
    print(write_table(out / "emulator", "Emulators of Pong", header, rows, notes))
    return 0


class Player(ExitStack):
    """A vector environment in a process of its own, which rests until it is asked to play."""

    def __init__(self, python: Path, who: str, games: int, threads: int) -> None:
        super().__init__()
        self._who = who
        loop, pipe = Path(__file__).with_name("vector_loop.py"), subprocess.PIPE
        command = [python.absolute(), loop, who, f"{games}", f"{threads}"]
        self._process = self.enter_context(started(command, stdin=pipe, stdout=pipe))

    def measure(self, seconds: float) -> float:
        """Agent steps per second, once its games stand."""
        print(seconds, file=self._process.stdin, flush=True)
        return float(self.answer())

    def answer(self) -> str:
        """The next line that it says; the first one when its games stand."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise Failed(f"{self._who} ended; what it said is above")
        return line
