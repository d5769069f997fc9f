"""Techniques for the network: device, memory format, precision, compilation, optimizer, copies.

Two need a fresh process for every measurement: freed memory, and denormal numbers.
"""

import copy
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import nn

from benchmarks.processes import in_fresh_process
from benchmarks.techniques.measuring import (
    ACTIONS,
    DEFAULTS,
    SHAPE,
    Alternative,
    Measure,
    NotRun,
    Settings,
    milliseconds,
)
from lib.learning.compiled_update import captured
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch
from lib.running.machine import keep_freed_memory

DIFFERENT_BATCHES = 8
CPU = torch.device("cpu")


class Learner:
    """A network, its target network and its optimizer, at work on random batches.

    It works under autocast to ``dtype``, if there is one, and under what ``flags`` makes. ``scale``
    keeps float16 gradients from vanishing; ``adam`` says how Adam goes through its parameters.
    """

    def __init__(
        self,
        settings: Settings,
        network: Callable[..., nn.Module] = DQN,
        dtype: torch.dtype | None = None,
        scale: bool = False,
        device: str = "",
        flags: Callable[[], AbstractContextManager] = nullcontext,
        **adam: bool,
    ) -> None:
        self.device = torch.device(device) if device else settings.device
        torch.manual_seed(0)  # the same weights for every alternative
        self.net = network(SHAPE, ACTIONS).to(self.device)
        self.target = copy.deepcopy(self.net)
        kind = adam or {"fused": True}  # as the rungs do
        self.optimizer = torch.optim.Adam(self.net.parameters(), DEFAULTS.learning_rate, **kind)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=scale)
        self.dtype, self.flags = dtype, flags
        batches = random_batches(settings)
        self.state = batches[0].states[:1]
        self.batches = cycle([to_device(batch, self.device) for batch in batches])

    def act(self) -> None:
        """Choose the action for one state, which comes from the CPU."""
        with torch.no_grad(), self.autocast():
            self.net(self.state.to(self.device)).argmax(1).cpu()

    def forward(self) -> None:
        """Value the states of a batch, without gradients."""
        with torch.no_grad(), self.autocast(), self.flags():
            self.net(next(self.batches).states)

    def update(self) -> None:
        """What a rung does with a batch."""
        batch = next(self.batches)
        # New rewards every time: on batches learned by heart the gradients become denormal
        # numbers, which are slow.
        with self.flags():
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

    def step(self) -> None:
        """Adam alone, with the gradients of the last update."""
        self.optimizer.step()

    def autocast(self) -> torch.autocast:
        """The precision that was asked for."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)


def random_batches(settings: Settings) -> list[Batch]:
    """Batches of noise on the CPU."""
    size, generator, batches = settings.batch_size, torch.Generator().manual_seed(0), []
    for _ in range(DIFFERENT_BATCHES):
        states = torch.randint(0, 256, (2, size, *SHAPE), dtype=torch.uint8, generator=generator)
        actions = torch.randint(0, ACTIONS, (size,), generator=generator)
        rewards = torch.randn(size, generator=generator)
        terminated = torch.rand(size, generator=generator) < 0.01
        batches.append(Batch(states[0], actions, rewards, terminated, states[1]))
    return batches


def to_device(batch: Batch, device: torch.device, non_blocking: bool = False) -> Batch:
    """Copy every tensor of a batch."""
    return Batch(*(tensor.to(device, non_blocking=non_blocking) for tensor in batch))


def at_work(
    settings: Settings,
    ways: dict[str, Callable[[], Any]],
    tasks: tuple[str, ...] = ("forward", "update"),
) -> list[Alternative]:
    """Measure methods of each learner."""

    def build(make: Callable[[], Any], task: str) -> Measure:
        return milliseconds(getattr(make(), task), settings.seconds)

    return [
        Alternative(task, name, partial(build, make, task))
        for task in tasks
        for name, make in ways.items()
    ]


def on_gpu(settings: Settings, make: Callable[..., Any], *args: Any, **named: Any) -> Callable:
    """Makes a learner, if there is a GPU to work on."""

    def build() -> Any:
        settings.need_gpu()
        return make(settings, *args, **named)

    return build


def device(settings: Settings) -> list[Alternative]:
    """CPU against GPU."""
    gpu = on_gpu(settings, Learner, device="cuda")
    ways = {"CPU": partial(Learner, settings, device="cpu"), "GPU": gpu}
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
    new = partial(Learner, settings)
    return at_work(settings, {"contiguous": partial(new, ChannelsFirst), "channels-last": new})


def precision(settings: Settings) -> list[Alternative]:
    """Full precision against autocast; the CPU is exact, and has no gradients for float16."""
    exact = partial(torch.backends.cudnn.flags, enabled=True, allow_tf32=False)
    ways = {
        "float32": lambda: Learner(settings),
        "float32, convolutions without TF32": on_gpu(settings, Learner, flags=exact),
        "bfloat16 autocast": lambda: Learner(settings, dtype=torch.bfloat16),
        "float16 autocast, scaled": on_gpu(settings, Learner, dtype=torch.float16, scale=True),
    }
    return at_work(settings, ways)


def cudnn_benchmark(settings: Settings) -> list[Alternative]:
    """cuDNN's choice of kernels by its own rules, or by trying all of them once."""
    # All of these flags have other defaults than torch's state.
    flags = partial(torch.backends.cudnn.flags, enabled=True, allow_tf32=True)
    ways = {
        "chosen by rule": on_gpu(settings, Learner, flags=partial(flags, benchmark=False)),
        "chosen by trial": on_gpu(settings, Learner, flags=partial(flags, benchmark=True)),
    }
    return at_work(settings, ways)


