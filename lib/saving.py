"""Saving checkpoints during a run, and resuming from one.

A checkpoint holds what was learned, where the run stands, its settings, and how long its event
files were. A resumed run cuts the files to that length. So everything between the checkpoint and
the end of the first run is logged once, by the resumed run.
"""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver

from lib.checkpoints import FOLDER, SETTINGS, read_checkpoint
from lib.run import EVENT_FILES, Failure, Run, describe_device_error

# These belong together: an empty buffer cannot take a game from its middle on.
REPLAY = ("buffer", "experience")


class Settings:
    """The script, its hyperparameters, and what it takes to play with its network."""

    def __init__(self, run: Run, net: Any) -> None:
        self.run = run
        self.network = getattr(net, "network", net)  # of MixedWeights

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must agree with, and what ``lib.evaluation`` loads."""
        kept = {
            "script": self.run.script,
            "hyperparameters": asdict(self.run.hyperparams),
            "recipe": asdict(self.run.hyperparams.recipe),
        }
        if self.network is not None:
            name = type(self.network).__name__
            kept["network"] = {"class": name, "arguments": self.network.arguments}
        return kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: ``lib.arguments`` has compared the command line with it."""


class Progress:
    """The progress of a run, for a checkpoint: the engine's counters and the curves."""

    COUNTERS = ("iteration", "frames", "episodes", "avg_reward", "update_due")

    def __init__(self, engine: Engine, run: Run) -> None:
        self.engine, self.run = engine, run

    def state_dict(self) -> dict[str, Any]:
        """The counters, torch's random states, and the length of every event file."""
        self.run.tensorboard.writer.flush()
        files = self.run.folder.glob(EVENT_FILES)
        return {
            **{name: getattr(self.engine.state, name) for name in self.COUNTERS},
            "random": torch.get_rng_state(),
            "device_random": self._device_random(),
            "events": {file.name: file.stat().st_size for file in files},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the counters; ``lib.run.open_folder`` has cut the event files."""
        for name in self.COUNTERS:
            setattr(self.engine.state, name, state[name])
        torch.set_rng_state(state["random"])
        if state.get("device_random") is not None:
            torch.get_device_module(self.run.device).set_rng_state(state["device_random"])

    def _device_random(self) -> torch.Tensor | None:
        """The random state of the GPU, for a replay buffer there; None on the CPU."""
        if self.run.device.type == "cpu":
            return None
        return torch.get_device_module(self.run.device).get_rng_state()


def save_checkpoints(
    engine: Engine, run: Run, learned: dict[str, Any], figures: dict[str, Any]
) -> None:
    """Save every ``--checkpoint-every`` updates and at the end; resume from ``run.checkpoint``.

    The folder keeps the last two checkpoints, the best one by avg_reward, and the solved one. A
    file gets its name when it is complete.

    Args:
        engine: is saved at the end of an update.
        run: has the settings, and the checkpoint to resume from.
        learned: what a rung saves; each has ``state_dict`` and ``load_state_dict``.
        figures: the same, for what ignite resets when the engine starts.
    """
    hp, folder = run.hyperparams, run.folder / FOLDER
    figures = {"progress": Progress(engine, run), **figures}
    load_checkpoint(engine, run, learned, figures)
    if not hp.checkpoint_every:
        return
    if not hp.checkpoint_replay:
        learned = {name: kept for name, kept in learned.items() if name not in REPLAY}

    everything = {SETTINGS: Settings(run, learned.get("net")), **learned, **figures}

    def checkpoint(kind: str, count: int, **how: Any) -> Checkpoint:
        return Checkpoint(
            dict(everything),
            DiskSaver(str(folder), create_dir=True, require_empty=False),
            n_saved=count,
            filename_pattern=kind + "-{global_step}.pt",
            global_step_transform=lambda engine, _: engine.state.iteration,
            **how,
        )

    best = checkpoint("best", 1, score_function=lambda engine: engine.state.avg_reward)
    latest, solved = checkpoint("latest", 2), checkpoint("solved", 1)
    if run.checkpoint:  # count the files that are there already
        scored = {file: reward_of(file) for file in folder.glob("best-*.pt")}
        steps = {file: int(file.stem.split("-")[1]) for file in folder.glob("latest-*.pt")}
        for handler, files in ((best, scored), (latest, steps)):
            saved = sorted((priority, file.name) for file, priority in files.items())
            handler.load_state_dict({"_saved": saved})

    @engine.on(Events.ITERATION_COMPLETED(every=hp.checkpoint_every) | Events.COMPLETED)
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


def reward_of(checkpoint: Path) -> float:
    """The avg_reward of a checkpoint."""
    return read_checkpoint(checkpoint)["progress"]["avg_reward"]


def load_checkpoint(
    engine: Engine, run: Run, learned: dict[str, Any], figures: dict[str, Any]
) -> None:
    """Resume from ``run.checkpoint``, if there is one."""
    checkpoint = run.checkpoint
    if checkpoint is None:
        return
    for leftover in (run.folder / FOLDER).glob("tmp*"):  # of a run that was killed while saving
        leftover.unlink()
    present = {name: kept for name, kept in learned.items() if name in checkpoint}
    if missing := learned.keys() - present.keys() - set(REPLAY):
        raise Failure(
            f"the checkpoint has no {', '.join(sorted(missing))}: an earlier version saved it, so "
            "resume it with that version"
        )
    Checkpoint.load_objects(present, {name: checkpoint[name] for name in present})

    @engine.on(Events.STARTED)
    def resume() -> None:
        Checkpoint.load_objects(figures, {name: checkpoint[name] for name in figures})
        run.checkpoint = None  # it may hold a replay buffer
