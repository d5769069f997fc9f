"""Saving checkpoints during a run, and resuming from one.

A checkpoint holds what was learned, where the run stands, its settings, and how long its event
files were. A resumed run cuts the files to that length. So everything between the checkpoint and
the end of the first run is logged once, by the resumed run.
"""

import copy
import errno
import math
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint
from ignite.handlers.checkpoint import BaseSaveHandler

from lib.running.checkpoints import (
    FOLDER,
    SETTINGS,
    CheckpointError,
    checkpoints_of,
    read_checkpoint,
)
from lib.running.run import EVENT_FILES, Failure, Run, describe_device_error

# These belong together: an empty buffer cannot take a game from its middle on.
REPLAY = ("buffer", "experience")


class Settings:
    """The script, its hyperparameters, and what it takes to play with its network."""

    def __init__(self, run: Run, net: Any) -> None:
        self.run = run
        self.network = getattr(net, "network", net)  # of MixedWeights

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must agree with, and what ``lib.running.evaluation`` loads."""
        kept = {
            "script": self.run.script,
            "hyperparameters": asdict(self.run.options),
            "recipe": asdict(self.run.options.recipe),
        }
        if self.network is not None:
            name = type(self.network).__name__
            kept["network"] = {"class": name, "arguments": self.network.arguments}
        return kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: ``lib.running.options`` has compared the command line with it."""


