"""``--cuda`` without a GPU: whole rungs on a fake one, which forgives no more than a real one.

See ``fake_gpu``. It cannot test whether kernels are right, compiled code, memory that processes
share, or how long anything takes; ``test_gpu`` tests these on a real GPU.
"""

import contextlib
import importlib
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from gymnasium.vector import VectorEnv

if torch.cuda.is_available():  # torch has room for one kind of accelerator
    pytest.skip("there is a real GPU, see test_gpu", allow_module_level=True)

import pong_emulator
from benchmarks.emulator import player_on_gpu
from benchmarks.techniques import learning
from lib.devices import cores
from lib.gpu_checks import fallbacks
from lib.learning import compiled_update
from lib.learning.agents import sample_actions
from lib.learning.dqn_model import DQN
from lib.parallel.player import Player
from lib.training import evaluation
from lib.training.checkpoints import find_checkpoint, read_checkpoint
from lib.training.options import ReplayOptions
from lib.training.play import PlayEvents
from lib.training.run import Run
from lib.transfer import upload
from pong_emulator import PongVectorEnv

from conftest import BEYOND
from fake_gpu import NAME, FakeGraph, FakeStream, GpuTensor, gpu, in_place_of_cuda, no_sharing
from helpers import fail_to_open, listed, updates_of, watch
from ignite.engine import Engine, Events
from ignite.handlers import TensorboardLogger

pytestmark = pytest.mark.usefixtures("console")
TINY = {"replay_initial": 40, "replay_size": 200, "batch_size": 2, "epsilon_start": 0.5}
NO_BUFFER = {"rollout": 10, "batch_size": 10, "epsilon_start": 0.5}
FLOAT32 = {"precision": "float32"}
SMALL = {"updates": 4, "envs": 2} | FLOAT32


def train(script, folder, device, updates=12, **settings) -> tuple[list[float], set[str]]:
    """The loss of every update, and where the CPU waited between the first and the last.

    A rung draws the same random numbers on every device.
    """
    waits = set[str]()

    def begins() -> None:
        gpu.waits.clear()
        gpu.launches = 0

    def begin(engine: Engine, *_: Any) -> None:
        engine.add_event_handler(PlayEvents.TRAINING_BEGINS, begins)
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: waits.update(gpu.waits))
        torch.manual_seed(1)  # of the CPU and the GPU: networks were made before

    options = getattr(importlib.import_module(script), "Options", ReplayOptions)
    tiny = TINY if issubclass(options, ReplayOptions) else NO_BUFFER
    losses = updates_of(script, folder, updates, begin, device, **tiny | settings)
    assert np.isfinite(losses).all()
    assert len(set(losses)) > 1  # each its own tensor
    return losses, waits


