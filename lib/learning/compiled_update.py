"""An update as one closed function: compiled, in low precision, and a CUDA graph on the GPU.

``torch.func`` computes the gradients, and Adam is written out on tensors. So the compiler sees the
whole update. It turns conversions, activations and all of Adam into loops that read and write
memory once.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

from lib.devices import compiles
from lib.gpu_checks import Kept, Results, faster_way
from lib.learning.weights import MixedWeights, Weights
from lib.printing import waiting
from lib.transfer import is_asynchronous

Update = Callable[[], torch.Tensor]
Result = TypeVar("Result")

# How far two ways to compute a gradient may be apart, as a share of its length. Each rounds to 8
# bits (bfloat16) or 11 (TF32, which float32 may be on a GPU), in another order. A loss is made of
# differences of values up to some 30 times as large: 5 bits. Roundings of five layers forward and
# back add up to 2 bits. So this finds what computes something else, not what rounds otherwise.
ROUNDING = {torch.bfloat16: 2.0**-1, torch.float32: 2.0**-4}


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


def captured(function: Callable[[], Result]) -> Callable[[], Result]:
    """Capture the function as one CUDA graph, which launches all its kernels with a single call.

    The function must read only tensors that stay in their place, and must not wait for the GPU.
    Capturing calls it a few times. What is returned replays the graph, with the result in the same
    place each time.
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


def compiled_way(
    step: str,
    name: str,
    plain: Callable[..., Any],
    device: torch.device,
    results: Callable[[Callable[..., Any]], Results],
    allowed: float,
) -> Callable[..., Any]:
    """The function, compiled now if that works: see ``faster_way``."""
    from torch._inductor import config  # a slow import

    config.cpp.vec_isa_ok = True  # else g++ is tried with every kind of vectors, for five seconds
    # What it warns of on GPUs with fewer than 68 processors is a mode that nobody asked for.
    logging.getLogger("torch._inductor.utils").setLevel(logging.ERROR)
    triton = is_asynchronous(device)
    tools = "Triton, or triton-windows, " * triton + "g++, clang or cl, and Python's headers"
    part = f"the compiled {name} (compiling needs {tools})"

    def make() -> Callable[..., Any]:
        # Its own random numbers are float32, too coarse for the rows of a large buffer. With those
        # of torch it also draws the plain way's rows, and can be compared.
        return torch.compile(plain, fullgraph=True, options={"fallback_random": True})

    torch.compiler.set_stance("default")
    with waiting(f"{step}: compiling the {name}; nothing is learned yet"):
        way = faster_way(part, plain, make, results, allowed)
    # Shapes, dtypes and closures stay from now on. To look at them before each call takes a tenth
    # of an update's time.
    torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)
    return way


def graph_or_plain(
    name: str,
    function: Callable[[], None],
    device: torch.device,
    changing: Mapping[str, torch.Tensor],
    captures: bool = True,
) -> Callable[[], None]:
    """The function as one CUDA graph, if that works there; else, and on a CPU, as it is.

    Args:
        name: of what the function does.
        function: as for ``captured``.
        device: where it computes.
        changing: by name, what it changes, and later calls depend on. Three calls of it are
            compared, see ``faster_way``.
        captures: whether to try.
    """
    if not (captures and is_asynchronous(device)):
        return function
    kept = Kept(device, changing.values())

    def results(way: Callable[[], None]) -> Results:
        kept.put_back()
        for _ in range(3):
            way()
        return {name: tensor.clone() for name, tensor in changing.items()}

    allowed = ROUNDING[torch.float32]
    part = f"the CUDA graph of {name}"
    way = faster_way(part, function, lambda: captured(function), results, allowed)
    kept.put_back()
    return way


