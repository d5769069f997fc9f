"""What a rung plays: other games with another seed, and with the actions that it says."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ale_py import AtariVectorEnv
from conftest import BEYOND, PARALLEL, SERIAL, SPEEDRUNS
from ignite.handlers import TensorboardLogger

from emulator.threads import ThreadedPongVectorEnv
from lib.games.experience import ExperienceSource, Transition
from lib.games.vector_env import StackedVectorEnv, VectorStep
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.dqn_model import DQN
from lib.learning.replay_buffer import ReplayBuffer
from lib.running.options import ReplayOptions
from lib.running.run import Run

FRAMES = 100  # games differ in their no-ops, so the ball is elsewhere by then


class Enough(Exception):  # noqa: N818, it is no error
    """As many frames as are wanted."""


def played(
    script: str, seed: int, folder: Path, epsilon: float = 0.0, **more: int
) -> list[np.ndarray]:
    """What the first game of a rung showed to the same network; epsilon is that of the start."""
    module = importlib.import_module(script)
    frames: list[np.ndarray] = []
    iterate, receive = ExperienceSource.__iter__, StackedVectorEnv.recv

    def look_at(source: ExperienceSource) -> Iterator[list[Transition]]:
        for transitions in iterate(source):
            frames.extend(transition.frame for transition in transitions if transition.env == 0)
            yield transitions

    def look(envs: StackedVectorEnv) -> VectorStep:
        step = receive(envs)
        frames.append(step.frames[0])
        return step

    def put(transition: Transition) -> None:
        if len(frames) == FRAMES:
            raise Enough

    settings = {"seed": seed, "epsilon_start": epsilon, "epsilon_final": 1e-6, **more}
    if script.startswith("04"):
        settings["noop_max"] = 30  # it has none of its own
    options = getattr(module, "Options", ReplayOptions)(**settings)
    envs = {"envs": 2} if hasattr(options, "envs") else {}
    options = replace(options, **envs, max_frames=FRAMES * (1 + len(envs)))
    torch.manual_seed(0)
    with TensorboardLogger(folder) as tensorboard, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExperienceSource, "__iter__", look_at)
        patch.setattr(StackedVectorEnv, "recv", look)
        patch.setattr(torch, "compile", lambda function, **_: function)  # it would take a minute
        if script in PARALLEL:
            net = DQN((options.recipe.stack, 84, 84), 6)
            with pytest.raises(Enough):
                module.play(SimpleNamespace(put=put), options, net, lambda frame: 0.0, 0)
        else:
            run = Run(options, torch.device("cpu"), folder, tensorboard, script)
            module.train(options, run)
    return frames


@pytest.mark.usefixtures("console", "ends")
@pytest.mark.parametrize("script", [*SERIAL, *PARALLEL, *BEYOND])
def test_games_take_the_seed(script: str, tmp_path: Path) -> None:
    one, other = (np.stack(played(script, seed, tmp_path)) for seed in (1, 2))
    assert not np.array_equal(one, other)


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize(
    ("script", "settings"),
    [
        ("02_n_envs", {"steps": 2}),
        ("04_new_wrappers_n_env", {"steps": 2}),
        ("05_vector_env", {}),
        ("06_compiled_update", {}),
    ],
)
def test_the_batch_grows_with_the_environments(
    script: str, settings: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = set()
    for buffer in (ReplayBuffer, DeviceReplayBuffer):

        def note(self: Any, size: int, sample: Callable[..., Any] = buffer.sample) -> Any:
            sizes.add(size)
            return sample(self, size)

        monkeypatch.setattr(buffer, "sample", note)
    replay = {"replay_initial": 190, "replay_size": 190}
    played(script, 0, tmp_path, batch_size=5, **replay, **settings)
    assert sizes == {5 * 2 * settings.get("steps", 1)}


@pytest.mark.usefixtures("console", "ends")
@pytest.mark.parametrize("script", SPEEDRUNS)
def test_speedruns_play_the_three_actions_that_differ(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: set[int] = set()
    games = AtariVectorEnv if script == "07_speedrun" else ThreadedPongVectorEnv
    send = games.send

    def note(self: Any, actions: np.ndarray) -> None:
        sent.update(actions.tolist())
        send(self, actions)

    monkeypatch.setattr(games, "send", note)
    played(script, 0, tmp_path, epsilon=1.0)
    assert sent == {0, 2, 3}  # of the game's six: stay, up and down
