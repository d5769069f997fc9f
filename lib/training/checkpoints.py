"""Checkpoints, in a run's folder checkpoints/: latest.pt, previous.pt, best.pt and solved.pt.

A checkpoint holds the training state, the settings and the lengths of the event files. A resumed
run cuts the files to these lengths. A checkpoint gets its final name once it is on the disk, so
there is always a whole one; ``previous.pt`` stands in for a damaged ``latest.pt``.
"""

import math
import os
import shutil
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lib.printing import print_line
from lib.training.run import Run, describe_device_error

import torch
from ignite.engine import Engine, Events

FOLDER = "checkpoints"
KINDS = ("solved", "best", "latest", "previous")  # play.py takes the first whole one
NEWEST = 5  # runs to list if the folder of all runs was given
SETTINGS = "settings"  # key of the script and the hyperparameters
EVENT_FILES = "events.out.tfevents.[1-9]*"  # of curves, see ``lib.training.hparams``
REPLAY = ("buffer", "experience")  # an agent needs neither to play
COUNTERS = ["iteration", "frames", "episodes", "update_due"]
COUNTERS += ["first_reward", "avg_reward", "reached"]


class CheckpointError(Exception):
    """A checkpoint is missing or unusable; the message says why in one line."""


def find_checkpoint(path: Path, *kinds: str) -> Path:
    """Return ``path`` if it is a file; in a run folder, the first of ``kinds`` that exists."""
    for file in (path, *(path / FOLDER / f"{kind}.pt" for kind in kinds or KINDS)):
        if file.is_file():
            return file
    raise CheckpointError(f"{path} is no checkpoint, and {path / FOLDER} has none")


def list_runs(folder: Path, script: str = "*") -> str:
    """Return a message that names the newest runs in a folder; empty if it has none."""
    runs = [run.parent for run in folder.glob(f"{script}-*/{FOLDER}")]
    runs.sort(key=lambda run: (run / FOLDER).stat().st_mtime, reverse=True)
    names = "".join(f"  {run}\n" for run in runs[:NEWEST])
    return names and f"choose a run in {folder}; the newest:\n{names}"


