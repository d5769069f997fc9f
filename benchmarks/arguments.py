"""Flags that subcommands have in common."""

import argparse
from pathlib import Path


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def add_counts(parser: argparse.ArgumentParser, flags: dict[str, tuple[int, str]]) -> None:
    """Add a flag for each whole number above 0: name -> (default, help)."""
    for name, (default, text) in flags.items():
        text += " (default: %(default)s)"
        parser.add_argument(f"--{name}", type=positive, default=default, metavar="N", help=text)


def add_out(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the flag for the folder of the results."""
    text = "where the results are written (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path(default), metavar="FOLDER", help=text)
