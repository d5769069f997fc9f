"""``--cuda`` without a GPU: whole rungs on a fake one, which forgives no more than a real one.

See ``fake_gpu``. What cannot be seen here: that the kernels are right, the compiled code, the
memory shared with another process, and how long anything takes. ``test_gpu`` looks at those, where
there is a GPU.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import sys
import threading
import types
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

if torch.cuda.is_available():  # torch has room for one kind of accelerator
    pytest.skip("there is a real GPU, see test_gpu", allow_module_level=True)

from conftest import BEYOND, PARALLEL, ROOT, SERIAL
from fake_gpu import NAME, Everything, GpuTensor, gpu, in_place_of_cuda
from ignite.engine import Engine, Events
from ignite.handlers import TensorboardLogger

import emulator
from lib.gpu_checks import left_out
from lib.players import player
from lib.running.events import PlayEvents
from lib.running.options import ReplayOptions
from lib.running.run import Run

TINY = {"replay_initial": 40, "replay_size": 200, "batch_size": 2, "epsilon_start": 0.5}
NO_BUFFER = {"rollout": 10, "batch_size": 10, "epsilon_start": 0.5}
UPDATES = 12


def load(script: str, edit: Callable[[str], str] = lambda source: source) -> types.ModuleType:
    """A rung, its source edited."""
    path = ROOT / f"{script}.py"
    script = path.stem
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
    module: types.ModuleType,
    folder: Path,
    device: str,
    resumed: Any = None,
    updates: int = UPDATES,
    **settings: Any,
) -> Seen:
    """Let a rung make some updates. It draws the same random numbers on every device."""
    seen, losses = Seen(), []
    attach_handlers = module.attach_handlers

    def attach(engine: Engine, *args: Any) -> None:
        attach_handlers(engine, *args)
        engine.add_event_handler(PlayEvents.TRAINING_BEGINS, lambda: gpu.waits.clear())
        torch.manual_seed(1)  # of the CPU and the GPU: networks were made before

        @engine.on(Events.ITERATION_COMPLETED)
        def completed() -> None:
            seen.waits.update(gpu.waits)
            losses.append(engine.state.output)
            if len(losses) == updates:
                engine.terminate()

    options_class = getattr(module, "Options", ReplayOptions)
    tiny = TINY if issubclass(options_class, ReplayOptions) else NO_BUFFER
    options = options_class(**tiny | settings)
    torch.manual_seed(options.seed)
    with TensorboardLogger(folder) as tensorboard, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "attach_handlers", attach)
        run = Run(options, torch.device(device), folder, tensorboard, module.__name__, resumed)
        run.settings = {"script": module.__name__}
        module.train(options, run)
    seen.losses = [loss.item() for loss in losses]
    assert len(seen.losses) == updates
    assert np.isfinite(seen.losses).all()
    return seen


@pytest.mark.parametrize("script", [*SERIAL, *BEYOND[:3]])  # 08: see below
def test_a_rung_waits_for_its_actions_alone(script, tmp_path):
    with in_place_of_cuda():
        seen = train(load(script), tmp_path / "gpu", NAME)
    assert left_out == []
    assert gpu.kernels > 100 * UPDATES
    agent = "Exploration" if hasattr(sys.modules[script], "Exploration") else "EpsilonGreedyAgent"
    assert seen.waits == {f"agents.py {agent}.__call__"}  # an action is known to be played
    if script in (*SERIAL, "05_vector_env"):  # the others draw with the GPU's generator
        assert seen.losses == train(load(script), tmp_path / "cpu", "cpu").losses


Console = emulator.PongVectorEnv


class PongOnGpu:
    """In place of the console's kernels: its games on the CPU, whose tensors are the GPU's."""

    def __new__(cls, num_envs, *, device="cpu", **settings):
        short = {"max_num_frames_per_episode": 40}
        games = Console(num_envs, **{"threads": 1} | settings | short)
        if str(device) == "cpu":
            return games
        assert device.type == NAME
        there = super().__new__(cls)
        there.games, there.single_action_space = games, games.single_action_space
        return there

    @property
    def ram(self):
        return self.games.ram

    def reset(self, *, seed):
        return self._there(self.games.reset(seed=seed))

    def send(self, actions):
        self.games.send(actions.held.numpy())

    def recv(self):
        return self._there(self.games.recv())

    def _there(self, results):
        *arrays, info = results
        return (*(GpuTensor(torch.from_numpy(array)) for array in arrays), info)


@pytest.mark.usefixtures("console")
def test_where_games_are_played_on_the_gpu_nothing_is_waited_for(tmp_path, monkeypatch):
    module = load("08_recompiled_pong")
    announce, games = module.announce, []
    module.announce = lambda *args: games.extend(args[2]) or announce(*args)
    monkeypatch.setattr(emulator, "PongVectorEnv", PongOnGpu)
    with in_place_of_cuda():
        seen = train(module, tmp_path, NAME, envs=2, batch_size=20, epochs=2)
    assert left_out == []
    assert seen.waits == set()
    assert [game.steps for game in games] == [10] * 6  # of the first of two reports of 32 steps


class Threads:
    """In place of multiprocessing: a player that shares the GPU's memory, as CUDA IPC would."""

    Pipe = staticmethod(multiprocessing.Pipe)

    class Process(threading.Thread):
        exitcode = 0

        def __init__(self, target: Any, args: tuple, name: str, daemon: bool) -> None:
            super().__init__(name=name, daemon=daemon)
            pipe, self.bound, _, self.play, self.packed, self.shares_gpu = args
            self.pipe = Connection(os.dup(pipe.fileno()))  # the trainer closes its own

        def run(self) -> None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError), Everything():
                queue = player.ExperienceQueue(self.pipe, self.bound)
                self.play(queue, *self.packed._args)
            self.pipe.close()

    def __init__(self, how: str) -> None:
        assert how == "spawn"


