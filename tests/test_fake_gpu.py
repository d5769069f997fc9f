"""``--cuda`` without a GPU: whole rungs on a fake one, which forgives no more than a real one.

See ``fake_gpu``. What cannot be seen here: that the kernels are right, the compiled code, the
memory shared with another process, and how long anything takes. ``test_gpu`` looks at those, where
there is a GPU.
"""

import contextlib
import importlib.util
import re
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

if torch.cuda.is_available():  # torch has room for one kind of accelerator
    pytest.skip("there is a real GPU, see test_gpu", allow_module_level=True)

from conftest import ROOT
from fake_gpu import (
    NAME,
    FakeGraph,
    FakeStream,
    GpuTensor,
    _no_sharing,
    aten,
    gpu,
    in_place_of_cuda,
)
from ignite.engine import Engine, Events
from ignite.handlers import TensorboardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_player import fail_to_open, watch

import emulator
from lib.gpu_checks import left_out
from lib.learning import compiled_update
from lib.learning.compiled_update import CompiledUpdate
from lib.learning.dqn_model import DQN
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


class Seen(NamedTuple):
    """Of a run: the loss of every update, and where the CPU waited between the first and last."""

    losses: list[float]
    waits: set[str]


def train(
    module: types.ModuleType, folder: Path, device: str, updates: int = UPDATES, **settings: Any
) -> Seen:
    """Let a rung make some updates. It draws the same random numbers on every device."""
    waits: set[str] = set()
    outputs: list[torch.Tensor] = []
    attach_handlers = module.attach_handlers

    def attach(engine: Engine, *args: Any) -> None:
        attach_handlers(engine, *args)
        engine.add_event_handler(PlayEvents.TRAINING_BEGINS, lambda: gpu.waits.clear())
        torch.manual_seed(1)  # of the CPU and the GPU: networks were made before

        @engine.on(Events.ITERATION_COMPLETED)
        def completed() -> None:
            waits.update(gpu.waits)
            outputs.append(engine.state.output)
            if len(outputs) == updates:
                engine.terminate()

    options_class = getattr(module, "Options", ReplayOptions)
    tiny = TINY if issubclass(options_class, ReplayOptions) else NO_BUFFER
    options = options_class(**tiny | settings)
    torch.manual_seed(options.seed)
    with TensorboardLogger(folder) as tensorboard, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "attach_handlers", attach)
        run = Run(options, torch.device(device), folder, tensorboard, module.__name__)
        run.settings = {"script": module.__name__}
        module.train(options, run)
    losses = [loss.item() for loss in outputs]
    assert len(losses) == updates
    assert np.isfinite(losses).all()
    assert len(set(losses)) > 1  # each its own tensor
    return Seen(losses, waits)