class Captured(Learner):
    """Forward pass and update as captured CUDA graphs, fed through tensors that stay in place."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, fused=True, capturable=True)
        self.static = Batch(*(tensor.clone() for tensor in next(self.batches)))
        self.forward_graph = captured(torch.no_grad()(lambda: self.net(self.static.states)))
        self.update_graph = captured(lambda: self.learn(self.static))

    def forward(self) -> None:
        """As ``Learner.forward``."""
        self.static.states.copy_(next(self.batches).states)
        self.forward_graph()

    def update(self) -> None:
        """As ``Learner.update``."""
        for static, new in zip(self.static, next(self.batches), strict=True):
            static.copy_(new)
        self.static.rewards.normal_()
        self.update_graph()


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

    example = torch.zeros((1, *SHAPE), dtype=torch.uint8, device=settings.device)
    ways = {
        "eager": lambda: Learner(settings),
        "TorchScript": lambda: changed(partial(torch.jit.trace, example_inputs=example)),
        "torch.compile": compiled,
        "CUDA graph": on_gpu(settings, Captured),
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

    new = partial(Learner, settings)
    return at_work(settings, {"new memory": partial(new, new_memory), "in place": new})


def optimizer(settings: Settings) -> list[Alternative]:
    """Adam tensor by tensor, by lists of tensors, and fused."""

    def stepping(**kind: bool) -> Learner:
        learner = Learner(settings, **kind)
        learner.update()  # gradients to step with
        return learner

    ways = {
        "tensor by tensor": partial(stepping, foreach=False, fused=False),
        "foreach": partial(stepping, foreach=True),
        "fused": partial(stepping, fused=True),
    }
    return at_work(settings, ways, ("step", "update"))


class Copying(Learner):
    """A learner whose batches come from the CPU."""

    def __init__(self, settings: Settings, pin: bool, non_blocking: bool) -> None:
        super().__init__(settings)
        self.non_blocking = non_blocking
        where = torch.Tensor.pin_memory if pin else torch.Tensor.cpu
        self.batches = cycle([Batch(*map(where, batch)) for batch in random_batches(settings)])

    def copy(self) -> Batch:
        """Copy a batch."""
        return to_device(next(self.batches), self.device, self.non_blocking)

    def copy_and_update(self) -> None:
        """Copy it, and learn from it."""
        self.learn(self.copy())


def copies(settings: Settings) -> list[Alternative]:
    """Batches to the GPU: pageable or pinned memory, blocking or not."""
    ways = {
        "pageable, blocking": on_gpu(settings, Copying, False, False),
        "pinned, blocking": on_gpu(settings, Copying, True, False),
        "pinned, non-blocking": on_gpu(settings, Copying, True, True),
    }
    return at_work(settings, ways, ("copy", "copy_and_update"))


def fresh_update(batch_size: int, seconds: float, keep: bool, flush: bool, idle: bool) -> float:
    """Milliseconds of an update on the CPU, in a process that is set for it.

    It may keep freed memory, and flush denormal numbers to zero. ``idle``: half of the hidden units
    are never active, and for so long that their moments in Adam have become denormal.
    """
    torch.set_flush_denormal(flush)
    if keep:
        keep_freed_memory()
    learner = Learner(Settings(CPU, batch_size, seconds))
    if idle:
        hidden = learner.net.fc[0]
        half = hidden.out_features // 2
        with torch.no_grad():
            hidden.bias[:half] = -1e6
        learner.update()  # Adam makes its state
        for parameter in (hidden.weight, hidden.bias):
            for moment in ("exp_avg", "exp_avg_sq"):
                learner.optimizer.state[parameter][moment][:half] = 1e-40
    return milliseconds(learner.update, seconds)()


def in_fresh_processes(
    settings: Settings, ways: dict[str, tuple[bool, bool, bool]]
) -> list[Alternative]:
    """An update under each way of (keep, flush, idle)."""
    work = partial(in_fresh_process, fresh_update, settings.batch_size, settings.seconds)
    return [
        Alternative("update, CPU", name, lambda way=way: partial(work, *way))
        for name, way in ways.items()
    ]


def freed_memory(settings: Settings) -> list[Alternative]:
    """Freed memory goes back to the kernel, or the process keeps it."""
    ways = {"given back (glibc's default)": (False, True, False), "kept": (True, True, False)}
    return in_fresh_processes(settings, ways)


def denormals(settings: Settings) -> list[Alternative]:
    """Denormal numbers computed, or flushed to zero; half of the hidden units never active."""
    ways = {"computed (default)": (True, False, True), "flushed to zero": (True, True, True)}
    return in_fresh_processes(settings, ways)


IN_TURN = device, memory_format, precision, cudnn_benchmark, compilation, relu, optimizer, copies
IN_FRESH_PROCESSES = freed_memory, denormals
