"""The command line: every setting of a rung is a flag of the same name, which checks its value."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from lib.training.checkpoints import SETTINGS, CheckpointError, read_latest
from lib.training.options import Options, unwritable

GROUPS = ("run", "learning", "playing", "wrappers")  # of --help, in this order
OF_ONE_CALL = ("max_frames", "run_dir", "resume")  # a resumed run does not take them over


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """End the program with exit code 2."""
        self.exit(2, f"{self.prog}: error: {message} (--help lists the flags)\n")


def parse(options: type[Options], description: str, argv: Sequence[str] | None = None) -> Options:
    """Read the command line; a bad value ends the program with one line and exit code 2."""
    parser = OneLineParser(
        usage="%(prog)s [flags]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    entries = {entry.name: entry for entry in fields(options)}
    for title in GROUPS:
        group = parser.add_argument_group(title)
        for entry in entries.values():
            if entry.metadata["group"] == title:
                _add_flag(group, entry)
    values = options(**vars(parser.parse_args(argv)))
    settings: dict[str, Any] = {}  # of the run to resume
    if values.resume:
        settings = _settings_of(values.resume, parser)
        if gone := sorted(settings.keys() - entries.keys()):
            parser.error(
                f"--resume: this version has no setting {', '.join(gone)}: an earlier version "
                f"began the run in {values.resume}, so resume it with that version"
            )
        # The resumed run has these settings by default; only some of them may change.
        parser.set_defaults(**{k: v for k, v in settings.items() if k not in OF_ONE_CALL})
        values = options(**vars(parser.parse_args(argv)))
    if message := values.why_invalid():
        parser.error(message)
    values = values.settled()
    for name, value in settings.items():
        if not entries[name].metadata["free"] and getattr(values, name) != value:
            flag = "--" + name.replace("_", "-")
            parser.error(f"{flag}: the run in {values.resume} has {value}")
    return values


def _settings_of(folder: str, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The hyperparameters of the run to resume; it must be a run of this script."""
    try:
        if not Path(folder).is_dir():
            raise CheckpointError(f"{folder} is not a run folder")
        if message := unwritable("--resume", Path(folder)):
            parser.error(message)
        settings = read_latest(Path(folder))[1][SETTINGS]
    except (OSError, CheckpointError) as error:
        parser.error(f"--resume: {error}")
    if settings["script"] != Path(parser.prog).stem:
        parser.error(f"--resume: the run in {folder} is a run of {settings['script']}.py")
    return settings["hyperparameters"]


def _add_flag(parser: argparse._ArgumentGroup, entry: Field) -> None:
    meta, flag = entry.metadata, "--" + entry.name.replace("_", "-")
    default = "" if entry.default in (None, "") else f" (default: {entry.default})"
    if meta["type"] is bool:
        # Each gets a --no-... flag, too: a resumed run has it on, if the run before had it on.
        action = argparse.BooleanOptionalAction
        parser.add_argument(flag, action=action, default=entry.default, help=meta["help"])
        return
    parser.add_argument(
        flag,
        default=entry.default,
        type=lambda text: _checked(text, meta),
        metavar=None if meta["choices"] else meta["type"].__name__.upper(),
        choices=meta["choices"],
        help=meta["help"] + default.replace("%", "%%"),
    )


def _checked(text: str, meta: Any) -> Any:
    """Convert the text of a flag and check it against its limits."""
    if meta["type"] is str:
        return text
    try:
        number = meta["type"](text)
    except ValueError:
        kind = "a whole number" if meta["type"] is int else "a number"
        raise argparse.ArgumentTypeError(f"{text!r} is not {kind}") from None
    low, high = meta["low"], meta["high"]
    if not low <= number <= high:  # NaN fails here, too
        allowed = f"{low:,} or more" if high == math.inf else f"{low:,} to {high:,}"
        raise argparse.ArgumentTypeError(f"must be {allowed}, not {text}")
    return number
