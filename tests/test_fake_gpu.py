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
from fake_gpu import NAME, Everything, gpu, in_place_of_cuda
from ignite.engine import Engine, Events
from ignite.handlers import TensorboardLogger
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad_and_value

from lib import player
from lib.arguments import Hyperparams
from lib.checkpoints import find_checkpoint, read_checkpoint
from lib.compiled_update import MixedWeights, captured
from lib.device_replay import DeviceReplayBuffer
from lib.dqn_model import DQN
from lib.events import PlayEvents
from lib.experience import Transition
from lib.loss import bellman_loss
from lib.rollout import Rollout
from lib.run import Run, describe_device_error
from lib.saving import Progress

TINY = {"replay_initial": 40, "replay_size": 200, "batch_size": 2, "epsilon_start": 0.5}
NO_BUFFER = {"rollout": 10, "batch_size": 10, "epsilon_start": 0.5}
UPDATES = 12


def load(script: str, edit: Callable[[str], str] = lambda source: source) -> types.ModuleType:
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
    module: types.ModuleType, folder: Path, device: str, resumed: Any = None, **settings: Any
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
    agent = "Exploration" if script == "07_speedrun" else "EpsilonGreedyAgent"
    assert seen.waits == {f"experience.py {agent}.__call__"}  # an action is known to be played
    if script in (*SERIAL, "05_vector_env"):  # the others draw with the GPU's generator
        assert seen.losses == train(load(script), tmp_path / "cpu", "cpu").losses


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


@pytest.mark.parametrize("script", PARALLEL)
def test_a_player_on_the_cpu_needs_no_gpu(script, tmp_path):
    with in_place_of_cuda():  # the player is a process of its own, that knows of no fake
        seen = train(load(script), tmp_path, NAME, play_device="cpu", steps=2)
    assert seen.waits == set()


def test_what_cannot_be_shared_is_one_line(tmp_path):
    with in_place_of_cuda(), pytest.raises(player.Failure) as failure:
        train(load("03_parallel"), tmp_path, NAME, play_device=f"{NAME}:0")
    assert "shares no memory" in str(failure.value)
    assert str(failure.value).endswith("--play-device cpu does without")


def test_the_copy_for_the_player_follows_the_network():
    with in_place_of_cuda(), torch.no_grad():
        network = DQN((2, 84, 84), 3).to(NAME)
        mirror = player.Mirror(network)
        weights, copies = list(network.parameters()), list(mirror.network.parameters())
        for number in (1.0, 2.0, 3.0):
            for weight in weights:
                weight.fill_(number)
            weights[0][0, 0, 0, 1] = 7
            gpu.waits.clear()
            for _ in range(4):  # asked for, not there yet, there
                mirror.refresh()
                assert all(copy.isfinite().all() for copy in copies)
            assert gpu.waits == []
            for weight, copy in zip(weights, copies, strict=True):
                assert copy.stride() == weight.stride()
                assert torch.equal(weight.cpu(), copy)


def make_update(network: DQN, source: Any, gamma: Any = 0.9) -> Callable[[], torch.Tensor]:
    """The update of 06, or that of 07 if the source is a rollout."""
    net = MixedWeights(network, torch.float32, 1e-3)

    def loss_of(weights: Any, batch: Any) -> torch.Tensor:
        q = net(weights, batch.states)
        if isinstance(source, Rollout):
            return (q.gather(1, batch.actions.unsqueeze(1))[:, 0] - batch.returns).square().mean()
        return bellman_loss(q, net(weights, batch.next_states), batch, gamma)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, source.sample(4))
        net.adam(gradients)
        return loss

    return update


def filled_buffer() -> DeviceReplayBuffer:
    """With a game of noise."""
    buffer = DeviceReplayBuffer(99, (2, 84, 84), NAME)
    frames = np.random.default_rng(0).integers(256, size=(50, 1, 84, 84), dtype=np.uint8)
    firsts = [frames[0], *[None] * 49]
    game = [Transition(0, i % 3, i % 2, False, frames[i], firsts[i], None) for i in range(50)]
    buffer.extend(game)
    return buffer


