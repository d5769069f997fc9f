"""Checkpoints of a run: RUN_DIR/checkpoints/ has latest.pt, previous.pt, best.pt and solved.pt.

A checkpoint holds what was learned, where the run stands, its settings, and how long its event
files were. A resumed run cuts the files to that length. So everything between the checkpoint and
the end of the first run is logged once, by the resumed run.

A file gets its name when its content is on the disk, so a whole one is there at any time. The
latest one becomes ``previous.pt`` then, which takes its place if it is damaged.
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

import torch
from ignite.engine import Engine, Events

from lib.training.run import Run

FOLDER = "checkpoints"
KINDS = ("solved", "best", "latest", "previous")  # play.py takes the first kind that exists
NEWEST = 5  # runs to name, where their folder was given in place of one
SETTINGS = "settings"  # the key of the script and the hyperparameters
EVENT_FILES = "events.out.tfevents.[1-9]*"  # those of curves, see ``lib.training.hparams``
REPLAY = ("buffer", "experience")  # an agent needs neither to play
COUNTERS = (
    "iteration", "frames", "episodes", "first_reward", "avg_reward", "reached", "update_due",
)  # fmt: skip


class CheckpointError(Exception):
    """There is no checkpoint, or it cannot be used; the message says why in one line."""


def find_checkpoint(path: Path, *kinds: str) -> Path:
    """A checkpoint, or the first of these kinds in a run folder; without any, of ``KINDS``.

    Raises:
        CheckpointError: if there is none.
    """
    for file in (path, *(path / FOLDER / f"{kind}.pt" for kind in kinds or KINDS)):
        if file.is_file():
            return file
    raise CheckpointError(f"{path} has no checkpoint in a folder {FOLDER}")


def list_runs(folder: Path, script: str = "*") -> str:
    """The newest runs in a folder, as lines that ask to name one; empty if there are none."""
    runs = [run.parent for run in folder.glob(f"{script}-*/{FOLDER}")]
    runs.sort(key=lambda run: (run / FOLDER).stat().st_mtime, reverse=True)
    names = "".join(f"  {run}\n" for run in runs[:NEWEST])
    return names and f"name a run in {folder}, the newest are\n{names}"


def read_latest(folder: Path) -> tuple[Path, dict[str, Any], str | None]:
    """The file of the newest whole checkpoint, its content, and a line if a newer one is damaged.

    Raises:
        CheckpointError: if there is none.
    """
    file = find_checkpoint(folder, "latest", "previous")
    try:
        return file, read_checkpoint(file), None
    except CheckpointError as damage:
        file = folder / FOLDER / "previous.pt"
        with suppress(CheckpointError):
            return file, read_checkpoint(file), f"{damage}; {file.name} takes its place"
        raise


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint of this project.

    Raises:
        CheckpointError: if the file is damaged, or not a checkpoint of this project.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if part := archive.testzip():  # it compares checksums; torch does not
                raise zipfile.BadZipFile(f"the checksum of {part} is wrong")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        reason = str(error).strip().split("\n")[0].split(". ")[0][:120] or type(error).__name__
        raise CheckpointError(f"{path} is damaged, or not a checkpoint: {reason}") from None
    if not isinstance(checkpoint, dict) or SETTINGS not in checkpoint:
        raise CheckpointError(f"{path} is not a checkpoint of this project")
    return checkpoint


def write_checkpoint(file: Path, contents: Mapping[str, Any]) -> None:
    """Write a checkpoint; until it is on the disk, the one that it replaces stays there.

    Raises:
        OSError: it cannot be written; nothing was replaced.
    """
    file.parent.mkdir(exist_ok=True)
    written = file.with_suffix(".tmp")
    try:
        with written.open("wb") as stream:
            torch.save(contents, stream)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException as error:
        written.unlink(missing_ok=True)  # a full disk needs the room
        cause = error.__context__  # torch's writer raises RuntimeError over what its stream raised
        if isinstance(error, RuntimeError) and isinstance(cause, (OSError, KeyboardInterrupt)):
            raise cause from None
        raise
    if file.name == "latest.pt" and file.exists():
        file.replace(file.with_name("previous.pt"))
    written.replace(file)


def save_checkpoints(
    engine: Engine, run: Run, saved: dict[str, Any], figures: dict[str, Any]
) -> None:
    """Save every ``--checkpoint-every`` updates and at the end; resume from ``run.checkpoint``.

    Args:
        engine: is saved at the end of an update.
        run: has the settings, and the checkpoint to resume from.
        saved: what a rung saves; each has ``state_dict`` and ``load_state_dict``.
        figures: the same, for what ignite resets when the engine starts.
    """
    params, folder, state = run.params, run.folder / FOLDER, engine.state
    figures = {"progress": RunProgress(engine, run), **figures}
    best = -math.inf
    if run.checkpoint:
        with suppress(CheckpointError):  # it is damaged, or not there
            best = read_checkpoint(folder / "best.pt")["progress"]["avg_reward"]
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
            write_checkpoint(folder / "latest.pt", latest)
        except OSError as error:
            free = f"{shutil.disk_usage(run.folder).free // 2**20:,} MB free"
            raise OSError(f"no checkpoint could be written to {folder}, {free}: {error}") from None

    if every := params.checkpoint_every:
        engine.add_event_handler(Events.ITERATION_COMPLETED(every=every) | Events.COMPLETED, save)


def load_checkpoint(
    engine: Engine, run: Run, saved: dict[str, Any], figures: dict[str, Any]
) -> None:
    """Resume from ``run.checkpoint``; only when all is loaded, the event files are cut."""
    checkpoint = run.checkpoint or {}

    def load(name: str, part: Any) -> None:
        try:
            part.load_state_dict(checkpoint.pop(name))
        except KeyError as error:
            hint = "an earlier version saved it, so resume it with that version"
            raise CheckpointError(f"the checkpoint has no {error.args[0]}: {hint}") from None

    for name, part in saved.items():
        load(name, part)

    @engine.on(Events.STARTED)
    def resume() -> None:
        lengths = checkpoint["progress"]["events"]
        for name, figure in figures.items():
            load(name, figure)
        place, goal = run.folder / FOLDER, checkpoint[SETTINGS]["hyperparameters"]["stop_reward"]
        if (solved := place / "solved.pt").exists():  # it is not what is trained on from now on
            solved.replace(place / f"solved-{goal:g}.pt")
        if goal != run.params.stop_reward:
            engine.state.reached = dict.fromkeys(engine.state.reached, math.nan)
        checkpoint["file"].replace(place / "latest.pt")  # where that is damaged
        for name, length in lengths.items():
            file = run.folder / name
            if not length:
                file.unlink()
            elif file.stat().st_size > length:  # a shorter one would be filled with zeros
                os.truncate(file, length)
        run.write_settings()
        run.checkpoint = None


def describe_settings(run: Run, net: Any) -> dict[str, Any]:
    """Script, hyperparameters, preprocessing and network: to resume the run, or play its agent."""
    network = getattr(net, "network", net)  # of MixedWeights
    return {
        "script": run.script,
        "hyperparameters": asdict(run.params),
        "preprocessing": asdict(run.params.preprocessing),
        "network": {"class": type(network).__name__, "arguments": network.arguments},
    }


class RunProgress:
    """The progress of a run: the engine's counters, random states, and lengths of event files."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self.engine, self.run = engine, run
        # A GPU has random numbers of its own.
        self.gpu = None if run.device.type == "cpu" else torch.get_device_module(run.device)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; writes the event files to the disk first."""
        self.run.tensorboard.writer.flush()
        files = list(self.run.folder.glob(EVENT_FILES))
        for file in files:  # a checkpoint must not outlive the points that it counts
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
            self.gpu.set_rng_state(state["device_random"])  # of another kind it would be useless
