"""What does not work on a GPU is left out: each kind of failure, planted in the fake one.

A run goes on, says in one line what it leaves out and why, and learns what it learns on the CPU.
What each said is in ``SAID``, which the runs are compared with.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from test_fake_gpu import PongOnGpu, load, train
from test_fake_gpu_parts import filled_buffer
from test_player import fail_to_open
from torch.func import grad_and_value

import emulator
from lib import devices
from lib.learning import compiled_update
from lib.learning.compiled_update import CapturedForward, CompiledUpdate, MixedWeights
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss

SAID = {
    "a capture that raises": [
        "the CUDA graph that chooses actions: CUDA error: operation not permitted when stream is "
        "capturing",
        "the CUDA graph of the update: CUDA error: operation not permitted when stream is "
        "capturing",
    ],
    "a capture of something else": [
        "the CUDA graph that chooses actions: its values differ by 50% (6% may differ)",
        r"the CUDA graph of the update: its losses are [\d., e-]+, without it [\d., e-]+ "
        r"\(6% may differ\)",
    ],
    "replays that draw the same rows": [
        "the CUDA graph of the update: it draws the same rows again"
    ],
    "a compiler that is missing": [
        "the compiled update: Triton is not installed: pip install triton (on Windows: "
        "triton-windows)"
    ],
    "a compiler that fails": [
        "the compiled update: AssertionError: Triton knows nothing of sm_123"
    ],
    "a compiled update that learns something else": [
        "the compiled update: its steps differ by 100% (6% may differ)"
    ],
    "a compute capability of 6.1": [
        "the compiled update: Triton compiles for compute capability 7.0 and above, and this GPU "
        "has 6.1"
    ],
    "bfloat16 that overflows": [
        "bfloat16, float32 is used: its gradients differ by nan% from those in float32 (50% may "
        "differ)"
    ],
    "bfloat16 that raises": ["bfloat16, float32 is used: CUBLAS_STATUS_NOT_SUPPORTED"],
    "a wrong pixel": [
        "games on the GPU, they are played on the CPU: after 7 steps its pixels are not "
        "the CPU's in 1 places"
    ],
    "a compiler for games that fails": [
        "games on the GPU, they are played on the CPU: NvvmSupportError: no libnvvm.so"
    ],
    "memory that is not sent": [
        "the player on the GPU, it acts on the CPU: CUDA error: this GPU shares no memory with "
        "another process"
    ],
    "memory that cannot be opened": [
        "the player on the GPU, it acts on the CPU: RuntimeError: CUDA error: invalid resource "
        r"handle (test_player.py, line \d+)"
    ],
}


class NvvmSupportError(Exception):
    pass


@contextlib.contextmanager
def capture_that_raises(*_: Any) -> Iterator[None]:
    raise RuntimeError(
        "CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors might"
    )
    yield


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


replay = FakeGraph.replay


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


def without_bfloat16(reason: str) -> Callable[..., Any]:
    """Computes as the fake GPU does, but a product in bfloat16 is infinite, or raises."""
    run = type(gpu).run

    def compute(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(self, func, *args, **kwargs)
        if func is aten.addmm.default and result.dtype is torch.bfloat16:
            if reason:
                raise RuntimeError(reason)
            result.fill_(torch.inf)
        return result

    return compute


def plant(failure: str, patch: pytest.MonkeyPatch) -> None:
    """Let the fake GPU, or what compiles for it, fail in this way."""
    torch_plants: dict[str, tuple[Any, str, Any]] = {
        "a capture that raises": (torch.cuda, "graph", capture_that_raises),
        "a capture of something else": (FakeGraph, "replay", half_of_it),
        "replays that draw the same rows": (FakeGraph, "replay", with_the_same_numbers),
        "a compiler that is missing": (devices, "find_spec", lambda name: None),
        "a compiler that fails": (torch, "compile", fails_to_compile),
        "a compiled update that learns something else": (torch, "compile", learns_nothing),
        "a compute capability of 6.1": (torch.cuda, "get_device_capability", lambda _: (6, 1)),
        "bfloat16 that overflows": (type(gpu), "run", without_bfloat16("")),
        "bfloat16 that raises": (type(gpu), "run", without_bfloat16("CUBLAS_STATUS_NOT_SUPPORTED")),
    }
    patch.setattr(*torch_plants[failure])


def assert_said(failure: str, printed: str, folder: Path | None = None) -> None:
    """One line for each thing left out, no traceback, and the same in the run's records."""
    lines = [line for line in printed.splitlines() if line.startswith("left out: ")]
    assert len(lines) == len(SAID[failure]), printed
    for line, said in zip(lines, SAID[failure], strict=True):
        plain = line.removeprefix("left out: ")
        assert plain == said or re.fullmatch(re.sub(r"\(t(.*)\)$", r"\\(t\1\\)", said), plain)
    assert "Traceback" not in printed
    if folder:
        events = EventAccumulator(str(folder)).Reload()
        content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        told = HParamsPluginData.FromString(content).session_start_info.hparams["left_out"]
        assert told.string_value == "; ".join(line.removeprefix("left out: ") for line in lines)


