"""The command line: every setting of a rung is a flag of the same name, which checks its value."""

import argparse
import math
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lib.parser import OneLineParser
from lib.printing import print_line
from lib.training import checkpoints
from lib.training.evaluation import read_agent
from lib.training.options import Options, unwritable

GROUPS = ("run", "learning", "playing", "wrappers")  # of --help, in this order
PLACES = ("cuda", "device", "play_device")  # where a run computes; it may move when resumed
NEAR = 0.84  # similarity of a typo: "seeds" matches --seed, "n-steps" does not match --steps
SYNONYMS = {"gpu": "--cuda", "cpu": "--device cpu", "load": "--init-from", "games": "--episodes"}
SYNONYMS |= dict.fromkeys(("n-envs", "num-envs"), "--envs")
SYNONYMS |= dict.fromkeys(("logdir", "tensorboard-log", "run-name", "exp-name"), "--run-dir")
SYNONYMS |= {"env-id": "--env", "total-timesteps": "--max-frames", "n-timesteps": "--max-frames"}
SYNONYMS |= {"buffer-size": "--replay-size", "learning-starts": "--replay-initial"}


class FlagParser(OneLineParser):
    """A parser that accepts underscores in flags and suggests a flag for an unknown one."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else args
        dashed = [re.sub("^--[a-z_]+", lambda flag: flag[0].replace("_", "-"), a) for a in given]
        values, unknown = self.parse_known_args(dashed, namespace)
        if unknown:
            flag, flags = unknown[0].split("=")[0], self._option_string_actions
            words = {word: hint for word, hint in SYNONYMS.items() if hint.split()[0] in flags}
            words |= {shortened(name[2:].replace("-", "_")): name for name in flags}
            words |= {name[2:]: name for name in flags}
            near = get_close_matches(flag[2:], words, 1, NEAR)
            hint = f": did you mean {words[near[0]]}?" if near else ""
            self.error(f"there is no {flag}{hint}")
        return values


def shortened(name: str) -> str:
    """Return the name of a setting as one short word."""
    return name.replace("learning_rate", "lr").replace("epsilon", "eps").replace("_", "")


def parse(options: type[Options], description: str, argv: Sequence[str] | None = None) -> Options:
    """Read the command line; a bad value ends the program with one line and exit code 2."""
    paragraphs = description.replace("``", "").split("\n\n")
    parser = FlagParser(
        usage="%(prog)s [flags]",
        description="\n\n".join(textwrap.fill(part, 80) for part in paragraphs),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    entries = {entry.name: entry for entry in fields(options)}
    for title in GROUPS:
        group = parser.add_argument_group(title)
        for entry in entries.values():
            if entry.metadata["group"] == title:
                _add_flag(group, entry)
    given = vars(parser.parse_args(argv))
    if empty := [name for name, value in given.items() if value == ""]:  # an unset shell variable
        parser.error(f"--{empty[0].replace('_', '-')}: must not be empty")
    params = options(**given)
    if given.get("cuda") is False and params.device.startswith("cuda"):
        parser.error(f"--no-cuda: contradicts --device {params.device}")
    settings, played, solved = dict[str, Any](), 0, False  # of the run to resume
    if params.resume:
        settings, played, solved = _settings_of(params.resume, parser)
        if gone := sorted(settings.keys() - entries.keys()):
            hint = f"resume {params.resume} with the earlier version that began it"
            parser.error(f"--resume: this version has no setting {', '.join(gone)}: {hint}")
        place = Path(params.resume).resolve().parent
        if "run_dir" in given and Path(params.run_dir).resolve() != place:
            parser.error(f"--run-dir: a resumed run stays in its folder, {params.resume}")
        # These are the defaults of the resumed run; only some of them may change.
        kept = {name: v for name, v in settings.items() if name not in ("run_dir", "resume")}
        if kept["max_frames"] <= played:  # this limit was reached
            del kept["max_frames"]
        if given.keys() & {"cuda", "device"}:
            del kept["cuda"], kept["device"]
        params = options(**kept | given)
    elif params.init_from:
        try:
            read_agent(params.init_from)
        except (OSError, checkpoints.CheckpointError) as error:
            parser.error(f"--init-from: {error}")
    if message := params.validation_error():
        parser.error(message)
    params = params.resolved()
    for name, value in settings.items():
        fixed = not entries[name].metadata["may_change"] and name not in PLACES
        if fixed and getattr(params, name) != value:
            parser.error(f"--{name.replace('_', '-')}: must stay {value} to resume {params.resume}")
    if 0 < params.max_frames <= played:
        parser.error(
            f"--max-frames: the run in {params.resume} has already played {played:,} frames"
        )
    if solved and params.stop_reward <= (goal := settings["stop_reward"]):
        on = f"watch it with play.py, or train on with a --stop-reward above {goal:g}"
        parser.error(f"--resume: the run in {params.resume} is solved: {on}")
    return params


def _settings_of(folder: str, parser: argparse.ArgumentParser) -> tuple[dict[str, Any], int, bool]:
    """Return settings and frames of the run to resume, and whether it is solved."""
    script, place, kept = Path(parser.prog).stem, Path(folder), Path(folder, checkpoints.FOLDER)
    try:
        if not place.is_dir():
            new = f"{folder} is a file: a new run can begin with --init-from {folder}"
            parser.error(f"--resume: {new if place.exists() else f'there is no folder {folder}'}")
        if message := unwritable("--resume", place):
            parser.error(message)
        if not kept.is_dir() and (listed := checkpoints.list_runs(place, script)):
            parser.exit(2, f"{parser.prog}: error: --resume: {listed}")
        file, checkpoint, _ = checkpoints.read_first(place, "latest", "previous")
    except (OSError, checkpoints.CheckpointError) as error:
        parser.error(f"--resume: {error}")
    settings, frames = checkpoint[checkpoints.SETTINGS], checkpoint["progress"]["frames"]
    if "hyperparameters" not in settings:
        parser.error(f"--resume: {file} is an agent without its run: watch it with play.py")
    if settings["script"] != script:
        parser.error(f"--resume: the run in {folder} is a run of {settings['script']}.py")
    solved = False
    try:
        if (file := kept / "solved.pt").exists():
            solved = checkpoints.read_checkpoint(file)["progress"]["frames"] == frames
    except checkpoints.CheckpointError as damage:
        print_line(f"{damage}; resuming anyway")
    return settings["hyperparameters"], frames, solved


def _add_flag(parser: argparse._ArgumentGroup, entry: Field) -> None:
    """Add a flag without a default, so that the parser returns only the given ones."""
    meta, flag = entry.metadata, "--" + entry.name.replace("_", "-")
    kind, default = meta["type"], entry.default
    if kind is bool:
        default = "on" if default else "off"
    default = "" if default in (None, "") else f" (default: {default})"
    keywords = {"default": argparse.SUPPRESS, "help": meta["help"] + default}
    if kind is bool:
        # --no-... switches off what is on by default.
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, **keywords)
        return
    parser.add_argument(
        *([flag, "--dev"] if flag == "--device" else [flag]),  # as in the book
        type=str if kind is str else number(kind, meta["low"], meta["high"]),
        metavar=None if meta["choices"] else kind.__name__.upper(),
        choices=meta["choices"],
        **keywords,
    )


def number(kind: type, low: float = -math.inf, high: float = math.inf) -> Callable[[str], Any]:
    """Return a function that converts a flag's text to a number and checks its limits."""

    def convert(text: str) -> Any:
        # Accept 100_000, 100,000 and 1e5, but no comma in a float: it may be a decimal point.
        grouped = kind is int and re.fullmatch(r"\d{1,3}(,\d{3})+", text)
        digits = text.replace(",", "") if grouped else text
        try:
            value = float(digits)
            if kind is int:
                value = int(value) if "e" in text.lower() and value.is_integer() else int(digits)
        except (ValueError, OverflowError):
            expected = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}") from None
        if not (low <= value <= high and math.isfinite(float(digits))):  # NaN fails here, too
            allowed = f"{low:,} or more" if high == math.inf else f"{low:,} to {high:,}"
            allowed = "a number" if low == -math.inf else allowed
            raise argparse.ArgumentTypeError(f"must be {allowed}, not {text}")
        return value

    return convert