def read_first(path: Path, *kinds: str) -> tuple[Path, dict[str, Any], str | None]:
    """Return the first whole checkpoint: file, content, and a notice if others are damaged."""
    file = find_checkpoint(path, *kinds)
    try:
        return file, read_checkpoint(file), None
    except CheckpointError as damage:
        for kind in kinds or KINDS:
            file = path / FOLDER / f"{kind}.pt"
            with suppress(CheckpointError):
                return file, read_checkpoint(file), f"{damage}; {file.name} takes its place"
        raise


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint of this project to the CPU."""
    try:
        with zipfile.ZipFile(path) as archive:
            if part := archive.testzip():  # compares checksums, which torch does not
                raise zipfile.BadZipFile(f"the checksum of {part} is wrong")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # which one depends on where the file is damaged
        reason = str(error).strip().split("\n")[0].split(". ")[0][:120] or type(error).__name__
        raise CheckpointError(f"{path} is damaged, or not a checkpoint: {reason}") from None
    if not isinstance(checkpoint, dict) or SETTINGS not in checkpoint:
        raise CheckpointError(f"{path} is not a checkpoint of this project")
    return checkpoint


def write_checkpoint(file: Path, contents: Mapping[str, Any], keep: Path | None = None) -> None:
    """Write a checkpoint and replace the old one, or raise OSError and replace nothing.

    With ``keep``, the old one is kept there.
    """
    file.parent.mkdir(exist_ok=True)
    written = file.with_name(f"{file.name}.tmp")
    try:
        with written.open("wb") as stream:
            torch.save(contents, stream)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException as error:
        written.unlink(missing_ok=True)  # a full disk needs the room
        cause = error.__context__  # torch's writer wraps the error of its stream
        if isinstance(error, RuntimeError) and isinstance(cause, (OSError, KeyboardInterrupt)):
            raise cause from None
        raise
    if keep and file.exists():
        file.replace(keep)
    written.replace(file)


def save_checkpoints(
    engine: Engine, run: Run, saved: dict[str, Any], figures: dict[str, Any]
) -> None:
    """Save every ``--checkpoint-every`` updates and at the end; resume from ``run.checkpoint``.

    Each part of ``saved`` and ``figures`` has ``state_dict`` and ``load_state_dict``. Figures are
    loaded after the engine has started, because ignite resets them then.
    """
    params, folder, state = run.params, run.folder / FOLDER, engine.state
    figures = {"progress": RunProgress(engine, run), **figures}
    best = -math.inf
    if run.checkpoint:
        try:
            if (file := folder / "best.pt").exists():
                best = read_checkpoint(file)["progress"]["avg_reward"]
        except CheckpointError as damage:
            print_line(f"{damage}; the next best agent takes its place")
        load_checkpoint(engine, run, saved, figures)

    def save() -> None:
        nonlocal best
        latest = {name: part.state_dict() for name, part in (saved | figures).items()}
        latest[SETTINGS] = describe_settings(run, saved["net"])
        agent = {name: part for name, part in latest.items() if name not in REPLAY}
        try:
            if state.iteration and state.episodes and state.avg_reward > best:
                write_checkpoint(folder / "best.pt", agent)
                best = state.avg_reward
            if state.solved:
                write_checkpoint(folder / "solved.pt", agent)
            write_checkpoint(folder / "latest.pt", latest, keep=folder / "previous.pt")
        except OSError as error:
            free = f"{shutil.disk_usage(run.folder).free // 2**20:,} MB free"
            raise OSError(f"no checkpoint could be written to {folder}, {free}: {error}") from None

    if every := params.checkpoint_every:
        engine.add_event_handler(Events.ITERATION_COMPLETED(every=every) | Events.COMPLETED, save)


def load_checkpoint(
    engine: Engine, run: Run, saved: dict[str, Any], figures: dict[str, Any]
) -> None:
    """Load ``run.checkpoint``; once everything is loaded, cut the event files."""
    checkpoint = run.checkpoint or {}

    def load(name: str, part: Any) -> None:
        hint = "resume the run with the earlier version that saved it"
        try:
            part.load_state_dict(checkpoint.pop(name))
        except KeyError as error:
            raise CheckpointError(f"the checkpoint has no {error.args[0]}: {hint}") from None
        except (RuntimeError, ValueError) as error:
            if describe_device_error(error):
                raise
            text = f"the checkpoint's {name} does not fit: {hint}"
            raise CheckpointError(f"{text} ({' '.join(str(error).split())[:160]})") from None

    for name, part in saved.items():
        load(name, part)

    @engine.on(Events.STARTED)
    def resume() -> None:
        lengths = checkpoint["progress"]["events"]
        for name, figure in figures.items():
            load(name, figure)
        place, goal = run.folder / FOLDER, checkpoint[SETTINGS]["hyperparameters"]["stop_reward"]
        if (solved := place / "solved.pt").exists():  # the agent of the earlier goal
            solved.replace(place / f"solved-{goal:g}.pt")
        if goal != run.params.stop_reward:
            engine.state.reached = dict.fromkeys(engine.state.reached, math.nan)
        checkpoint["file"].replace(place / "latest.pt")  # it may be previous.pt
        for name, length in lengths.items():
            file = run.folder / name
            if not length:
                file.unlink()
            elif file.stat().st_size > length:  # a shorter one would be filled with zeros
                os.truncate(file, length)
        run.write_settings()
        run.checkpoint = None


def describe_settings(run: Run, net: Any) -> dict[str, Any]:
    """Describe script, settings and network, to resume the run or play its agent."""
    network = getattr(net, "network", net)  # of MixedWeights
    return {
        "script": run.script,
        "hyperparameters": asdict(run.params),
        "preprocessing": asdict(run.params.preprocessing),
        "network": {"class": type(network).__name__, "arguments": network.arguments},
    }


class RunProgress:
    """Counters and random states of a run, and the lengths of its event files."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self.engine, self.run = engine, run
        # A GPU has its own random numbers.
        self.gpu = None if run.device.type == "cpu" else torch.get_device_module(run.device)

    def state_dict(self) -> dict[str, Any]:
        self.run.tensorboard.writer.flush()
        files = list(self.run.folder.glob(EVENT_FILES))
        for file in files:  # the lengths below must be on the disk
            with file.open("rb+") as events:
                os.fsync(events.fileno())
        return {
            **{name: getattr(self.engine.state, name) for name in COUNTERS},
            "random": torch.get_rng_state(),
            "device_random": self.gpu.get_rng_state() if self.gpu else None,
            "events": {file.name: file.stat().st_size for file in files},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in COUNTERS:
            setattr(self.engine.state, name, state[name])
        torch.set_rng_state(state["random"])
        settings = (self.run.checkpoint or {})[SETTINGS]["hyperparameters"]
        if self.gpu and torch.device(settings["device"]).type == self.run.device.type:
            self.gpu.set_rng_state(state["device_random"])  # useless on another kind
