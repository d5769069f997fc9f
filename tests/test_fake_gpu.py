"""``--cuda`` without a GPU: whole rungs on a fake one, which forgives no more than a real one.

See ``fake_gpu``. What cannot be seen here: that the kernels are right, the compiled code, the
memory shared with another process, and how long anything takes. ``test_gpu`` looks at those, where
there is a GPU.
"""

import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BEYOND, PARALLEL, ROOT, SERIAL
from fake_gpu import NAME, gpu, in_place_of_cuda
from ignite.engine import Engine, Events
from ignite.handlers import TensorboardLogger

from lib import player, transfer
from lib.arguments import Hyperparams
from lib.checkpoints import find_checkpoint, read_checkpoint
from lib.events import PlayEvents
from lib.run import Run

TINY = {"replay_initial": 40, "replay_size": 200, "batch_size": 2, "epsilon_start": 0.5}
NO_BUFFER = {"rollout": 10, "batch_size": 10, "epsilon_start": 0.5}
UPDATES = 12
SAMPLED = {"experience.py EpsilonGreedyAgent.__call__"}  # an action has to be known to be played


def load(script: str, edit: Callable[[str], str] = lambda source: source) -> ModuleType:
    """A rung, its source edited."""
    path = ROOT / f"{script}.py"
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(script, path))
    sys.modules[script] = module  # where its player process, and dataclasses, look it up
    exec(compile(edit(path.read_text()), str(path), "exec"), module.__dict__)
    return module


class Seen:
    """Of a run: the loss of every update, and where the CPU waited between the first and last."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.waits: set[str] = set()


def train(
    module: ModuleType, folder: Path, device: str, resumed: Any = None, **settings: Any
) -> Seen:
    """Let a rung make some updates."""
    seen, losses = Seen(), []
    attach_handlers = module.attach_handlers

    def attach(engine: Engine, *args: Any) -> None:
        attach_handlers(engine, *args)
        engine.add_event_handler(PlayEvents.TRAINING_BEGINS, lambda: gpu.waits.clear())

        @engine.on(Events.ITERATION_COMPLETED)
        def completed() -> None:
            seen.waits.update(gpu.waits)
            losses.append(engine.state.output)
            if len(losses) == UPDATES:
                engine.terminate()

    options = getattr(module, "Options", Hyperparams)
    tiny = NO_BUFFER if module.__name__ == "07_speedrun" else TINY
    hyperparams = options(**tiny | settings)
    torch.manual_seed(hyperparams.seed)
    with TensorboardLogger(folder) as tensorboard, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "attach_handlers", attach)
        run = Run(hyperparams, torch.device(device), folder, tensorboard, module.__name__, resumed)
        module.train(hyperparams, run)
    seen.losses = [loss.item() for loss in losses]
    assert len(seen.losses) == UPDATES
    assert np.isfinite(seen.losses).all()
    return seen


@pytest.mark.parametrize("script", [*SERIAL, *BEYOND])
def test_a_rung_waits_for_its_actions_alone(script, tmp_path):
    with in_place_of_cuda():
        seen = train(load(script), tmp_path / "gpu", NAME)
    assert gpu.kernels > 100 * UPDATES
    assert seen.waits == ({"07_speedrun.py train.<locals>.play"} if "07" in script else SAMPLED)
    if script in (*SERIAL, "05_vector_env"):  # the others draw with the GPU's generator
        assert seen.losses == train(load(script), tmp_path / "cpu", "cpu").losses
