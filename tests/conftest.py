"""Shared by the tests: small environments with pictures, and rungs run as programs."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# One thread per process, here and in what is started from here: batches are tiny, and threads
# that wait for each other are slow where the machine has other work. Before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

ROOT = Path(__file__).parent.parent
SERIAL = ["00_slow_grads", "01_baseline", "02_n_envs", "04_new_wrappers_n_env"]
PARALLEL = ["03_parallel", "04_new_wrappers_parallel"]
# Beyond the book.
SPEEDRUNS = ["07_speedrun", "08_recompiled_pong", "10_many_learners"]  # without a replay buffer
BEYOND = ["05_vector_env", "06_compiled_update", *SPEEDRUNS]


@pytest.fixture(autouse=True)
def denormal_numbers() -> Iterator[None]:
    """Rungs flush denormal numbers to zero, for a whole process; the next test has them again."""
    import torch

    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def console() -> None:
    """The emulator is compiled: by one worker, while the others wait."""
    from emulator import PongVectorEnv
    from emulator.compiling import folder

    with open(folder() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        envs = PongVectorEnv(2, seed=0)
        envs.reset()
        envs.step(np.zeros(2, int))
        envs.screen(0)


class Scripted(gym.Env):
    """Plays back a script of (picture, reward, terminated, lives); remembers the actions."""

    def __init__(
        self,
        script: Sequence[tuple[int, float, bool, int]],
        shape: tuple[int, ...] = (210, 160, 3),
        meanings: Sequence[str] = ("NOOP", "FIRE", "UP"),
    ) -> None:
        self.script, self.shape, self.meanings = script, shape, list(meanings)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(len(meanings))
        self.ale = self
        self.position = 0
        self.resets = 0
        self.actions: list[int] = []

    def get_action_meanings(self) -> list[str]:
        return self.meanings

    def lives(self) -> int:
        return self.script[self.position][3]

    def _picture(self) -> np.ndarray:
        return np.full(self.shape, self.script[self.position][0], np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.position = 0
        self.resets += 1
        return self._picture(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.position += 1
        self.actions.append(action)
        _, reward, terminated, _ = self.script[self.position]
        return self._picture(), reward, terminated, False, {}


def run_rung(script: str, folder: Path, *flags: str, timeout: float = 120) -> Any:
    """Run a rung to its end."""
    command = [sys.executable, str(ROOT / f"{script}.py"), "--run-dir", str(folder)]
    return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=timeout)


def read_events(folder: Path) -> EventAccumulator:
    """The events of the only run in the folder."""
    (run,) = folder.iterdir()
    return EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