@cache
def plain_losses(script: str, folder: Path, **settings: Any) -> list[float]:
    """The losses of a rung on the CPU, with nothing that is only faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_update, "compiles", lambda device: False)
        return train(load(script), folder, "cpu", **settings).losses


@pytest.mark.parametrize(
    "script", ["01_baseline", "05_vector_env", "06_compiled_update", "07_speedrun"]
)
def test_a_rung_learns_the_same_and_waits_for_its_actions_alone(script, tmp_path):
    settings = {"precision": "float32"} if script[:2] in ("06", "07") else {}
    with in_place_of_cuda():
        seen = train(load(script), tmp_path / "gpu", NAME, **settings)
    assert left_out == []
    agent = "Exploration" if hasattr(sys.modules[script], "Exploration") else "EpsilonGreedyAgent"
    assert seen.waits == {f"agents.py {agent}.__call__"}  # an action is known to be played
    expected = plain_losses(script, tmp_path / "cpu", **settings)
    # 07 orders its rollouts with another generator there.
    assert seen.losses == expected or script == "07_speedrun"


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


def test_the_copy_for_a_player_follows_the_network():
    with in_place_of_cuda(), torch.no_grad():
        network = DQN((2, 84, 84), 3).to(NAME)
        followed = player.CopyOnCpu(network)
        weights, copies = list(network.parameters()), list(followed.network.parameters())
        for number in (1.0, 2.0):
            for weight in weights:
                weight.fill_(number)
            weights[0][0, 0, 0, 1] = 7
            gpu.waits.clear()
            for _ in range(2):  # asked for, there
                followed.refresh()
            assert gpu.waits == []
            for weight, there in zip(weights, copies, strict=True):
                assert torch.equal(weight.cpu(), there)
        assert all(there.is_shared() for there in copies)


def test_a_player_on_the_cpu_acts_with_what_is_learned_on_the_gpu():
    with in_place_of_cuda(), torch.no_grad():
        network = DQN((2, 84, 84), 3).to(NAME)
        with player.Player(watch, (network,), 2) as experience:
            for value in (3, 4):
                next(network.parameters()).fill_(value)
                seen = (step.action for taken in experience for step in taken)
                assert value in islice(seen, 200)


MISTAKES = {
    "state left on the CPU": (
        "target_net = copy.deepcopy(network)",
        "target_net = copy.deepcopy(network).cpu()",
        "same device",
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
    "numbers fetched in the loop": (
        "        return loss\n\n    learn",
        "        loss.cpu().numpy()\n        return loss\n\n    learn",
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


# What does not work on a GPU is left out: each kind of failure, planted in the fake one.


@contextlib.contextmanager
def capture_that_raises(*_: Any) -> Iterator[None]:
    raise RuntimeError("CUDA error: operation not permitted\nCUDA kernel errors might")
    yield


replay = FakeGraph.replay


def half_of_it(graph: FakeGraph) -> None:
    """A replay whose matrix products are half of what they should be."""
    replay(graph)
    for func, _, _, result in graph.operations:
        if func in (aten.addmm.default, aten.mse_loss.default):
            result.mul_(0.5)


def with_the_same_numbers(graph: FakeGraph) -> None:
    """A replay that draws what was drawn before."""
    random = gpu.random.get_state()
    replay(graph)
    gpu.random.set_state(random)


def fails_to_compile(update: Callable[[], Any], **_: Any) -> Callable[[], Any]:
    def call() -> Any:
        raise AssertionError("Triton knows nothing of sm_123")

    return call


def learns_nothing(update: Callable[[], Any], **_: Any) -> Callable[[], Any]:
    """The weights stay, though the loss and the gradients are right."""
    net = next(c.cell_contents for c in update.__closure__ if hasattr(c.cell_contents, "compute"))

    def call() -> Any:
        before = [weight.detach().clone() for weight in net.weights.values()]
        loss = update()
        with torch.no_grad():
            for weight, kept in zip(net.weights.values(), before, strict=True):
                weight.copy_(kept)
        return loss

    return call


CHOICE, UPDATE = "the CUDA graph that chooses actions: ", "the CUDA graph of the update: "
COMPILED = r"the compiled update \(compiling needs Triton, or triton-windows\): "
FAILURES: dict[str, tuple[Any, str, Any, list[str]]] = {  # and the lines that tell them
    "a capture that raises": (
        torch.cuda,
        "graph",
        capture_that_raises,
        [f"{part}CUDA error: operation not permitted" for part in (CHOICE, UPDATE)],
    ),
    "a capture of something else": (
        FakeGraph,
        "replay",
        half_of_it,
        [rf"{CHOICE}its values differ by 0\.5 \(0\.062 may differ\)", f"{UPDATE}its losses differ"],
    ),
    "replays that draw the same rows": (
        FakeGraph,
        "replay",
        with_the_same_numbers,
        [f"{UPDATE}its draws of rows differ by 0.75"],
    ),
    "a compiler that fails": (
        torch,
        "compile",
        fails_to_compile,
        [f"{COMPILED}AssertionError: Triton knows nothing of sm_123"],
    ),
    "a compiled update that learns something else": (
        torch,
        "compile",
        learns_nothing,
        [f"{COMPILED}its steps differ by 1 "],
    ),
}
SMALL = {"updates": 4, "envs": 2, "precision": "float32"}


def assert_said(expected: list[str], printed: str, folder: Path) -> None:
    """One line for each thing left out, no traceback, and the same in the run's records."""
    lines = [line for line in printed.splitlines() if line.startswith("left out: ")]
    assert len(lines) == len(expected), printed
    for line, said in zip(lines, expected, strict=True):
        assert re.match(f"left out: {said}", line), line
    assert "Traceback" not in printed
    events = EventAccumulator(str(folder)).Reload()
    told = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert all(line.removeprefix("left out: ").encode() in told for line in lines)