def plain_losses(script: str, folder: Path, **settings: Any) -> list[float]:
    """The losses of a rung on the CPU, with nothing that is only faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_update, "compiles", lambda device: False)
        return train(script, folder / "cpu", "cpu", **settings)[0]


@pytest.mark.parametrize("script", ["01_baseline", *BEYOND[:3]])
def test_a_rung_learns_the_same_and_waits_for_its_actions_alone(script, tmp_path):
    settings = {"envs": 2} if script != "01_baseline" else {}
    settings |= {"precision": "float32"} if script[:2] in ("06", "07") else {}
    with in_place_of_cuda():
        losses, waits = train(script, tmp_path, NAME, **settings)
    assert fallbacks == []
    agent = "Exploration" if script == "07_speedrun" else "EpsilonGreedyAgent"
    assert waits == {f"agents.py {agent}.__call__"}  # an action is known to be played
    if script != "07_speedrun":  # which orders its rollouts with another generator there
        assert losses == plain_losses(script, tmp_path, **settings)


@pytest.mark.parametrize(
    ("script", "there", "here"),
    [
        *(("01_baseline", *places) for places in (("cpu", NAME), (NAME, "cpu"), (NAME, NAME))),
        ("06_compiled_update", NAME, NAME),  # graphs are captured before its weights are loaded
    ],
)
def test_a_resumed_run_may_move(script, there, here, tmp_path):
    module = importlib.import_module(script)
    more = {"envs": 1} | FLOAT32 if script == "06_compiled_update" else {}

    def train(device: str, frames: int, checkpoint: Any = None) -> dict[str, Any]:
        options = getattr(module, "Options", ReplayOptions)
        options = options(**TINY | more, device=device, max_frames=frames)
        with TensorboardLogger(tmp_path) as log:
            run = Run(options, torch.device(device), tmp_path, log, script, checkpoint)
            module.train(options, run)
        file = find_checkpoint(tmp_path, "latest")
        return read_checkpoint(file) | {"file": file}

    with in_place_of_cuda():
        kept = train(there, 60)
        kept["progress"]["events"] = {}
        assert train(here, 80, kept)["progress"]["iteration"] == 40


@torch.library.custom_op("pong::played", mutates_args=("state", "frames", "rewards", "over", "cut"))
def played(
    games: int, actions: torch.Tensor, state: torch.Tensor, frames: torch.Tensor,
    rewards: torch.Tensor, over: torch.Tensor, cut: torch.Tensor,
) -> None:  # fmt: skip
    """A step of a console; ``state`` is its memory."""
    *new, _ = Console.all[games].games.step(actions.numpy())
    for place, numbers in zip((frames, rewards, over, cut), new, strict=True):
        place.copy_(torch.from_numpy(numbers))


class Console:
    """In place of the console's kernels: its games on the CPU, whose tensors are the GPU's."""

    all: ClassVar[list["Console"]] = []

    def __init__(self, games: VectorEnv) -> None:
        self.games, self.checks = games, 0
        self.changing = GpuTensor(torch.from_numpy(games._state))
        Console.all.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.games, name)

    def reset(self, *, seed):
        frames, info = self.games.reset(seed=seed)
        return GpuTensor(torch.from_numpy(frames)), info

    def send(self, actions):
        self.games.send(actions.held.numpy())

    def recv(self):
        *arrays, info = self.games.recv()
        return (*(GpuTensor(torch.from_numpy(array)) for array in arrays), info)

    def stepper(self, actions, *outcome):
        return partial(played, Console.all.index(self), actions, self.changing, *outcome)

    def counts(self):
        return torch.full((2 + self.num_envs,), 7, dtype=torch.int32, device=NAME)

    def check(self, counts):
        assert counts.tolist() == [7] * (2 + self.num_envs)
        self.checks += 1


def pong(num_envs: int, kind: type = Console, *, device: Any = "cpu", **settings: Any) -> Any:
    settings = {"threads": 1} | settings | {"max_num_frames_per_episode": 40}
    games = PongVectorEnv(num_envs, **settings)
    return games if str(device) == "cpu" else kind(games)


def test_what_is_timed_is_a_graph_that_keeps_what_it_reads():
    args = Namespace(device=torch.device(NAME), batch_size=2)
    with in_place_of_cuda():
        step = player_on_gpu(pong(2, device=NAME, stack=1))
        before = gpu.launches
        step()
        assert gpu.launches == before + 2  # its actions, and the graph
        way = {"CUDA graph": {"gpu": True, "graph": True, "capturable": True}}
        for works in learning.compare(args, way, "forward", "update").values():
            assert works["CUDA graph"]()(1e-9) > 0


def test_thousands_of_games_are_a_launch_for_each_step(tmp_path, monkeypatch):
    module = importlib.import_module(script := "10_thousands_of_games")
    monkeypatch.setattr(module, "record_frames", recorded := Mock(wraps=module.record_frames))
    monkeypatch.setattr(pong_emulator, "PongVectorEnv", made := Mock(side_effect=pong))
    settings = {"envs": 2, "batch_size": 20, "epochs": 2, "games_per_warp": 3} | FLOAT32
    with in_place_of_cuda(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "synchronize", waited := Mock(wraps=gpu.synchronize))
        losses, waits = train(script, tmp_path, NAME, **settings)
    assert waited.call_count == 1  # before the FPS of the first rollout
    given = made.call_args.kwargs
    assert (str(given["device"]), given["threads"], given["games_per_warp"]) == (NAME, cores(), 3)
    assert fallbacks == []
    assert waits == set()
    assert gpu.launches < 6 * 35  # rollouts of 10 steps, each with two updates
    games = [game for call in recorded.call_args_list for game in call.args[2]]
    assert [game.steps for game in games] == [10] * 10  # none of the last rollout
    assert Console.all[-1].checks == 5
    assert losses == plain_losses(script, tmp_path, **settings)


@pytest.mark.parametrize("script", ["08_recompiled_pong", "10_thousands_of_games"])
def test_a_trial_plays_with_the_network_that_is_saved(script, tmp_path, monkeypatch):
    """Games are cut short before anybody has a point, and count as won."""
    monkeypatch.setattr(pong_emulator, "PongVectorEnv", pong)
    monkeypatch.setattr(evaluation, "sample_actions", sampled := Mock(wraps=sample_actions))
    monkeypatch.setattr(evaluation, "upload", uploaded := Mock(wraps=upload))
    monkeypatch.setattr(evaluation.Trial, "won", property(lambda trial: len(trial.rewards)))
    module = importlib.import_module(script)
    monkeypatch.setattr(module, "evaluate", lambda *_: None)
    params = module.Options(**NO_BUFFER, stop_reward=-1.0, envs=2, trial_games=3, **FLOAT32)
    with in_place_of_cuda(), TensorboardLogger(tmp_path) as log:
        run = Run(params.resolved(), torch.device(NAME), tmp_path, log, script)
        module.train(run.params, run)
    assert fallbacks == []
    assert run.solved
    agent, _ = evaluation.read_agent(tmp_path)
    asked = ([call.args for call in noted.call_args_list] for noted in (uploaded, sampled))
    assert sampled.call_count == 2 * 10
    for (_, states), (values, *_) in zip(*asked, strict=True):
        expected = agent(torch.from_numpy(states)).detach()
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


def test_a_player_on_the_cpu_acts_with_what_is_learned_on_the_gpu():
    with in_place_of_cuda(), torch.no_grad():
        network = DQN((2, 84, 84), 3).to(NAME)
        weights = list(network.parameters())
        with Player(watch, (network,), 2) as experience:
            for number in (3, 4):
                for factor, weight in enumerate(weights):
                    weight.copy_((torch.arange(weight.numel()) * factor + number).view_as(weight))
                wanted = [[factor * n + number for n in range(3)] for factor in range(len(weights))]
                seen = (step.actions for taken in experience for step in taken)
                assert wanted in islice(seen, 200)


def test_the_fake_refuses_what_a_gpu_does():
    here, number = torch.ones(2), torch.tensor(2.0)
    with in_place_of_cuda():
        there = here.to(NAME)
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with (graph := FakeGraph()).capture():
            twice = there * 2
        graph.replay()
        del there
        with pytest.raises(RuntimeError, match="memory that was freed; captured in a test"):
            graph.replay()
        assert twice.cpu().tolist() == [2, 2]
        del graph
        assert twice.cpu().tolist() != [2, 2]
        side = torch.cuda.stream(torch.cuda.Stream())
        with pytest.raises(RuntimeError, match="another one may still write"), side:
            twice + twice
        with pytest.raises(RuntimeError, match="previous error"), FakeGraph().capture():
            twice * number


def test_what_fails_before_its_capture_leaves_a_stream_that_has_waited():
    def fails() -> None:
        numbers.mul_(2)
        raise RuntimeError("in the first call")

    with in_place_of_cuda():
        numbers = torch.ones(3, device=NAME)
        for _ in range(2):  # and is told once
            assert compiled_update.graph_or_eager("nothing", fails, numbers.device) is fails
        assert (numbers + 1).cpu().tolist() == [5, 5, 5]
    assert fallbacks == ["the CUDA graph of nothing: in the first call"]


# What does not work on a GPU is left out: failures that are planted in the fake one.
REFUSED = "CUDA error: operation not permitted"
CHOICE = f"the CUDA graph that chooses actions: {REFUSED}"
UPDATE = f"the CUDA graph of the update: {REFUSED}"
STEP = "the CUDA graph of a step: aten._local_scalar_dense.default: the CPU cannot wait"
PIXELS = "games on the GPU: pixels are not those of the CPU"


@contextlib.contextmanager
def capture_that_raises(*_: Any, **__: Any) -> Iterator[None]:
    """Torch stays on the stream of a capture that ended in an error."""
    torch.cuda.set_stream(FakeStream())
    try:
        raise RuntimeError(f"{REFUSED}\nCUDA kernel errors might")
    finally:
        raise RuntimeError("CUDA error: operation failed due to a previous error")
    yield


def assert_said(expected: list[str], printed: str, folder: Path) -> None:
    """One line for each thing left out, no traceback, and the same in the run's records."""
    lines = [line for line in printed.splitlines() if line.startswith("left out: ")]
    assert len(lines) == len(expected), printed
    assert all(said in line for line, said in zip(lines, expected, strict=True)), lines
    assert "Traceback" not in printed
    assert listed(folder)["left_out"] == "; ".join(fallbacks)
    assert lines == [f"left out: {reason}" for reason in fallbacks]


