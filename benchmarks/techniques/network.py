"""Techniques for the network: device, memory format, precision, compilation, optimizer, copies."""

import copy
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import nn

from benchmarks.techniques.measuring import (
    ACTIONS,
    DEFAULTS,
    SHAPE,
    WARM_UP,
    Alternative,
    Measure,
    NotRun,
    Settings,
    milliseconds,
    need_gpu,
)
from lib.dqn_model import DQN, adam
from lib.loss import bellman_loss
from lib.replay_buffer import Batch

DIFFERENT_BATCHES = 8


class Learner:
    """A network, its target network and its optimizer, at work on random batches.

    Args:
        settings: batch size and, unless another is given, the device.
        network: makes the network.
        optimizer: makes the optimizer.
        dtype: of autocast; None for full precision.
        scale: the loss, so that float16 gradients do not vanish.
        device: instead of that of the settings.
    """

    def __init__(
        self,
        settings: Settings,
        network: Callable[..., nn.Module] = DQN,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
        dtype: torch.dtype | None = None,
        scale: bool = False,
        device: str = "",
    ) -> None:
        self.device = torch.device(device) if device else settings.device
        torch.manual_seed(0)  # the same weights for every alternative
        self.net = network(SHAPE, ACTIONS).to(self.device)
        self.target = copy.deepcopy(self.net)
        make_optimizer = optimizer or partial(adam, learning_rate=DEFAULTS.learning_rate)
        self.optimizer = make_optimizer(self.net)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=scale)
        self.dtype = dtype
        batches = [random_batch(settings.batch_size, i) for i in range(DIFFERENT_BATCHES)]
        self.batches = cycle([to_device(batch, self.device) for batch in batches])
        self.state = random_batch(1, 0).states

    def act(self) -> None:
        """Choose the action for one state, which comes from the CPU."""
        with torch.no_grad(), self.autocast():
            self.net(self.state.to(self.device)).argmax(1).cpu()

    def forward(self) -> None:
        """Value the states of a batch, without gradients."""
        with torch.no_grad(), self.autocast():
            self.net(next(self.batches).states)

    def update(self) -> None:
        """What a rung does with a batch."""
        batch = next(self.batches)
        # New rewards every time: on batches learned by heart the gradients become denormal
        # numbers, which are slow.
        self.learn(batch._replace(rewards=torch.randn_like(batch.rewards)))

    def learn(self, batch: Batch) -> None:
        """One gradient step."""
        self.optimizer.zero_grad()
        with self.autocast():
            with torch.no_grad():
                next_q = self.target(batch.next_states)
            loss = bellman_loss(self.net(batch.states), next_q, batch, DEFAULTS.gamma)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def autocast(self) -> torch.autocast:
        """The precision that was asked for."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)


def random_batch(size: int, seed: int) -> Batch:
    """A batch of noise on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randint(0, 256, (2, size, *SHAPE), dtype=torch.uint8, generator=generator)
    return Batch(
        states=states[0],
        actions=torch.randint(0, ACTIONS, (size,), generator=generator),
        rewards=torch.randn(size, generator=generator),
        terminated=torch.rand(size, generator=generator) < 0.01,
        next_states=states[1],
    )


def to_device(batch: Batch, device: torch.device, non_blocking: bool = False) -> Batch:
    """Copy every tensor of a batch."""
    return Batch(*(tensor.to(device, non_blocking=non_blocking) for tensor in batch))


def at_work(
    settings: Settings,
    ways: dict[str, Callable[[], Learner]],
    tasks: tuple[str, ...] = ("forward", "update"),
) -> list[Alternative]:
    """Measure methods of each learner."""

    def build(make: Callable[[], Learner], task: str) -> Measure:
        learner = make()
        return milliseconds(getattr(learner, task), settings.seconds, learner.device)

    return [
        Alternative(task, name, partial(build, make, task))
        for task in tasks
        for name, make in ways.items()
    ]


def device(settings: Settings) -> list[Alternative]:
    """CPU against GPU."""

    def gpu() -> Learner:
        need_gpu(settings)
        return Learner(settings, device="cuda")

    ways = {"CPU": lambda: Learner(settings, device="cpu"), "GPU": gpu}
    return at_work(settings, ways, ("act", "forward", "update"))


class ChannelsFirst(DQN):
    """The network without its memory format."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.conv.to(memory_format=torch.contiguous_format)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """As the network's."""
        return self.fc(self.conv(frames.to(torch.float32).mul_(1 / 255)))


def memory_format(settings: Settings) -> list[Alternative]:
    """Contiguous against channels-last."""
    ways = {
        "contiguous": lambda: Learner(settings, ChannelsFirst),
        "channels-last": lambda: Learner(settings),
    }
    return at_work(settings, ways)


def precision(settings: Settings) -> list[Alternative]:
    """Full precision against autocast."""

    def half() -> Learner:
        need_gpu(settings)  # the CPU has no gradients worth having in float16
        return Learner(settings, dtype=torch.float16, scale=True)

    def exact() -> Learner:
        need_gpu(settings)  # the CPU always is
        return Flagged(settings, torch.backends.cudnn.flags, enabled=True, allow_tf32=False)

    ways = {
        "float32": lambda: Learner(settings),
        "float32, convolutions without TF32": exact,
        "bfloat16 autocast": lambda: Learner(settings, dtype=torch.bfloat16),
        "float16 autocast, scaled": half,
    }
    return at_work(settings, ways)


