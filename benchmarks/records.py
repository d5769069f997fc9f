"""Runs, finished or not, read from their TensorBoard events."""

import csv
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.report import HARDWARE, LIBRARIES, ROOT

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import PLUGIN_NAME, SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

COMMIT = "commit.txt"  # in the folder of a run, or of runs of one commit
UNIMPORTANT = ("run_dir", "resume", "checkpoint_every", "checkpoint_replay")  # for learning
# Sources of README's FPS, on two cores of a Zen 4.
KEPT = [ROOT / f"results/epyc-zen4-2core/{name}/runs.csv" for name in ("ladder-amp", "held-out")]
Setting = str | float  # TensorBoard keeps every number as a float, and flags as 0 and 1


@dataclass(frozen=True, eq=False)
class Curves:
    """The run by episode: arrays of equal length."""

    seconds: np.ndarray  # since the first environment step
    frames: np.ndarray
    avg_reward: np.ndarray
    reward: np.ndarray  # of the game, unclipped
    steps: np.ndarray  # frames of the game


@dataclass(frozen=True, eq=False)
class Record:
    """A run."""

    folder: Path
    script: str
    seed: int
    settings: dict[str, Setting]  # the hyperparameters, without the seed and the folder
    machine: dict[str, Setting]
    curves: Curves
    fps: float | None  # of the training phase; None if training did not begin
    minutes: float  # of wall clock, until solved or until the last event
    frames: int
    to_bar: tuple[float, float]  # frames and minutes until avg_reward reached ``bar``, or all
    tried: bool  # whether the agent also had to win a trial, and trained until it did
    evaluation: list[float]  # reward of each game played after it was solved
    solved: bool
    finished: bool  # solved, or the frame limit was reached; an interrupted run is neither
    started: float  # seconds since 1970
    commit: str  # with "-dirty" if the code was changed since; "" if unknown

    @property
    def avg_reward(self) -> float | None:
        """The last smoothed reward; None if no game was completed."""
        return float(self.curves.avg_reward[-1]) if len(self.curves.frames) else None

    @property
    def setting(self) -> Hashable:
        """Equal for runs that differ only in their seeds and commits."""
        return self.script, frozenset(self.settings.items()), frozenset(self.machine.items())

    @property
    def cost(self) -> tuple[float, float]:
        """Frames and minutes to the bar, or all of them if the run is not solved."""
        return self.to_bar if self.solved else (self.frames, self.minutes)

    @property
    def hardware(self) -> dict[str, Setting]:
        """The machine, without the run's share of it."""
        return {k: v for k, v in self.machine.items() if k not in ("threads", "left_out")}

    @property
    def bfloat16(self) -> bool:
        return bool(self.settings.get("amp")) or self.settings.get("precision") == "bfloat16"

    @property
    def bar(self) -> float | None:
        """The avg_reward to reach; None in a game without a goal."""
        goal = self.settings.get("stop_reward")
        return None if goal is None else float(goal)


def readme_fps() -> dict[str, float]:
    """Return the FPS of each rung in README, by its script."""
    found = defaultdict(list)
    for file in KEPT:
        with file.open(newline="", encoding="utf-8") as lines:
            for run in csv.DictReader(lines):
                found[run["script"]].append(float(run["fps"]))
    return {script: median(fps) for script, fps in found.items()}


def read_records(folder: Path) -> list[Record]:
    """Read all runs below a folder, in the order of their names."""
    folders = sorted({file.parent for file in folder.rglob("events.out.tfevents.*")})
    return [record for run in folders if (record := read_record(run)) is not None]


def read_record(folder: Path) -> Record | None:
    """Read the run in this folder; return None if its events do not name a script.

    The first settings count, because a resumed run rewrites them in the file that is read first.
    """
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    recorded = _settings(events)
    if "script" not in recorded:
        return None
    script, seed = str(recorded.pop("script")), int(recorded.pop("seed", 0))
    machine = {name: recorded.pop(name, "") for name in (*HARDWARE, *LIBRARIES)}
    settings = {name: value for name, value in recorded.items() if name not in UNIMPORTANT}
    points = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    scalars = {tag: {point.step: point.value for point in points[tag]} for tag in points}
    last = {tag: points[tag][-1].value for tag in points}
    updates = last.get("outcome/updates", 1.0)  # if none, the FPS are those of filling
    fps = last.get("outcome/fps") if updates else None
    frames = last.get("outcome/frames") or _latest(last, "frames")
    minutes = (last.get("outcome/seconds") or _latest(last, "time_passed")) / 60
    names = ("time_passed", "frames", "avg_reward", "reward", "steps")
    by_game = [scalars.get(f"episodes/{name}", {}) for name in names]
    games = sorted(set.intersection(*map(set, by_game)))  # the last one may be incomplete
    commits = (folder / COMMIT, folder.parent / COMMIT)
    reached = [last.get(f"outcome/reached_{name}", 0.0) for name in ("frames", "minutes")]
    solved = bool(last.get("outcome/solved", 0.0))
    # The first event may be late: a resumed run writes its settings again.
    times = [events.FirstEventTimestamp(), *(curve[0].wall_time for curve in points.values())]
    return Record(
        folder=folder,
        script=script,
        seed=seed,
        settings=settings,
        machine={name: value for name, value in machine.items() if value != ""},
        curves=Curves(*(np.array([curve[game] for game in games]) for curve in by_game)),
        fps=last.get("train/avg_fps") if fps is None else fps,
        minutes=minutes,
        frames=int(frames),
        to_bar=(reached[0], reached[1]) if reached[0] > 0 else (frames, minutes),  # not NaN
        tried="trial/won" in last,
        evaluation=[*scalars.get("evaluation/reward", {}).values()],
        solved=solved,
        finished="outcome/frames" in last
        and (solved or 0 < float(settings.get("max_frames", 0)) <= frames),
        started=min(times),
        commit=next((f.read_text("utf-8").strip() for f in commits if f.exists()), ""),
    )


def _settings(events: EventAccumulator) -> dict[str, Setting]:
    try:
        content = events.PluginTagToContent(PLUGIN_NAME)[SESSION_START_INFO_TAG]
    except KeyError:  # no hyperparameters
        return {}
    start = HParamsPluginData.FromString(content).session_start_info
    values = {name: getattr(v, v.WhichOneof("kind")) for name, v in start.hparams.items()}
    return {name: float(v) if isinstance(v, bool) else v for name, v in values.items()}


def _latest(last: dict[str, float], name: str) -> float:
    return max(last.get(f"{phase}/{name}", 0.0) for phase in ("filling", "train", "episodes"))
