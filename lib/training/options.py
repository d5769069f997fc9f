"""The options of rungs: frozen dataclasses in which every field is also a flag.

``option`` makes a field. ``lib.training.speedrun_options`` has the options of 07, 08 and 10. A rung
calls its options ``params``, as the book does.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from lib.devices import choose_precision, memory, missing_device, shares_memory
from lib.envs.atari_wrappers import RESIZERS, check_env_id
from lib.envs.preprocessing import Preprocessing

import torch

PONG_GOAL = 17.0  # avg_reward of a solved Pong, as in the book
MOST_SAMPLES = 65_536  # per update; 2.3 GB of frames at four per stack


def option(
    default: Any,
    help: str,
    low: float = -math.inf,
    high: float = math.inf,
    choices: Sequence[str] | None = None,
    group: str = "learning",
    may_change: bool = False,
) -> Any:
    """Make a dataclass field that is also a command-line flag.

    Args:
        default: gives the flag its type; None: a float without a default.
        help: one plain sentence for ``--help``.
        low, high: its limits.
        choices: the strings accepted.
        group: a heading of ``--help``, one of ``lib.training.flags.GROUPS``.
        may_change: whether it may change when a run is resumed.
    """
    kind = float if default is None else type(default)
    names = {"help": help, "low": low, "high": high, "choices": choices, "type": kind}
    return field(default=default, metadata=names | {"group": group, "may_change": may_change})


resume_option = partial(option, group="run", may_change=True)
run_option = partial(option, group="run")
playing_option = partial(option, group="playing")
epsilon_option = partial(playing_option, low=0, high=1)
decay_option = partial(playing_option, 100_000, low=1)
wrapper_option = partial(option, group="wrappers")
timeout_option = partial(
    playing_option, 60.0, "fail after this many seconds without a frame", 1, 10**6, may_change=True
)


@dataclass(frozen=True)
class CommonOptions:
    """Settings that every rung has."""

    seed: int = run_option(0, "random seed", low=0, high=2_000_000_000)
    max_frames: int = resume_option(0, "stop after this many frames; 0: no limit", low=0)
    stop_reward: float | None = resume_option(
        None, "avg_reward to reach (default: 17 in Pong; other games have no goal)"
    )
    cuda: bool = run_option(False, "train on the GPU; short for --device cuda")
    device: str = run_option("", "device to train on: cpu, cuda, cuda:1 or mps (default: cpu)")
    threads: int = resume_option(
        0, "threads of torch; 0: the free cores, or 1 with a GPU", low=0, high=1_024
    )
    amp: bool = run_option(False, "compute updates in bfloat16")
    run_dir: str = resume_option("runs", "where this run makes its folder")
    resume: str = resume_option(
        "",
        "resume the run in this folder, with its settings; --max-frames, --stop-reward, "
        "--threads, --checkpoint-every, devices and timeouts may change",
    )
    init_from: str = run_option(
        "", "begin a new run with the weights of this checkpoint, or of the run in this folder"
    )
    checkpoint_every: int = resume_option(
        5_000, "updates between checkpoints; the last one is saved at the end; 0: none", low=0
    )
    env: str = playing_option("PongNoFrameskip-v4", "the Atari game, as <Game>NoFrameskip-v4")
    learning_rate: float = option(1e-4, "learning rate of Adam", low=1e-12, high=1)
    adam_epsilon: float = option(1e-8, "epsilon of Adam; damps small gradients", low=1e-12, high=1)
    gamma: float = option(0.99, "discount per agent step", low=0, high=1)
    batch_size: int = option(32, "transitions sampled per new frame", low=1)
    epsilon_start: float = epsilon_option(1.0, "probability of a random action at the start")
    epsilon_final: float = epsilon_option(0.02, "probability of a random action at the end")
    epsilon_frames: int = decay_option("frames over which epsilon falls, from the first update on")
    temperature = 0.0  # of the softmax over action values; 0: greedy

    def resolved(self) -> Self:
        """Return a copy with device and goal filled in."""
        device, goal = self._asked_device, self.stop_reward
        if goal is None and self.env.startswith("Pong"):
            goal = PONG_GOAL
        return replace(self, device=device, cuda=device.startswith("cuda"), stop_reward=goal)

    @property
    def _asked_device(self) -> str:
        return self.device or ("cuda" if self.cuda else "cpu")

    @property
    def training_device(self) -> torch.device:
        return torch.device(self._asked_device)

    def torch_threads(self, free: int) -> int:
        """Return how many threads torch uses if this many cores are free."""
        # With a GPU, the CPU only copies; more threads would take cores from the games.
        return self.threads or (free if self.training_device.type == "cpu" else 1)

    def notices(self) -> Iterator[str]:
        """Yield a line for each thing that this device does differently."""
        if self.training_device.type == "mps":
            yield "mps: no CUDA graphs, no compilation, and float32 by default"

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of this run. Where a rung has no setting, DeepMind's applies."""
        names = [entry.name for entry in fields(Preprocessing) if hasattr(self, entry.name)]
        return Preprocessing(**{name: getattr(self, name) for name in names})

    def validation_error(self) -> str | None:
        """Return a one-line reason why the settings are invalid on this machine, or None."""
        try:
            check_env_id(self.env)
        except ValueError as error:
            return f"--env: {error}"
        device = self._asked_device
        if self.cuda and not device.startswith("cuda"):
            return f"--cuda: contradicts --device {device}"
        if message := missing_device(device):
            hint = "; --device cpu resumes the run on the CPU" if self.resume else ""
            return f"{'--cuda' if device == 'cuda' else '--device'}: {message}{hint}"
        there = self.training_device
        if self.amp and there.type == "cuda" and choose_precision(there) != "bfloat16":
            return "--amp: this GPU has no units for bfloat16 (NVIDIA's have them since Ampere)"
        if self.epsilon_final > self.epsilon_start:
            return "--epsilon-final is larger than --epsilon-start"
        return None if self.resume else unwritable("--run-dir", Path(self.run_dir))