class Flagged(Learner):
    """A learner that works under some of torch's flags.

    Args:
        settings: as for ``Learner``.
        flags: a context manager that sets them.
        values: of the flags.
    """

    def __init__(
        self, settings: Settings, flags: Callable[..., AbstractContextManager], **values: bool
    ) -> None:
        super().__init__(settings)
        self.flags = partial(flags, **values)

    def forward(self) -> None:
        """As ``Learner.forward``."""
        with self.flags():
            super().forward()

    def update(self) -> None:
        """As ``Learner.update``."""
        with self.flags():
            super().update()


def cudnn_benchmark(settings: Settings) -> list[Alternative]:
    """cuDNN's choice of kernels by its own rules, or by trying all of them once."""

    def flagged(benchmark: bool) -> Learner:
        need_gpu(settings)
        # All of these flags have other defaults than torch's state.
        flags = torch.backends.cudnn.flags
        return Flagged(settings, flags, enabled=True, benchmark=benchmark, allow_tf32=True)

    ways = {"chosen by rule": partial(flagged, False), "chosen by trial": partial(flagged, True)}
    return at_work(settings, ways)


class Captured(Learner):
    """Forward pass and update as captured CUDA graphs, fed through tensors that stay in place."""

    def __init__(self, settings: Settings) -> None:
        need_gpu(settings)

        def optimizer(net: nn.Module) -> torch.optim.Optimizer:
            rate = DEFAULTS.learning_rate
            return torch.optim.Adam(net.parameters(), rate, fused=True, capturable=True)

        super().__init__(settings, optimizer=optimizer)
        self.static = Batch(*(tensor.clone() for tensor in next(self.batches)))
        self.forward_graph = self.capture(self.values)
        self.update_graph = self.capture(lambda: self.learn(self.static))

    def values(self) -> None:
        """The forward pass that is captured."""
        with torch.no_grad():
            self.net(self.static.states)

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Run the work a few times beside the main stream, as capturing wants it; record it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad()  # the gradients are to come from the graph's own memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph

    def forward(self) -> None:
        """As ``Learner.forward``."""
        self.static.states.copy_(next(self.batches).states)
        self.forward_graph.replay()

    def update(self) -> None:
        """As ``Learner.update``."""
        for static, new in zip(self.static, next(self.batches), strict=True):
            static.copy_(new)
        self.static.rewards.normal_()
        self.update_graph.replay()


def compilation(settings: Settings) -> list[Alternative]:
    """Eager against TorchScript, torch.compile and a captured CUDA graph."""

    def changed(change: Callable[[nn.Module], Any]) -> Learner:
        learner = Learner(settings)
        learner.net, learner.target = change(learner.net), change(learner.target)
        return learner

    def compiled() -> Learner:
        if not (shutil.which("g++") or shutil.which("clang++")):
            raise NotRun("no C++ compiler")
        return changed(torch.compile)

    ways = {
        "eager": lambda: Learner(settings),
        "TorchScript": lambda: changed(torch.jit.script),
        "torch.compile": compiled,
        "CUDA graph": lambda: Captured(settings),
    }
    return at_work(settings, ways)


def relu(settings: Settings) -> list[Alternative]:
    """ReLU into new memory against ReLU in place."""

    def new_memory(*args: Any) -> nn.Module:
        network = DQN(*args)
        for module in network.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False
        return network

    ways = {
        "new memory": lambda: Learner(settings, new_memory),
        "in place": lambda: Learner(settings),
    }
    return at_work(settings, ways)


def optimizer(settings: Settings) -> list[Alternative]:
    """Adam tensor by tensor, by lists of tensors, and fused."""
    kinds: dict[str, dict[str, bool]] = {
        "tensor by tensor": {"foreach": False, "fused": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }

    class Stepping(Learner):
        def __init__(self, kind: dict[str, bool]) -> None:
            rate = DEFAULTS.learning_rate
            super().__init__(
                settings, optimizer=lambda net: torch.optim.Adam(net.parameters(), rate, **kind)
            )
            self.update()  # gradients to step with

        def step(self) -> None:
            self.optimizer.step()

    ways = {name: partial(Stepping, kind) for name, kind in kinds.items()}
    return at_work(settings, ways, ("step", "update"))


def copies(settings: Settings) -> list[Alternative]:
    """Batches to the GPU: pageable or pinned memory, blocking or not."""

    class Copying(Learner):
        def __init__(self, pin: bool, non_blocking: bool) -> None:
            need_gpu(settings)
            super().__init__(settings)
            self.non_blocking = non_blocking
            batches = [random_batch(settings.batch_size, i) for i in range(DIFFERENT_BATCHES)]
            if pin:
                batches = [Batch(*(tensor.pin_memory() for tensor in batch)) for batch in batches]
            self.batches = cycle(batches)

        def copy(self) -> Batch:
            return to_device(next(self.batches), self.device, self.non_blocking)

        def copy_and_update(self) -> None:
            self.learn(self.copy())

    ways = {
        "pageable, blocking": partial(Copying, False, False),
        "pinned, blocking": partial(Copying, True, False),
        "pinned, non-blocking": partial(Copying, True, True),
    }
    return at_work(settings, ways, ("copy", "copy_and_update"))