@pytest.mark.parametrize("failure", FAILURES)
def test_an_update_goes_on_without_what_fails(failure, tmp_path, tmp_path_factory, capsys):
    *planted, expected = FAILURES[failure]
    with in_place_of_cuda(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(*planted)
        losses = train(load("06_compiled_update"), tmp_path, NAME, **SMALL).losses
    assert_said(expected, capsys.readouterr().out, tmp_path)
    assert losses == plain_losses("06_compiled_update", tmp_path_factory.getbasetemp(), **SMALL)


class OneWrongPixel(PongOnGpu):
    """Once, in the corner."""

    def recv(self):
        frames, *rest = super().recv()
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 7:
            frames.held[2, 0, 83, 83] += 1
        return (frames, *rest)


class NothingCompiled(PongOnGpu):
    """Numba finds no compiler."""

    def send(self, actions):
        raise ImportError("no libnvvm.so\nis it installed?")


@pytest.mark.parametrize(
    ("games", "told"),
    [(OneWrongPixel, "its pixels differ by"), (NothingCompiled, "ImportError: no libnvvm.so$")],
)
@pytest.mark.usefixtures("console")
def test_games_that_are_not_the_cpus_are_played_there(
    games, told, tmp_path, tmp_path_factory, monkeypatch, capsys
):
    monkeypatch.setattr(emulator, "PongVectorEnv", games)
    settings = SMALL | {"rollout": 10, "batch_size": 10}
    with in_place_of_cuda():
        losses = train(load("08_recompiled_pong"), tmp_path, NAME, **settings).losses
    assert_said([f"games on the GPU: {told}"], capsys.readouterr().out, tmp_path)
    assert losses == plain_losses("08_recompiled_pong", tmp_path_factory.getbasetemp(), **settings)


@pytest.mark.parametrize(
    ("refuse", "told"),
    [
        (_no_sharing, "CUDA error: this GPU shares no memory with another process"),
        (lambda _: (fail_to_open, ()), "the player failed: RuntimeError: CUDA error: invalid res"),
    ],
)
def test_a_player_that_cannot_share_acts_on_the_cpu(refuse, told, tmp_path, capfd):
    ForkingPickler.register(GpuTensor, refuse)
    try:
        with in_place_of_cuda():
            there = {"play_device": f"{NAME}:0", "steps": 2, "updates": 4}
            seen = train(load("03_parallel"), tmp_path, NAME, **there)
    finally:
        ForkingPickler.register(GpuTensor, _no_sharing)
    assert seen.waits == set()  # neither for updates, nor for the copy that the player acts with
    out, err = capfd.readouterr()
    assert_said([f"the player on the GPU, it acts on the CPU: {told}"], out + err, tmp_path)


def test_what_broke_a_capture_is_told_and_its_stream_is_left():
    streams: list[Any] = []

    @contextlib.contextmanager
    def broken_at_its_end(graph: FakeGraph) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error")

    def waits() -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    with in_place_of_cuda(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "graph", broken_at_its_end)
        before = FakeStream()
        patch.setattr(torch.cuda, "current_stream", lambda: before)
        patch.setattr(torch.cuda, "set_stream", streams.append)
        calls = iter([int, int, int, waits])  # three to warm up, and the capture
        with pytest.raises(RuntimeError, match="not permitted"):
            compiled_update.captured(lambda: next(calls)())
    assert streams == [before]


def test_compiling_changes_nothing_that_is_learned(tmp_path, monkeypatch):
    """Neither the random state nor a number that an update changes."""
    module, nets, kept = load("06_compiled_update"), [], []
    compile_update, make_weights = CompiledUpdate.compile, module.MixedWeights

    def keep() -> None:
        tensors = [*nets[0].changing, torch.get_rng_state(), gpu.get_rng_state()]
        kept.append([tensor.detach().cpu().clone() for tensor in tensors])

    def compared(learn: CompiledUpdate) -> None:
        keep()
        compile_update(learn)
        keep()

    monkeypatch.setattr(CompiledUpdate, "compile", compared)
    module.MixedWeights = lambda *args: nets.append(make_weights(*args)) or nets[0]
    with in_place_of_cuda():
        train(module, tmp_path, NAME, **SMALL)
    assert gpu.graph is None
    assert all(torch.equal(one, other) for one, other in zip(*kept, strict=True))
