"""Flags that subcommands have in common."""

import argparse
from pathlib import Path

PEERS_PYTHON = Path(".venv-peers/bin/python")  # with requirements-peers.txt


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def seeds(text: str) -> list[int]:
    """A seed, or a range such as 0-9, for argparse."""
    first, dash, last = text.partition("-")
    ends = (first, last) if dash else (first, first)
    if not all(end.isdecimal() for end in ends) or int(ends[0]) > int(ends[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed, nor some of them as 0-9")
    return list(range(int(ends[0]), int(ends[1]) + 1))


def add_counts(parser: argparse.ArgumentParser, flags: dict[str, tuple[int, str]]) -> None:
    """Add a flag for each whole number above 0: name -> (default, help)."""
    for name, (default, text) in flags.items():
        text += " (default: %(default)s)"
        parser.add_argument(f"--{name}", type=positive, default=default, metavar="N", help=text)


def add_out(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the flag for the folder of the results."""
    text = "where the results are written (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path(default), metavar="FOLDER", help=text)


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add the flags of where, how precisely and how randomly rungs train."""
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    parser.add_argument("--amp", action="store_true", help="compute updates in bfloat16 autocast")
    text = "probability of a random action; most of a run has the default (default: %(default)s)"
    parser.add_argument("--epsilon", type=float, default=0.02, help=text)


def where(args: argparse.Namespace) -> str:
    """What ``add_training`` asks for, for a title."""
    return ("GPU" if args.cuda else "CPU") + ", in bfloat16 autocast" * args.amp


def suffix(args: argparse.Namespace) -> str:
    """The same for the names of files, so that different runs do not meet."""
    return "-amp" * args.amp + "-cuda" * args.cuda
