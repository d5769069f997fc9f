"""What a rung plays, and how much it learns of it."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock

import numpy as np
import pytest
import torch
from conftest import BEYOND, PARALLEL, SERIAL, SPEEDRUNS
from ignite.engine import Engine
from ignite.handlers import TensorboardLogger

from lib.envs.experience import ExperienceSource, Transitions
from lib.envs.gpu_vector_env import TensorVectorEnv
from lib.envs.vector_env import StackedVectorEnv, VectorStep
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.dqn_model import DQN
from lib.learning.replay_buffer import ReplayBuffer
from lib.learning.schedules import Progress
from lib.training.events import PlayEvents
from lib.training.options import ReplayOptions
from lib.training.run import Run

FRAMES = 100  # games differ in their no-ops, so the ball is elsewhere by then


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling would take a minute."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


class Enough(Exception):  # noqa: N818, it is no error
    """As many frames as are wanted."""


def played(script: str, folder: Path, **settings: float) -> list[np.ndarray]:
    """What the first game of a rung showed to the same network, which acts greedily."""
    module = importlib.import_module(script)
    frames: list[np.ndarray] = []
    iterate, receive = ExperienceSource.__iter__, StackedVectorEnv.recv
    step_tensors = TensorVectorEnv.step

    def look_at(source: ExperienceSource) -> Iterator[list[Transitions]]:
        for steps in iterate(source):
            see(*steps)
            yield steps

    def look(envs: StackedVectorEnv) -> VectorStep:
        see(step := receive(envs))
        return step

    def look_at_tensors(envs: TensorVectorEnv, actions: torch.Tensor) -> Any:
        outcome = step_tensors(envs, actions)
        see(Mock(frames=envs.states[:, -1:].numpy().copy()))
        return outcome

    def see(*steps: Transitions | VectorStep) -> None:
        frames.extend(step.frames[0] for step in steps)
        if len(frames) >= FRAMES:
            raise Enough

    options_class = getattr(module, "Options", ReplayOptions)
    settings |= {"envs": 2} if hasattr(options_class, "envs") else {}
    settings |= {"noop_max": 30} if script.startswith("04") else {}  # it has none of its own
    settings |= {"epsilon_floor": 1e-6} if script in SPEEDRUNS else {}
    options = options_class(epsilon_start=1e-6, epsilon_final=1e-6, **settings)
    torch.manual_seed(0)
    with suppress(Enough), TensorboardLogger(folder) as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExperienceSource, "__iter__", look_at)
        patch.setattr(StackedVectorEnv, "recv", look)
        patch.setattr(TensorVectorEnv, "step", look_at_tensors)
        if script in PARALLEL:
            net = DQN((options.preprocessing.stack, 84, 84), 6)
            module.play(Mock(), options, net, lambda frame: 0.0, 0)
        else:
            module.train(options, Run(options, torch.device("cpu"), folder, log, script))
    return frames


@pytest.mark.usefixtures("console", "ends")
@pytest.mark.parametrize("script", [*SERIAL, *PARALLEL, *BEYOND])
def test_games_take_the_seed(script: str, tmp_path: Path) -> None:
    one, other = (np.stack(played(script, tmp_path, seed=seed)) for seed in (1, 2))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("script", PARALLEL)
@pytest.mark.parametrize(
    ("settings", "frames"), [({}, 2), ({"play_device": "cpu"}, 4), ({"sync_frames": 5}, 5)]
)
def test_a_player_acts_with_the_weights_of_its_last_refresh(script, settings, frames) -> None:
    module = importlib.import_module(script)
    options, actions = module.Options(**settings), []
    net = DQN((options.preprocessing.stack, 84, 84), 6).requires_grad_(False)
    for weight in net.parameters():
        weight.zero_()

    def put(step: Transitions) -> None:
        actions.append(step.actions.item())
        if len(actions) == 2:
            net.fc[-1].bias[3] = 1.0  # what is learned while it plays
        if len(actions) == 10:
            raise Enough

    with pytest.raises(Enough):
        module.play(Mock(put=put), options, net, lambda frame: 0.0, 0)
    assert actions == [0] * frames + [3] * (10 - frames)


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("script", [*SERIAL[1:], *PARALLEL, *BEYOND])
def test_adam_gets_its_epsilon(script, tmp_path, monkeypatch) -> None:
    module, attach = importlib.import_module(script), Mock(side_effect=Enough)
    monkeypatch.setattr(module, "attach_handlers", attach)
    options = getattr(module, "Options", ReplayOptions)(adam_epsilon=0.5)
    with pytest.raises(Enough), TensorboardLogger(tmp_path) as log:
        module.train(options, Run(options, torch.device("cpu"), tmp_path, log, script))
    saved = attach.call_args.args[3]
    optimizer = saved.get("optimizer")
    assert (optimizer.defaults["eps"] if optimizer else saved["net"].epsilon) == 0.5


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("script", [*SERIAL, *BEYOND[:2]])
def test_epsilon_falls_from_the_first_update_on(script, tmp_path, monkeypatch) -> None:
    module, attach = importlib.import_module(script), Mock(side_effect=Enough)
    monkeypatch.setattr(module, "attach_handlers", attach)
    settings = {"replay_initial": 500, "epsilon_frames": 100, "epsilon_final": 0.5}
    options = getattr(module, "Options", ReplayOptions)(**settings)
    with pytest.raises(Enough), TensorboardLogger(tmp_path) as log:
        module.train(options, Run(options, torch.device("cpu"), tmp_path, log, script))
    epsilon = attach.call_args.args[2]
    assert [epsilon(frame) for frame in (499, 500, 550, 600)] == [1, 1, 0.75, 0.5]


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("script", PARALLEL)
def test_the_player_gets_its_settings(script, tmp_path, monkeypatch) -> None:
    module = importlib.import_module(script)
    monkeypatch.setattr(module, "Player", Mock(side_effect=Enough))
    options = module.Options(steps=3, player_timeout=7.0)
    with pytest.raises(Enough), TensorboardLogger(tmp_path) as log:
        module.train(options, Run(options, torch.device("cpu"), tmp_path, log, script))
    module.Player.assert_called_once_with(module.play, ANY, 6, timeout=7.0, device="cpu")


@pytest.mark.usefixtures("console", "ends")
@pytest.mark.parametrize("script", SPEEDRUNS)
def test_a_lost_trial_sets_the_schedules_back(script, tmp_path, monkeypatch) -> None:
    module, points = importlib.import_module(script), Progress()
    points.share = 1.0
    monkeypatch.setattr(module, "Progress", lambda: points)
    tried = PlayEvents.TRIED
    monkeypatch.setattr(
        module, "attach_handlers", lambda engine, *_: engine.register_events(*PlayEvents)
    )
    monkeypatch.setattr(Engine, "run", lambda engine, data: engine.fire_event(tried))
    options = module.Options(envs=2)
    with TensorboardLogger(tmp_path) as log:
        module.train(options, Run(options, torch.device("cpu"), tmp_path, log, script))
    assert points.share == 0.7


STEPS = {"02_n_envs": 2, "04_new_wrappers_n_env": 2, "05_vector_env": 1, "06_compiled_update": 1}


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("script", STEPS)
def test_the_batch_grows_with_the_environments(script, tmp_path, monkeypatch) -> None:
    sizes = set()
    for buffer in (ReplayBuffer, DeviceReplayBuffer):

        def note(self: Any, size: int, sample: Callable[..., Any] = buffer.sample) -> Any:
            sizes.add(size)
            return sample(self, size)

        monkeypatch.setattr(buffer, "sample", note)
    steps = {"steps": STEPS[script]} if STEPS[script] > 1 else {}
    played(script, tmp_path, batch_size=5, replay_initial=190, replay_size=190, **steps)
    assert sizes == {5 * 2 * STEPS[script]}