@pytest.mark.parametrize("script", PARALLEL)
def test_a_trainer_never_waits_for_its_gpu(script, tmp_path, monkeypatch):
    monkeypatch.setattr(player.multiprocessing, "get_context", Threads)
    settings = {"play_device": f"{NAME}:0", "sync_frames": 2, "steps": 2}
    with in_place_of_cuda():
        seen = train(load(script), tmp_path, NAME, **settings)
    assert seen.waits == set()


def test_a_player_on_the_cpu_needs_no_gpu(tmp_path):
    with in_place_of_cuda():  # the player is a process of its own, that knows of no fake
        seen = train(load("03_parallel"), tmp_path, NAME, play_device="cpu", steps=2)
    assert seen.waits == set()


MISTAKES = {
    "state left on the CPU": (
        "target_net = copy.deepcopy(network)",
        "target_net = copy.deepcopy(network).cpu()",
        "same device",
    ),
    "an index on the wrong side": (
        "loss = learn()",
        "loss = learn().expand(2)[torch.arange(1)].mean()",
        "small_rung.py train.<locals>.process_batch",
    ),
    "an index on the wrong side, in a capture": (
        "return net(net.compute, states)",
        "return net(net.compute, states)[torch.arange(len(states))]",
        "the CUDA graph that chooses actions: ",
    ),
    "a number of the CPU in a captured update": (
        "next_q, batch, hp.gamma)",
        "next_q, batch, torch.tensor(hp.gamma))",
        "stays what it is",
    ),
    "an if that asks the GPU": (
        "        return loss\n\n    engine",
        "        if loss > 1e9:\n            raise ValueError\n        return loss\n\n    engine",
        "small_rung.py train.<locals>.process_batch",
    ),
    "numbers fetched in the loop": (
        "        return loss\n\n    engine",
        "        loss.cpu().numpy()\n        return loss\n\n    engine",
        "small_rung.py train.<locals>.process_batch",
    ),
    "a capture of pageable copies": (
        "        net.adam(gradients)",
        "        loss = loss * torch.ones(1).to(run.device)\n        net.adam(gradients)",
        "in a capture",
    ),
    "pinned memory that is written while it is copied": (
        "        loss = learn()",
        "        pinned = torch.zeros(3).pin_memory()\n"
        "        there = pinned.to(run.device, non_blocking=True)\n"
        "        pinned.fill_(1)\n"
        "        loss = learn()",
        "changed while it was copied",
    ),
}


@pytest.mark.parametrize("mistake", [None, *MISTAKES])
def test_planted_mistakes_are_caught(mistake, tmp_path):
    """Each of these would fail, wait or learn something else on a GPU, and does not on a CPU."""
    right, wrong, complaint = MISTAKES.get(mistake, ("", "", ""))

    def plant(source: str) -> str:
        assert mistake is None or source.count(right) == 1
        return source.replace(right, wrong)

    module = load("tests/small_rung", plant)
    with in_place_of_cuda():
        try:
            waits = train(module, tmp_path, NAME, updates=3).waits
            found = " ".join([*waits, *left_out])
        except (RuntimeError, AssertionError) as error:
            found = str(error)
    if mistake is None:
        assert found == "agents.py EpsilonGreedyAgent.__call__"
    assert complaint in found
