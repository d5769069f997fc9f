"""Another seed is another run: torch and the games take it, whatever else is random."""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BEYOND, PARALLEL, SERIAL
from ignite.engine import Engine
from ignite.handlers import TensorboardLogger

from lib.games.experience import Transition
from lib.learning.dqn_model import DQN
from lib.running.events import PlayEvents
from lib.running.options import ReplayOptions
from lib.running.run import Failure, Run, launch

FRAMES = 100  # games differ in their no-ops, so the ball is elsewhere by then
GREEDY = {"epsilon_start": 0.0, "epsilon_final": 1e-6}


class Enough(Exception):  # noqa: N818, it is no error
    """As many frames as are wanted."""


def played(script: str, seed: int, folder: Path) -> list[np.ndarray]:
    """What the first game of a rung showed to the same network, which acts greedily."""
    module = importlib.import_module(script)
    attach_handlers = module.attach_handlers
    frames: list[np.ndarray] = []

    def put(transition: Transition) -> None:
        frames.append(transition.frame)
        if len(frames) == FRAMES:
            raise Enough

    def attach(engine: Engine, *args: Any) -> None:
        attach_handlers(engine, *args)

        @engine.on(PlayEvents.FRAMES_PLAYED)
        def look(engine: Engine) -> None:
            frames.extend(frame for frame, _ in engine.state.seen)
            if len(frames) >= FRAMES:
                engine.terminate()

    noops = {"noop_max": 30} if "new_wrappers" in script else {}  # they have none of their own
    options = getattr(module, "Options", ReplayOptions)(seed=seed, **GREEDY, **noops)
    torch.manual_seed(0)
    if script in PARALLEL:
        net = DQN((options.recipe.stack, 84, 84), 6)
        with pytest.raises(Enough):
            module.play(SimpleNamespace(put=put), options, net, lambda frame: 0.0, 0)
        return frames
    with TensorboardLogger(folder) as tensorboard, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "attach_handlers", attach)
        patch.setattr(torch, "compile", lambda function, **_: function)  # it would take a minute
        module.train(options, Run(options, torch.device("cpu"), folder, tensorboard, script))
    return frames


@pytest.mark.usefixtures("console", "signals")
@pytest.mark.parametrize("script", [*SERIAL, *PARALLEL, *BEYOND[:4]])  # the learners of 10: as 08
def test_games_take_the_seed(script: str, tmp_path: Path) -> None:
    one, other = (np.stack(played(script, seed, tmp_path)) for seed in (1, 2))
    assert not np.array_equal(one, other)


@pytest.mark.usefixtures("signals")
def test_torch_takes_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []

    def train(options: ReplayOptions, run: Run) -> Any:
        drawn.append(torch.rand(()).item())
        raise Failure("enough")

    for seed in (1, 1, 2):
        monkeypatch.setattr("sys.argv", ["x", "--seed", f"{seed}", "--run-dir", str(tmp_path)])
        with pytest.raises(SystemExit):
            launch(train, ReplayOptions, "")
    assert drawn[0] == drawn[1] != drawn[2]
