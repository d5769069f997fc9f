"""An update as one closed function: compiled, in low precision, and a CUDA graph on the GPU.

``torch.func`` computes the gradients, and Adam is written out on tensors. So the compiler sees the
whole update. It turns conversions, activations and all of Adam into loops that read and write
memory once.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_map

from lib.devices import compiles
from lib.gpu_checks import try_optimised
from lib.learning.weights import MixedWeights
from lib.printing import show_elapsed
from lib.transfer import is_asynchronous

Update = Callable[[], torch.Tensor]
Result = TypeVar("Result")


@contextmanager
def unchanged(device: torch.device, tensors: Iterable[torch.Tensor] = ()) -> Iterator[None]:
    """Restore these tensors, and the random states of the CPU and a device, at the end."""
    modules = [torch]  # a compiler may draw from the CPU's numbers, too
    if device.type != "cpu":
        modules.append(torch.get_device_module(device))
    random = [(module, module.get_rng_state()) for module in modules]
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, before in kept:
            tensor.copy_(before)
    for module, state in random:
        module.set_rng_state(state)


def cuda_graph(function: Callable[[], Result]) -> Callable[[], Result]:
    """Capture a function as one CUDA graph, which launches all its kernels with a single call.

    The function must read only tensors that stay in their place, and must not wait for the GPU.
    Capturing calls it four times. The returned function replays the graph and writes the result
    into the same place each time. It keeps the function, and with it all that the graph reads.
    """
    stream, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(stream)  # capturing needs its own stream, and all memory allocated
    try:
        with torch.cuda.stream(side):
            for _ in range(3):
                function()
    finally:
        stream.wait_stream(side)
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    try:
        with torch.cuda.graph(graph, pool=pool):
            result = function()
    except Exception as error:
        end_capture(stream, pool)
        raise error.__context__ or error from None  # what broke the capture, not that it is broken

    return partial(replay, graph, result, function)


def replay(graph: torch.cuda.CUDAGraph, result: Result, reads: Callable[[], Result]) -> Result:
    """Replay a graph, and return its result; ``reads`` keeps alive what the graph reads."""
    graph.replay()
    return result


def end_capture(stream: torch.cuda.Stream, pool: tuple[int, int]) -> None:
    """Tell torch's allocator and random numbers that a capture is over, which ended in an error.

    Else no other capture can begin, and no random number be drawn.
    """
    torch.cuda.set_stream(stream)
    with suppress(RuntimeError):  # if the error came after this
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
    # Another capture that ends well ends this one for the random numbers.
    with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device=stream.device)
    torch.cuda.set_stream(stream)  # if no capture works here


def try_compile(
    name: str, eager: Callable[..., Any], device: torch.device, *args: torch.Tensor
) -> Callable[..., Any]:
    """``torch.compile`` the function now, for such arguments; the eager one if that fails."""
    from torch._inductor import config  # a slow import

    config.cpp.vec_isa_ok = True  # else g++ is tried with every kind of vectors, for five seconds
    # What it warns of on GPUs with fewer than 68 processors is a mode that nobody asked for.
    logging.getLogger("torch._inductor.utils").setLevel(logging.ERROR)
    triton = is_asynchronous(device)
    tools = "Triton, or triton-windows, " * triton + "g++, clang or cl, and Python's headers"
    part = f"the compiled {name} (compiling needs {tools})"

    def make() -> Callable[..., Any]:
        # Its own random numbers are float32, too coarse for the rows of a large buffer. With those
        # of torch it also draws the rows of eager code.
        compiled = torch.compile(eager, fullgraph=True, options={"fallback_random": True})

        def call(*args: Any) -> Any:
            try:
                return compiled(*args)
            except RuntimeError as error:  # before anything was computed
                if "skip_guard_eval_unsafe" not in str(error):
                    raise
                torch.compiler.set_stance("default")  # a profiler has begun, or ended
                return compiled(*args)

        call(*args)  # compiles
        return call

    torch.compiler.set_stance("default")
    with show_elapsed(f"compiling the {name}; nothing is learned yet"):
        call_now = try_optimised(part, eager, make)
    # Shapes, dtypes and closures stay from now on. To look at them before each call takes a tenth
    # of an update's time.
    torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)
    return call_now


def graph_or_eager(
    name: str,
    function: Callable[[], Result],
    device: torch.device,
    changing: Iterable[torch.Tensor] = (),
    captures: bool = True,
) -> Callable[[], Result]:
    """The function as one CUDA graph, if that works there; else, and on a CPU, as it is.

    Args:
        name: of what the function does.
        function: as for ``cuda_graph``.
        device: where it computes.
        changing: what it changes, and later calls depend on, unless the caller restores that.
        captures: whether to try.
    """
    if not (captures and is_asynchronous(device)):
        return function
    with unchanged(device, changing):
        return try_optimised(f"the CUDA graph of {name}", function, lambda: cuda_graph(function))


class CapturedForward:
    """A function of states, for choosing actions; on the GPU it is one CUDA graph.

    Launching its twenty or so kernels takes the CPU longer than running them takes the GPU.
    Smaller batches are padded with stale states.

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
        self._call, place = function, torch.zeros(states_shape, dtype=torch.uint8, device=device)

        def capture() -> Callable[[torch.Tensor], Any]:
            replay = cuda_graph(lambda: function(place))

            def call(states: torch.Tensor) -> Any:
                place[: len(states)].copy_(states)
                return tree_map(lambda result: result[: len(states)], replay())

            return call

        with unchanged(device):  # the function may draw, and compiling does
            if is_asynchronous(device) and alone:
                self._call = try_optimised("the CUDA graph that chooses actions", function, capture)
            elif compiled and not is_asynchronous(device) and compiles(device):
                self._call = try_compile("choice of actions", function, device, place)

    def __call__(self, states: torch.Tensor) -> Any:
        """The function's result; on the GPU the next call overwrites it."""
        return self._call(states)


class CompiledUpdate:
    """An update, compiled, and on the GPU recorded once and replayed as one CUDA graph.

    The update returns the loss, and changes ``net`` and ``others``. It must read only tensors that
    stay in their place, and must not wait for the device.
    """

    def __init__(
        self, update: Update, device: torch.device, net: MixedWeights, *others: torch.Tensor
    ) -> None:
        self._call, self._device, self._net, self._others = update, device, net, others

    def compile(self) -> None:
        """Compile, and on the GPU capture, what works there; nothing is learned by it."""
        with unchanged(self._device, [*self._net.changing, *self._others]):
            if compiles(self._device):
                self._call = try_compile("update", self._call, self._device)
            self._call = graph_or_eager("the update", self._call, self._device)

    def __call__(self) -> torch.Tensor:
        """Make an update, and return the loss, which stays on its device."""
        return self._call().clone()  # the next replay writes it into the same place
