"""Measure the ladder: run rungs and techniques, and write tables and charts.

From a clean clone to your own table and chart:

    python -m benchmarks ladder --run-dir runs/mine
    python -m benchmarks table runs/mine
"""

import argparse
import importlib
import signal
import sys
from typing import Any

from benchmarks import Failed, UserError
from lib.parser import OneLineParser

# Only the chosen module is imported, so that --help and table are quick.
COMMANDS = {
    "ladder": "run the rungs in turn, for their FPS or until they solve Pong; vary a setting",
    "table": "write a table and a chart of any runs from their TensorBoard events",
    "techniques": "measure each optimisation by itself on the same network and data",
    "breakdown": "show where the time of an iteration goes, as a table and a timeline",
    "emulator": "time the emulator beside ALE's and EnvPool's vector environments",
    "peers": "compare with ptan and Stable-Baselines3 at the same work",
}


def main(argv: list[str]) -> int:
    """Run a subcommand and return the exit code."""
    end = argv.index("--") if "--" in argv else len(argv)
    argv, rung_flags = argv[:end], argv[end + 1 :]  # flags after -- go to the rungs
    lines: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter}  # keep line breaks
    parser = OneLineParser(prog="python -m benchmarks", description=__doc__, **lines)
    subparsers = parser.add_subparsers(dest="command", metavar="SUBCOMMAND", required=True)
    modules = {}
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, **lines)
        if argv[:1] == [name]:
            modules[name] = importlib.import_module(f"benchmarks.{name}")
            subparser.description = modules[name].__doc__
            modules[name].add_arguments(subparser)
    args = parser.parse_args(argv)
    if rung_flags and args.command not in ("ladder", "breakdown"):
        parser.error(f"{args.command} runs no rungs, so it takes no flags after --")
    args.rung_flags = rung_flags
    # An exception also ends the programs that we started. Under nohup SIGHUP stays ignored.
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"):  # Windows has the first
        number = getattr(signal, name, signal.SIGTERM)
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        if getattr(args, "out", None):  # before anything is measured
            args.out.mkdir(parents=True, exist_ok=True)
        return modules[args.command].run(args)
    except (UserError, Failed, OSError) as error:  # OSError: an unwritable folder, for example
        print(f"{parser.prog} {args.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