def test_a_captured_update_is_the_plain_one_and_draws_anew():
    losses = []
    for captures in (True, False):
        with in_place_of_cuda():
            torch.manual_seed(0)
            update = make_update(DQN((2, 84, 84), 3).to(NAME), filled_buffer())
            if captures:
                update = captured(update)
            else:  # as warming up does, and the capture, which computes nothing on a real GPU
                for _ in range(4):
                    update()
            losses.append([update().item() for _ in range(5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(set(losses[0])) == 5


@pytest.mark.parametrize("source", ["buffer", "rollout", "buffer, and a number of the CPU"])
def test_every_node_of_a_compiled_update_is_on_the_gpu(source):
    """As the compiler sees it, after it has taken the update apart."""
    devices: dict[str, str] = {}

    def inspect(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        tensors = ((n, n.meta.get("val")) for n in module.graph.nodes)
        devices.update({n.name: v.device.type for n, v in tensors if isinstance(v, torch.Tensor)})
        return module.forward

    network = DQN((2, 84, 84), 3)
    gamma = torch.tensor(0.9) if "number" in source else 0.9
    with FakeTensorMode(allow_non_fake_inputs=True):  # no numbers, only shapes and devices
        network._apply(lambda w: torch.empty_strided(w.shape, w.stride(), device=NAME))
        shape = (2, 84, 84)
        if source == "rollout":
            update = make_update(network, Rollout(4, (8, *shape), 0.9, 0.9, NAME))
        else:
            update = make_update(network, DeviceReplayBuffer(99, shape, NAME), gamma)
        torch.compile(update, fullgraph=True, backend=aot_autograd(fw_compiler=inspect))()
    assert len(devices) > 200
    assert set(devices.values()) == ({NAME, "cpu"} if "number" in source else {NAME})


def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path):
    """The GPU's generator is kept, too: 06 samples with it."""
    with in_place_of_cuda():
        train(load("06_compiled_update"), tmp_path, NAME, checkpoint_every=UPDATES)
        kept = gpu.get_rng_state()
        torch.manual_seed(7)
        checkpoint = read_checkpoint(find_checkpoint(tmp_path, "latest"))
        engine, run = Engine(lambda *_: None), types.SimpleNamespace(device=torch.device(NAME))
        Progress(engine, run).load_state_dict(checkpoint["progress"])
        assert torch.equal(gpu.get_rng_state(), kept)


def test_a_full_gpu_is_one_line(tmp_path):
    with in_place_of_cuda():
        gpu.memory = 10**6
        with pytest.raises(torch.OutOfMemoryError) as error:
            train(load("06_compiled_update"), tmp_path, NAME)
    told = describe_device_error(error.value)
    assert told.startswith("CUDA out of memory. Tried to allocate")
    assert "--replay-size" in told
    assert "\n" not in told
    assert "try setting" not in told


MISTAKES = {
    "state left on the CPU": (
        "01_baseline",
        "target_net = copy.deepcopy(net)",
        "target_net = copy.deepcopy(net).cpu()",
        "same device",
    ),
    "an index on the wrong side": (
        "01_baseline",
        "bellman_loss(net(batch.states), next_q,",
        "bellman_loss(net(batch.states), next_q[torch.arange(len(next_q))],",
        "01_baseline.py train.<locals>.process_batch",
    ),
    "a number of the CPU in a captured update": (
        "06_compiled_update",
        "next_q, batch, hp.gamma)",
        "next_q, batch, torch.tensor(hp.gamma))",
        "stays what it is",
    ),
    "an if that asks the GPU": (
        "03_parallel",
        "        loss.backward()",
        "        if loss > 1e9:\n            raise ValueError\n        loss.backward()",
        "03_parallel.py train.<locals>.process_batch",
    ),
    "numbers fetched in the loop": (
        "03_parallel",
        "        return loss.detach()",
        "        loss.detach().cpu().numpy()\n        return loss.detach()",
        "03_parallel.py train.<locals>.process_batch",
    ),
    "a capture of pageable copies": (
        "06_compiled_update",
        "        net.adam(gradients)",
        "        loss = loss * torch.ones(1).to(run.device)\n        net.adam(gradients)",
        "in a capture",
    ),
    "pinned memory that is written while it is copied": (
        "01_baseline",
        "        optimizer.zero_grad()",
        "        pinned = torch.zeros(3).pin_memory()\n"
        "        there = pinned.to(run.device, non_blocking=True)\n"
        "        pinned.fill_(1)\n"
        "        optimizer.zero_grad()",
        "changed while it was copied",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_caught(mistake, tmp_path, monkeypatch):
    """Each of these would fail, wait or learn something else on a GPU, and does not on a CPU."""
    script, right, wrong, complaint = MISTAKES[mistake]
    monkeypatch.setattr(player.multiprocessing, "get_context", Threads)

    def plant(source: str) -> str:
        assert source.count(right) == 1
        return source.replace(right, wrong)

    settings = {"play_device": f"{NAME}:0"} if script == "03_parallel" else {}
    module = load(script, plant)
    with in_place_of_cuda():
        try:
            found = " ".join(train(module, tmp_path / "gpu", NAME, **settings).waits)
        except (RuntimeError, AssertionError) as error:
            found = str(error)
    assert complaint in found