@dataclass(frozen=True)
class ReplayOptions(CommonOptions):
    """Settings of rungs with a replay buffer and a target network: the book's DQN for Pong."""

    replay_size: int = option(100_000, "capacity of the replay buffer, in transitions", low=1)
    replay_initial: int = option(10_000, "transitions to play before training begins", low=1)
    target_sync: int = option(1_000, "updates between copies to the target network", low=1)
    transition_bytes = 7_600  # in the replay buffer

    @property
    def samples(self) -> int:
        """Samples per update."""
        return self.batch_size * getattr(self, "envs", 1) * getattr(self, "steps", 1)

    def validation_error(self) -> str | None:
        if self.replay_initial > self.replay_size:
            return "--replay-initial is larger than --replay-size"
        if self.replay_size < (least := self._least_replay_size()):
            return f"--replay-size: with these settings the replay buffer needs at least {least:,}"
        if (count := self.samples) > MOST_SAMPLES:
            return f"--batch-size: an update of {count:,} samples is larger than {MOST_SAMPLES:,}"
        message = too_large("replay-size", self.replay_size, self.transition_bytes)
        return message or super().validation_error()

    def _least_replay_size(self) -> int:
        envs, stack = getattr(self, "envs", 1), self.preprocessing.stack
        if message := getattr(self, "message_steps", 0):  # consecutive messages share frames
            return envs * (message + getattr(self, "n_steps", 1) + stack - 1)
        # A step stores a frame, or two if an episode begins; a state goes back ``stack`` steps.
        return 2 * envs * (getattr(self, "steps", 1) + stack)