class CapturedForward:
    """A function of states, for choosing actions; on the GPU it is one CUDA graph.

    Launching its twenty or so kernels takes the CPU longer than running them takes the GPU. If
    there are fewer states than places, old states fill the other places.

    Args:
        function: maps states, uint8 (n, stack, height, width), to values (n, ...), or to values
            and other tensors.
        states_shape: shape of the largest input.
        device: where it computes.
        compiled: compile it on the CPU, for inputs that all have the same shape.
        alone: not a part of a larger graph, which has it captured.
    """

    def __init__(
        self,
        function: Callable[[torch.Tensor], Any],
        states_shape: tuple[int, ...],
        device: torch.device,
        compiled: bool = False,
        alone: bool = True,
    ) -> None:
        self._call = function
        # Any pictures, so that different weights give different values.
        states = (torch.arange(math.prod(states_shape)) % 251).to(torch.uint8)
        states = states.view(states_shape).to(device)

        def values(call: Callable[[torch.Tensor], Any]) -> Results:
            both = [tree_leaves(call(seen))[0].clone() for seen in (states, 255 - states)]
            return {"values": torch.cat(both)}

        def capture() -> Callable[[torch.Tensor], Any]:
            place = torch.zeros_like(states)
            replay = captured(lambda: function(place))

            def call(states: torch.Tensor) -> Any:
                place[: len(states)].copy_(states)
                return tree_map(lambda result: result[: len(states)], replay())

            return call

        allowed = ROUNDING[torch.float32]  # enough for bfloat16, too: nothing cancels in values
        kept = Kept(device, [])  # the function may draw, and compiling does
        if is_asynchronous(device) and alone:
            part = "the CUDA graph that chooses actions"
            self._call = faster_way(part, function, capture, values, allowed)
        elif compiled and not is_asynchronous(device) and compiles(device):
            step, name = "step 1 of 2", "choice of actions"
            self._call = compiled_way(step, name, function, device, values, allowed)
        kept.put_back()

    def __call__(self, states: torch.Tensor) -> Any:
        """The function's result; on the GPU the next call overwrites it."""
        return self._call(states)


class CompiledUpdate:
    """An update, compiled, and on the GPU recorded once and replayed as one CUDA graph.

    The update must read only tensors that stay in their place, and must not wait for the device.

    Args:
        update: returns the loss.
        device: where it computes.
        net: what it learns.
        others: whatever else it changes.
    """

    def __init__(
        self, update: Update, device: torch.device, net: MixedWeights, *others: torch.Tensor
    ) -> None:
        self._call, self._device, self._net, self._others = update, device, net, others

    def compile(self) -> None:
        """Compile, and on the GPU capture, what works there; nothing is learned by it."""
        kept = Kept(self._device, [*self._net.changing, *self._others])
        allowed = ROUNDING[self._net.dtype]

        def results(update: Update) -> Results:
            kept.put_back()
            return first_results(update, self._net)

        if compiles(self._device):
            self._call = compiled_way(
                "last step", "update", self._call, self._device, results, allowed
            )
        if is_asynchronous(self._device):
            plain, part = self._call, "the CUDA graph of the update"
            self._call = faster_way(part, plain, lambda: captured(plain), results, allowed)
        kept.put_back()

    def __call__(self) -> torch.Tensor:
        """Make an update; returns the loss, on its device."""
        return self._call().clone()  # the next replay writes it into the same place


def first_results(update: Update, net: MixedWeights) -> Results:
    """What four calls of an update give.

    The weights change only in the last call. Otherwise two ways would part: the first steps of
    Adam are as long where a gradient is mere rounding. So only rows make the losses differ.
    """
    net.learning_rate.zero_()
    weights, copies = flat(net.weights), flat(net.compute)
    losses = [update().clone() for _ in range(3)]
    net.learning_rate.fill_(1e-3)
    losses.append(update().clone())
    return {
        "draws of rows": torch.tensor(float(len({loss.item() for loss in losses}))),
        "losses": torch.stack(losses),
        "gradients": flat(net.exp_avg),
        "steps": flat(net.weights) - weights,
        "steps of the copies": flat(net.compute) - copies,
    }


def flat(tensors: Weights) -> torch.Tensor:
    """A copy of all numbers, float32 (n,)."""
    return torch.cat([tensor.detach().float().flatten() for tensor in tensors.values()])
