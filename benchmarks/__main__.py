"""Measure the ladder: run rungs and techniques, and write tables and charts.

From a clean clone to your own table and chart:

    python -m benchmarks ladder --run-dir runs/mine
    python -m benchmarks table runs/mine

Every run of a rung is a TensorBoard run: `tensorboard --logdir runs/mine` shows it.
"""

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from benchmarks import Failed, UserError

# Modules of this package; only the chosen one is imported, so that --help and table are quick.
COMMANDS = {
    "ladder": "run the rungs in turn, for their FPS or until they solve Pong; vary a setting",
    "table": "write one table and its charts of any runs, from their TensorBoard events",
    "techniques": "measure each optimisation by itself on the same network and data",
    "breakdown": "show where the time of an iteration goes, as a table and as a time line",
    "emulator": "time the emulator beside ALE's and EnvPool's vector environments",
    "peers": "compare with ptan and Stable-Baselines3 at the same work",
}


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose help keeps its lines."""

    def __init__(self, **how: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **how)

    def error(self, message: str) -> NoReturn:
        """End the program with exit code 2."""
        self.exit(2, f"{self.prog}: error: {message} (--help lists the flags)\n")


def main(argv: Sequence[str]) -> int:
    """Run a subcommand; returns the exit code."""
    end = argv.index("--") if "--" in argv else len(argv)
    argv, rung_flags = list(argv[:end]), list(argv[end + 1 :])  # what follows is for the rungs
    parser = OneLineParser(prog="python -m benchmarks", description=__doc__)
    subparsers = parser.add_subparsers(dest="command", metavar="SUBCOMMAND", required=True)
    module = None
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary)
        if argv[:1] == [name]:
            module = importlib.import_module(f"benchmarks.{name}")
            subparser.description = module.__doc__
            module.add_arguments(subparser)
    args = parser.parse_args(argv)
    assert module is not None  # the parser accepts nothing else
    if rung_flags and not hasattr(args, "rung_flags"):
        parser.error(f"{args.command} runs no rungs: nothing can follow --")
    args.rung_flags = rung_flags
    # As an exception, which ends what was started, too. Under nohup SIGHUP stays ignored.
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        return module.run(args)
    except UserError as error:
        print(f"{parser.prog} {args.command}: error: {error}", file=sys.stderr)
        return 2
    except Failed as failed:
        print(f"{parser.prog} {args.command}: failed: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog} {args.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