class Progress:
    """The progress of a run, for a checkpoint: the engine's counters and the curves."""

    COUNTERS = ("iteration", "frames", "episodes", "avg_reward", "update_due")
    SINCE = ("reached",)  # not in checkpoints of earlier versions

    def __init__(self, engine: Engine, run: Run) -> None:
        self.engine, self.run = engine, run

    def state_dict(self) -> dict[str, Any]:
        """The counters, torch's random states, and the length of every event file."""
        self.run.tensorboard.writer.flush()
        files = list(self.run.folder.glob(EVENT_FILES))
        for file in files:  # a checkpoint must not outlive the points that it counts
            with file.open("rb+") as events:
                os.fsync(events.fileno())
        return {
            **{name: getattr(self.engine.state, name) for name in (*self.COUNTERS, *self.SINCE)},
            "random": torch.get_rng_state(),
            "device_random": self._device_random(),
            "events": {file.name: file.stat().st_size for file in files},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the counters; ``lib.running.run.open_folder`` has cut the event files."""
        for name in self.COUNTERS:
            setattr(self.engine.state, name, state[name])
        for name in self.SINCE:
            if name in state:
                setattr(self.engine.state, name, state[name])
        torch.set_rng_state(state["random"])
        if state.get("device_random") is not None:
            torch.get_device_module(self.run.device).set_rng_state(state["device_random"])

    def _device_random(self) -> torch.Tensor | None:
        """The random state of the GPU, for a replay buffer there; None on the CPU."""
        if self.run.device.type == "cpu":
            return None
        return torch.get_device_module(self.run.device).get_rng_state()


class Saver(BaseSaveHandler):
    """Writes checkpoints into a folder, so that a complete one is on the disk at any time.

    A file gets its name when its content is on the disk. Only then are those deleted that it
    replaces; ignite asks for that earlier.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.replaced: set[str] = set()

    def __call__(self, checkpoint: Mapping, filename: str, metadata: Mapping | None = None) -> None:
        """Write a checkpoint, then delete those that it replaces."""
        self.folder.mkdir(exist_ok=True)
        written = self.folder / f"tmp-{filename}"
        try:
            with written.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            written.unlink(missing_ok=True)  # a full disk needs the room
            raise
        written.replace(self.folder / filename)
        sync_names(self.folder)
        for name in self.replaced - {filename}:
            (self.folder / name).unlink(missing_ok=True)  # somebody may have deleted it already
        self.replaced.clear()

    def remove(self, filename: str) -> None:
        """Delete a checkpoint when the next one is written."""
        self.replaced.add(filename)


def sync_names(folder: Path) -> None:
    """Wait until the names of new files are on the disk, where the system can do that."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems sync files alone
            raise
    finally:
        os.close(descriptor)


def save_checkpoints(
    engine: Engine, run: Run, saved: dict[str, Any], figures: dict[str, Any]
) -> None:
    """Save every ``--checkpoint-every`` updates and at the end; resume from ``run.checkpoint``.

    The folder keeps the last two checkpoints, the best one by avg_reward, and the solved one. The
    replay buffer is in the last two alone: to play with an agent takes no buffer.

    Args:
        engine: is saved at the end of an update.
        run: has the settings, and the checkpoint to resume from.
        saved: what a rung saves; each has ``state_dict`` and ``load_state_dict``.
        figures: the same, for what ignite resets when the engine starts.
    """
    options, folder = run.options, run.folder / FOLDER
    figures = {"progress": Progress(engine, run), **figures}
    load_checkpoint(engine, run, saved, figures)
    if not options.checkpoint_every:
        return

    everything = {SETTINGS: Settings(run, saved.get("net")), **saved, **figures}
    agent = {name: kept for name, kept in everything.items() if name not in REPLAY}

    def checkpoint(kind: str, count: int, kept: dict[str, Any], **how: Any) -> Checkpoint:
        return Checkpoint(
            dict(kept),
            Saver(folder),
            n_saved=count,
            filename_pattern=kind + "-{global_step}.pt",
            global_step_transform=lambda engine, _: engine.state.iteration,
            **how,
        )

    best = checkpoint("best", 1, agent, score_function=lambda engine: engine.state.avg_reward)
    latest = checkpoint("latest", 2, everything if options.checkpoint_replay else agent)
    solved = checkpoint("solved", 1, agent)
    if run.checkpoint:
        best_files = checkpoints_of(run.folder, "best").values()
        count_present(best, {file: reward_of(file) for file in best_files})
        now = run.checkpoint["progress"]["iteration"]
        for kind, handler in (("latest", latest), ("solved", solved)):
            found = checkpoints_of(run.folder, kind)
            # A newer one than the one that was loaded is damaged, or its updates come again.
            count_present(handler, {file: n if n <= now else -1 for n, file in found.items()})

    @engine.on(Events.ITERATION_COMPLETED(every=options.checkpoint_every) | Events.COMPLETED)
    def save(engine: Engine) -> None:
        state = engine.state
        try:
            if state.iteration and state.episodes:
                best(engine)
            if state.solved:
                solved(engine)
            latest(engine)
        except (OSError, RuntimeError) as error:  # torch raises its own when the disk is full
            if describe_device_error(error):  # an earlier error of the GPU, reported only here
                raise
            reason = str(error).strip().split("\n")[0]
            free = shutil.disk_usage(run.folder).free // 2**20
            raise Failure(
                f"no checkpoint could be written to {folder}, with {free:,} MB free: {reason}"
            ) from None


def count_present(handler: Checkpoint, files: Mapping[Path, float]) -> None:
    """Tell a handler which files are there already, and their priorities.

    A run that was killed may have left one too many: it is deleted with the next checkpoint.
    """
    present = sorted((priority, file.name) for file, priority in files.items())
    surplus = max(0, len(present) - handler.n_saved)
    handler.load_state_dict({"_saved": present[surplus:]})
    for _, name in present[:surplus]:
        handler.save_handler.remove(name)


def reward_of(checkpoint: Path) -> float:
    """The avg_reward of a checkpoint; less than any other if it is damaged."""
    try:
        return read_checkpoint(checkpoint)["progress"]["avg_reward"]
    except CheckpointError:
        return -math.inf


def load_checkpoint(
    engine: Engine, run: Run, saved: dict[str, Any], figures: dict[str, Any]
) -> None:
    """Resume from ``run.checkpoint``, if there is one."""
    checkpoint = run.checkpoint
    if checkpoint is None:
        return
    for leftover in (run.folder / FOLDER).glob("tmp*"):  # of a run that was killed while saving
        leftover.unlink()
    present = {name: kept for name, kept in saved.items() if name in checkpoint}
    if missing := saved.keys() - present.keys() - set(REPLAY):
        raise Failure(
            f"the checkpoint has no {', '.join(sorted(missing))}: an earlier version saved it, so "
            "resume it with that version"
        )
    # Some objects keep the tensors that they are given, Adam and avg_loss for example. One of them
    # would keep the whole file, also after it is deleted. A replay buffer copies its own.
    copies = {
        name: checkpoint[name] if name in REPLAY else copy.deepcopy(checkpoint[name])
        for name in (*present, *figures)
    }
    Checkpoint.load_objects(present, {name: copies.pop(name) for name in present})

    @engine.on(Events.STARTED)
    def resume() -> None:
        Checkpoint.load_objects(figures, copies)
        run.checkpoint = None
