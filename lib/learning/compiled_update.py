"""An update as one closed function: compiled, in low precision, and a CUDA graph on the GPU.

``torch.func`` computes the gradients, and Adam is written out on tensors. So the compiler sees the
whole update. It turns conversions, activations and all of Adam into loops that read and write
memory once.
"""

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from lib.devices import compiles, first_line
from lib.gpu_checks import (
    Kept,
    compiled_for_gpu,
    fastest_update,
    fault_of_choices,
    leave_out,
    say,
    usable_dtype,
)
from lib.transfer import is_asynchronous

Weights = dict[str, torch.Tensor]
Result = TypeVar("Result")


@torch.library.custom_op("pong::rows", mutates_args=())
def rows(table: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """``table[numbers]``, which the compiler must not fuse with what follows.

    The fused loop would compute the address of every pixel, once per use: an update of 256 states
    took 61 ms instead of 48 on two cores.
    """
    # A tenth of the time of table[numbers]: it copies whole rows.
    return table.index_select(0, numbers.flatten()).unflatten(0, numbers.shape)


@rows.register_fake
def _shape_of_rows(table: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return table.new_empty((*numbers.shape, *table.shape[1:]))


class MixedWeights:
    """The weights of a network in float32 for Adam, and copies of them to compute with.

    Source: Kingma and Ba, arXiv:1412.6980; Micikevicius et al., arXiv:1710.03740, for keeping
    the weights in two precisions.

    Args:
        network: gives the weights, and uses the copies.
        dtype: of the copies; float32 if a GPU gets bfloat16 wrong.
        learning_rate: of Adam.
        epsilon: of Adam; a larger one damps steps where gradients are small.
        exact: beginnings of names; the copies of these weights stay in float32.
    """

    def __init__(
        self,
        network: nn.Module,
        dtype: torch.dtype,
        learning_rate: float,
        epsilon: float = 1e-8,
        exact: tuple[str, ...] = (),
    ) -> None:
        self.network = network
        self.dtype = dtype = usable_dtype(network, dtype, exact)
        self.epsilon = epsilon
        device = next(network.parameters()).device
        # Tensors: a compiled or captured update then finds their newest values.
        self.learning_rate = torch.full((), learning_rate, device=device)
        self.mean_decay = torch.ones((), device=device)  # beta to the power of the number of steps
        self.square_decay = torch.ones((), device=device)
        self.gradient_norm = torch.zeros((), device=device)  # of the last update
        self.weights: Weights = dict(network.named_parameters())
        self.compute = {
            name: w.detach().to(torch.float32 if name.startswith(exact) else dtype, copy=True)
            for name, w in self.weights.items()
        }
        self.means = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.squares = {name: torch.zeros_like(w) for name, w in self.weights.items()}

    def __call__(self, compute: Weights, states: torch.Tensor) -> torch.Tensor:
        """The values of the network with these weights."""
        return functional_call(self.network, compute, (states,))

    @property
    def changing(self) -> list[torch.Tensor]:
        """Everything that an update changes."""
        parts = [*self._parts().values(), self.compute]
        tensors = [tensor for part in parts for tensor in part.values()]
        return [*tensors, self.learning_rate, self.gradient_norm]

    def state_dict(self) -> dict[str, Weights]:
        """For a checkpoint; a network of the same class can load its ``weights``."""
        parts = self._parts().items()
        return {part: {name: t.detach() for name, t in tensors.items()} for part, tensors in parts}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Weights]) -> None:
        """Continue from where ``state_dict`` was taken."""
        for part, tensors in self._parts().items():
            for name, tensor in tensors.items():
                tensor.copy_(state[part][name])
        for name, weight in self.weights.items():
            self.compute[name].copy_(weight)

    def _parts(self) -> dict[str, Weights]:
        decays = {"mean": self.mean_decay, "square": self.square_decay}
        return {
            "weights": self.weights,
            "means": self.means,
            "squares": self.squares,
            "decays": decays,
        }

    @torch.no_grad()
    def adam(self, gradients: Weights, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        """Make a step of Adam, and refresh the copies."""
        squares = [gradient.float().square().sum() for gradient in gradients.values()]
        self.gradient_norm.copy_(torch.stack(squares).sum().sqrt())
        # A running product: the compiler would compute a power for every weight.
        self.mean_decay.mul_(betas[0])
        self.square_decay.mul_(betas[1])
        for name, weight in self.weights.items():
            gradient = gradients[name].float()
            mean, square = self.means[name], self.squares[name]
            mean.lerp_(gradient, 1 - betas[0])
            square.lerp_(gradient * gradient, 1 - betas[1])
            scale = (square / (1 - self.square_decay)).sqrt() + self.epsilon
            weight.sub_(self.learning_rate * (mean / (1 - self.mean_decay)) / scale)
            self.compute[name].copy_(weight)


class AveragedWeights(MixedWeights):
    """Weights whose moving average plays: the agent acts with it, and is kept.

    Single updates change single decisions. Their average is a steadier agent than the last weights,
    and it is the agent of which avg_reward speaks.

    Args:
        network, dtype, learning_rate, epsilon, exact: as of ``MixedWeights``.

    Attributes:
        averaging: how far an update moves the average to the weights: 1 for all the way. A tensor.
        acting: copies of the average, to choose actions with.
    """

    def __init__(
        self,
        network: nn.Module,
        dtype: torch.dtype,
        learning_rate: float,
        epsilon: float = 1e-8,
        exact: tuple[str, ...] = (),
    ) -> None:
        super().__init__(network, dtype, learning_rate, epsilon, exact)
        self.averaging = torch.ones_like(self.learning_rate)
        self.average = {name: w.detach().clone() for name, w in self.weights.items()}
        self.acting = {name: w.clone() for name, w in self.compute.items()}

    @property
    def changing(self) -> list[torch.Tensor]:
        """As of ``MixedWeights``."""
        return [*super().changing, *self.acting.values(), self.averaging]

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Weights]) -> None:
        """As of ``MixedWeights``."""
        super().load_state_dict(state)
        for name, weight in self.average.items():
            self.acting[name].copy_(weight)

    def _parts(self) -> dict[str, Weights]:
        return super()._parts() | {"average": self.average}

    @torch.no_grad()
    def adam(self, gradients: Weights, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        """Make a step of Adam, move the average, and refresh the copies of both."""
        super().adam(gradients, betas)
        for name, weight in self.weights.items():
            self.average[name].lerp_(weight, self.averaging)
            self.acting[name].copy_(self.average[name])

    def agent(self) -> nn.Module:
        """A network with the average of the weights now."""
        agent = copy.deepcopy(self.network)
        agent.load_state_dict(self.average)
        return agent


def captured(function: Callable[[], Result]) -> Callable[[], Result]:
    """Capture the function as one CUDA graph, which launches all its kernels with a single call.

    The function must read only tensors that stay in their place, and must not wait for the GPU.
    Capturing calls it a few times.

    Returns:
        Replays the graph; its result is in the same place each time.
    """
    side = torch.cuda.Stream()  # capturing needs its own stream, and all memory allocated
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            result = function()
    except Exception as error:
        torch.cuda.set_stream(stream)  # if a capture ends in an error, torch stays on its stream
        raise error.__context__ or error from None  # what broke the capture, not that it is broken

    def replay() -> Result:
        graph.replay()
        return result

    return replay


class CapturedForward:
    """A function of states, for choosing actions; on the GPU it is one CUDA graph.

    Without the graph, the CPU takes longer to launch the twenty or so kernels than the GPU takes
    to run them. If there are fewer states than places, old states fill the other places, which
    costs no time on a GPU. If the graph gives something else, it is left out.

    Args:
        function: maps states, uint8 (n, stack, height, width), to a tensor or several, (n, ...).
        states_shape: shape of the largest input.
        device: where it computes.
        compiled: compile it on the CPU, for inputs that all have the same shape.
    """

    def __init__(
        self,
        function: Callable[[torch.Tensor], Any],
        states_shape: tuple[int, ...],
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        self._function, self._device = function, device
        self._shape = states_shape
        self._call = None if is_asynchronous(device) else function
        if compiled and compiles(device) and not is_asynchronous(device):
            states = torch.zeros(states_shape, dtype=torch.uint8)
            self._call = compiled_now("the choice of actions", function, states)

    def __call__(self, states: torch.Tensor) -> Any:
        """The function's result; on the GPU the next call overwrites it."""
        if self._call is None:
            self._call = self._capture(states)
        return self._call(states)

    def _capture(self, states: torch.Tensor) -> Callable[[torch.Tensor], Any]:
        """The function as a CUDA graph, or as it is if that fails on these states."""
        place = torch.zeros(self._shape, dtype=torch.uint8, device=self._device)
        try:
            replay = captured(lambda: self._function(place))

            def call(states: torch.Tensor) -> Any:
                place[: len(states)].copy_(states)
                return tree_map(lambda result: result[: len(states)], replay())

            fault = fault_of_choices(self._function, call, states)
        except Exception as error:  # whatever it is: what the function itself raises, it will again
            leave_out("the CUDA graph that chooses actions", error)
            return self._function
        if fault:
            leave_out("the CUDA graph that chooses actions", fault)
            return self._function
        return call


def compiled_now(
    name: str, function: Callable[..., Result], *arguments: torch.Tensor
) -> Callable[..., Result]:
    """Compile a function by calling it; if that fails, say so and return it uncompiled.

    Args:
        name: what to call it in the terminal.
        function: what to compile; it is called once.
        arguments: to call it with.
    """
    from torch._dynamo.exc import ShortenTraceback  # the compiler's own errors; a slow import
    from torch._inductor import config

    config.cpp.vec_isa_ok = True  # else g++ is tried with every kind of vectors, for five seconds
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "its cache")  # set by the compiler
    say(f"compiling {name}: up to a minute, or seconds if {cache} has it already")
    begin = perf_counter()
    compiled = torch.compile(function, fullgraph=True)
    try:
        compiled(*arguments)
    except ShortenTraceback as error:
        say(
            f"{name} cannot be compiled, so it is slower (compiling needs g++, clang or cl, "
            f"and Python's headers): {first_line(error)}"
        )
        function(*arguments)
        return function
    say(f"compiled {name} in {perf_counter() - begin:.1f} seconds")
    return compiled


class CompiledUpdate:
    """An update, compiled, and on the GPU recorded once and replayed as one CUDA graph.

    If it cannot be compiled, e.g. without a C++ compiler, it runs uncompiled. On the GPU both are
    compared with the update as it is before they are trusted, see ``lib.gpu_checks``.

    The update must read only tensors that stay in their place, and must not wait for the device.

    Args:
        update: returns the loss.
        device: where it computes.
        net: what it learns. Without it nothing can be compared, so nothing is captured.
        others: whatever else it changes.
    """

    def __init__(
        self,
        update: Callable[[], torch.Tensor],
        device: torch.device,
        net: MixedWeights | None = None,
        *others: torch.Tensor,
    ) -> None:
        self._update, self._device = update, device
        self._net, self._others = net, others
        self._on_cpu = compiles(device) and not is_asynchronous(device)
        self._call = torch.compile(update, fullgraph=True) if self._on_cpu else update
        self._ready = False

    def compile_ahead(self) -> None:
        """Compile now, if this is a CPU; nothing is learned by it.

        Buffers must already hold something to learn from, if only zeros.
        """
        if self._on_cpu and self._net:
            kept = Kept(self._device, [*self._net.changing, *self._others])
            self._call = compiled_now("the update", self._update)
            kept.put_back()
            self._ready = True

    def ready_for(self, turns: Iterable[None]) -> Iterator[None]:
        """Yield as ``turns`` does, but compile and capture before the first update.

        So the time for this counts as wall clock, but not as time of the first update. On the CPU
        compiling makes an update; on the GPU nothing is learned by it.
        """
        for _ in turns:
            if not self._ready:
                if self._on_cpu:
                    self._call = compiled_now("the update", self._update)
                elif self._net and is_asynchronous(self._device):
                    self._call = self._fastest(self._net)
                self._ready = True
            yield

    def _fastest(self, net: MixedWeights) -> Callable[[], torch.Tensor]:
        """The update, compiled and captured as far as that works on this GPU."""
        ways: dict[str, Callable[[Callable[[], torch.Tensor]], Callable[[], torch.Tensor]]] = {
            "the compiled update": lambda update: compiled_for_gpu(update, self._device),
            "the CUDA graph of the update": captured,
        }
        return fastest_update(self._update, self._device, net, self._others, ways)

    def __call__(self) -> torch.Tensor:
        """Make an update; returns the loss, on its device."""
        return self._call().clone()  # the next replay writes it into the same place