class OneWrongPixel(Console):
    """Once, in the corner."""

    steps = 0

    def recv(self):
        frames, *rest = super().recv()
        self.steps += 1
        frames.held[2, 0, 83, 83] += self.steps == 47
        return (frames, *rest)


class NoGraph(Console):
    """Its steps wait for the GPU, which cannot be captured."""

    def stepper(self, *tensors):
        step = super().stepper(*tensors)
        return lambda: (self.changing.sum().item(), step())


@pytest.mark.parametrize(
    ("script", "place", "fault", "expected"),
    [
        ("06_compiled_update", torch.cuda, capture_that_raises, [CHOICE, UPDATE]),
        ("10_thousands_of_games", pong_emulator, partial(pong, kind=OneWrongPixel), [PIXELS]),
        ("10_thousands_of_games", pong_emulator, partial(pong, kind=NoGraph), [STEP]),
    ],
)
def test_what_fails_is_left_out(script, place, fault, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pong_emulator, "PongVectorEnv", pong)
    with in_place_of_cuda(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "graph" if place is torch.cuda else "PongVectorEnv", fault)
        stream = torch.cuda.current_stream()
        losses, _ = train(script, tmp_path, NAME, **SMALL)
        assert torch.cuda.current_stream() is stream
    assert_said(expected, capsys.readouterr().out, tmp_path)
    assert losses == plain_losses(script, tmp_path / "other", **SMALL)


@pytest.mark.parametrize(
    ("refuse", "message"),
    [
        (no_sharing, "CUDA error: this GPU shares no memory with another process"),
        (lambda _: (fail_to_open, ()), "the player failed: RuntimeError: CUDA error: invalid res"),
    ],
)
def test_a_player_that_cannot_share_acts_on_the_cpu(refuse, message, tmp_path, capfd, request):
    request.addfinalizer(partial(ForkingPickler.register, GpuTensor, no_sharing))
    ForkingPickler.register(GpuTensor, refuse)
    with in_place_of_cuda():
        there = {"play_device": f"{NAME}:0", "steps": 2, "updates": 4}
        _, waits = train("03_parallel", tmp_path, NAME, **there)
    assert waits == set()  # neither for updates, nor for the copy that the player acts with
    out, err = capfd.readouterr()
    assert_said([f"acting on the GPU (the player uses the CPU): {message}"], out + err, tmp_path)