@dataclass(frozen=True)
class PlayerOptions(ReplayOptions):
    """Settings of rungs whose player is a separate process."""

    batch_size: int = option(32, "transitions per update (times --steps)", low=1)
    epsilon_frames: int = decay_option(
        "frames (times --steps) over which epsilon falls, from the first frame on"
    )
    play_device: str = playing_option("", "device for the player's own network copy (cpu, cuda:1)")
    sync_frames: int = playing_option(
        0,
        "frames between updates of the copy; 0: every 4 with --play-device, otherwise no copy",
        low=0,
    )
    player_timeout: float = timeout_option()

    @property
    def training_device(self) -> torch.device:
        """The training device, or the CPU: processes cannot share mps."""
        device = super().training_device
        return torch.device("cpu") if device.type == "mps" else device

    def notices(self) -> Iterator[str]:
        yield from super().notices()
        asked = super().training_device
        if asked.type == "mps":
            yield "the player process cannot share weights on mps: training on the CPU instead"
        elif not self.play_device and not shares_memory(asked):
            yield "processes cannot share GPU memory on Windows: the player acts on the CPU"

    @property
    def refresh_frames(self) -> int:
        """Frames between refreshes of the player's own copy; 0: it has none."""
        return self.sync_frames or (4 if self.play_device else 0)

    @property
    def player_device(self) -> str:
        device = self.training_device
        return self.play_device or (str(device) if shares_memory(device) else "cpu")

    def validation_error(self) -> str | None:
        if message := super().validation_error():
            return message
        message = missing_device(self.player_device)
        return f"--play-device: {message}" if message else None


@dataclass(frozen=True)
class PrecisionOptions(CommonOptions):
    """Settings of rungs with a choice of precision, which a resumed run keeps."""

    precision: str = run_option(
        "auto",
        "precision of the gradients; auto: bfloat16 if the processor has units for it (or with "
        "--amp), else float32",
        choices=["auto", "float32", "bfloat16"],
    )

    def resolved(self) -> Self:
        chosen = self.precision
        if chosen == "auto":
            chosen = "bfloat16" if self.amp else choose_precision(self.training_device)
        return replace(super().resolved(), precision=chosen)

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.resolved().precision)

    def validation_error(self) -> str | None:
        if self.amp and self.precision == "float32":
            return "--precision: float32 contradicts --amp, which is bfloat16"
        return super().validation_error()


@dataclass(frozen=True)
class WrapperOptions(ReplayOptions):
    """Settings of rungs with cheaper wrappers; each choice can be switched back."""

    noop_max: int = wrapper_option(0, "maximum no-ops at the start of a game (DeepMind: 30)", low=0)
    skip: int = wrapper_option(4, "emulated frames for which an action is held", low=1, high=60)
    max_pool: bool = wrapper_option(False, "frame skip takes the maximum of the last two frames")
    episodic_life: bool = wrapper_option(True, "a lost life ends the episode")
    fire_reset: bool = wrapper_option(True, "press FIRE after a reset")
    clip_reward: bool = wrapper_option(True, "clip rewards to their sign")
    stack: int = wrapper_option(2, "stacked frames per state (DeepMind: 4)", low=1, high=16)
    resize: str = wrapper_option("opencv-linear", "how frames are resized", choices=list(RESIZERS))


Options = TypeVar("Options", bound=CommonOptions)


def too_large(flag: str, transitions: int, size: int) -> str | None:
    """Return a one-line reason why the memory cannot hold this many transitions, or None."""
    needed, present = transitions * size / 2**30, memory() / 2**30
    text = f"{transitions:,} transitions take {needed:,.1f} GiB; this machine or container has"
    return f"--{flag}: {text} {present:,.1f} GiB" if needed > present else None


def unwritable(flag: str, folder: Path) -> str | None:
    """Return a one-line reason why a run cannot write to this folder, or None."""
    try:
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:  # a folder in another's private folder, or too long a name
        return f"{flag}: {error}"
    usable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    return None if usable else f"{flag}: {existing} is not a writable folder"