SMALL = {"updates": 4, "envs": 2, "precision": "float32"}


@cache
def losses_on_the_cpu(script: str, folder: Path, **settings: Any) -> list[float]:
    """The losses of a rung on the CPU, whose update is as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_update, "compiles", lambda device: False)
        return train(load(script), folder, "cpu", **settings).losses


@pytest.mark.parametrize("failure", list(SAID)[:9])
def test_an_update_goes_on_without_what_fails(failure, tmp_path, tmp_path_factory, capsys):
    settings = SMALL | {"precision": "bfloat16"} if failure.startswith("bfloat16") else SMALL
    with in_place_of_cuda(), pytest.MonkeyPatch.context() as patch:
        plant(failure, patch)
        losses = train(load("06_compiled_update"), tmp_path, NAME, **settings).losses
    captured = capsys.readouterr()
    assert_said(failure, captured.out + captured.err, tmp_path)
    cpu = losses_on_the_cpu("06_compiled_update", tmp_path_factory.getbasetemp(), **SMALL)
    assert losses == cpu


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
        raise NvvmSupportError("no libnvvm.so\nis it installed?")


@pytest.mark.parametrize(
    ("failure", "games"),
    [("a wrong pixel", OneWrongPixel), ("a compiler for games that fails", NothingCompiled)],
)
@pytest.mark.usefixtures("console")
def test_games_that_are_not_the_cpus_are_played_there(
    failure, games, tmp_path, tmp_path_factory, monkeypatch, capsys
):
    monkeypatch.setattr(emulator, "PongVectorEnv", games)
    settings = SMALL | {"rollout": 10, "batch_size": 10}
    with in_place_of_cuda():
        losses = train(load("08_recompiled_pong"), tmp_path, NAME, **settings).losses
    captured = capsys.readouterr()
    assert_said(failure, captured.out + captured.err, tmp_path)
    cpu = losses_on_the_cpu("08_recompiled_pong", tmp_path_factory.getbasetemp(), **settings)
    assert losses == cpu


@pytest.mark.parametrize("failure", ["memory that is not sent", "memory that cannot be opened"])
def test_a_player_that_cannot_share_acts_on_the_cpu(failure, tmp_path, capfd):
    refuse = _no_sharing if "not sent" in failure else lambda _: (fail_to_open, ())
    ForkingPickler.register(GpuTensor, refuse)
    try:
        with in_place_of_cuda():
            there = {"play_device": f"{NAME}:0", "steps": 2, "updates": 4}
            seen = train(load("03_parallel"), tmp_path, NAME, **there)
    finally:
        ForkingPickler.register(GpuTensor, _no_sharing)
    assert seen.waits == set()  # a Mirror refreshes the player's weights
    captured = capfd.readouterr()
    assert_said(failure, captured.out + captured.err, tmp_path)


@contextlib.contextmanager
def broken_at_its_end(graph: FakeGraph) -> Iterator[None]:
    """As torch ends a capture that was broken."""
    try:
        yield
    finally:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def test_what_broke_a_capture_is_told_and_its_stream_is_left():
    streams: list[Any] = []

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


def test_checks_change_nothing_that_is_learned(capsys):
    """Neither the random state nor a number that an update reads, whatever was checked."""
    with in_place_of_cuda():
        torch.manual_seed(0)
        net = MixedWeights(DQN((2, 84, 84), 3).to(NAME), torch.bfloat16, 1e-3)
        buffer = filled_buffer()

        def loss_of(weights: Any, batch: Any) -> torch.Tensor:
            return bellman_loss(
                net(weights, batch.states), net(weights, batch.next_states), batch, 0.9
            )

        def update() -> torch.Tensor:
            gradients, loss = grad_and_value(loss_of)(net.compute, buffer.sample(4))
            net.adam(gradients)
            return loss

        update()  # so that Adam's averages are not zero
        before = [tensor.detach().cpu().clone() for tensor in net.changing]
        randoms = torch.get_rng_state(), gpu.get_rng_state()
        forward = CapturedForward(torch.no_grad()(net.network), (4, 2, 84, 84), torch.device(NAME))
        forward(buffer.gather(torch.arange(4, device=NAME)).states)
        learn = CompiledUpdate(update, torch.device(NAME), net)
        next(learn.ready_for([None]))
        for tensor, kept in zip(net.changing, before, strict=True):
            assert torch.equal(tensor.detach().cpu(), kept)
        for now, kept in zip((torch.get_rng_state(), gpu.get_rng_state()), randoms, strict=True):
            assert torch.equal(now, kept)
        assert gpu.graph is None
        first = learn().item()
        gpu.set_rng_state(randoms[1])
        assert np.isfinite(first)
    assert capsys.readouterr().out.count("checked in") == 2  # compiled, and captured
