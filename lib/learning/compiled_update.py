"""An update as one function without arguments, compiled and, on a GPU, one CUDA graph.

``torch.func`` computes the gradients, and Adam is written as tensor operations, so the compiler
sees the whole update.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, TypeVar

from lib.devices import compiles
from lib.gpu_checks import try_optimised
from lib.learning.weights import MixedWeights
from lib.printing import show_elapsed
from lib.transfer import is_asynchronous

import torch
from torch.utils._pytree import tree_map

Update = Callable[[], torch.Tensor]
Result = TypeVar("Result")


@contextmanager
def unchanged(device: torch.device, tensors: Iterable[torch.Tensor] = ()) -> Iterator[None]:
    """Restore these tensors, and the random states of the CPU and a device, at the end."""
    modules = [torch]  # compiling draws random numbers on the CPU, too
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


@cache
def capture_streams(gpu: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Return the two streams of a GPU on which functions warm up and are captured.

    torch would capture on the GPU of the process's first capture, and keep cuBLAS's memory for each
    new stream.
    """
    return torch.cuda.Stream(gpu), torch.cuda.Stream(gpu)


def cuda_graph(function: Callable[[], Result]) -> Callable[[], Result]:
    """Capture a function as one CUDA graph, which launches all its kernels with a single call.

    The function must read only tensors that stay in place, and must not wait for the GPU. Capturing
    calls it four times. The returned function replays the graph and overwrites the previous result.
    It keeps alive everything that the graph reads.
    """
    stream = torch.cuda.current_stream()
    side, capturing = capture_streams(torch.cuda.current_device())
    side.wait_stream(stream)  # warm up on another stream, so that all memory is allocated
    try:
        with torch.cuda.stream(side):
            for _ in range(3):
                function()
    finally:
        stream.wait_stream(side)
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=capturing):
            result = function()
    except Exception as error:
        end_capture(stream, capturing, pool)
        raise error.__context__ or error from None  # the cause, not the broken capture
    return partial(replay, graph, result, function)


def replay(graph: torch.cuda.CUDAGraph, result: Result, reads: Callable[[], Result]) -> Result:
    """Replay a graph and return its result; ``reads`` keeps alive what the graph reads."""
    graph.replay()
    return result


def end_capture(
    stream: torch.cuda.Stream, capturing: torch.cuda.Stream, pool: tuple[int, int]
) -> None:
    """Reset torch's allocator and random generators after a failed capture.

    Otherwise torch could neither capture again nor draw random numbers.
    """
    torch.cuda.set_stream(stream)
    with suppress(RuntimeError):  # if torch has done this already
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
    # In torch 2.11, the random generators stay in capture mode until a capture succeeds.
    with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=capturing):
        torch.zeros(1, device=stream.device)
    torch.cuda.set_stream(stream)  # in case this capture fails, too


def try_compile(
    name: str, eager: Callable[..., Any], device: torch.device, *args: torch.Tensor
) -> Callable[..., Any]:
    """Compile a function now, for these arguments; return it uncompiled if that fails."""
    from torch._inductor import config  # slow to import

    config.cpp.vec_isa_ok = True  # skip a probe that runs g++ for each vector width (5 s)
    # On GPUs with fewer than 68 processors, Inductor warns of a mode that is not used here.
    logging.getLogger("torch._inductor.utils").setLevel(logging.ERROR)
    triton = is_asynchronous(device)
    tools = "Triton (or triton-windows), " * triton + "a C++ compiler and Python's headers"
    part = f"the compiled {name} (compiling needs {tools})"

    def make() -> Callable[..., Any]:
        # Inductor's random numbers are float32, too coarse to draw the rows of a large buffer. With
        # torch's, compiled code also draws the same rows as eager code.
        compiled = torch.compile(eager, fullgraph=True, options={"fallback_random": True})

        def call(*args: Any) -> Any:
            try:
                return compiled(*args)
            except RuntimeError as error:
                # When a profiler starts or stops, a compiled call fails, and has computed nothing.
                # Then switch the guard checks on for good, and repeat the call.
                if "skip_guard_eval_unsafe" not in str(error):
                    raise
                torch.compiler.set_stance("default")
                return compiled(*args)

        call(*args)  # compiles
        return call

    torch.compiler.set_stance("default")
    with show_elapsed(f"compiling the {name}; nothing is learned yet"):
        call_now = try_optimised(part, eager, make)
    # From now on shapes, dtypes and closures do not change, and checking them before each call
    # would take a tenth of an update.
    torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)
    return call_now


def graph_or_eager(
    name: str,
    function: Callable[[], Result],
    device: torch.device,
    changing: Iterable[torch.Tensor] = (),
    captures: bool = True,
) -> Callable[[], Result]:
    """Capture a function as one CUDA graph if the device supports it; otherwise return it.

    Capturing calls the function, which may change tensors; those in ``changing`` get their old
    values back. ``name`` is for the warning.
    """
    if not (captures and is_asynchronous(device)):
        return function
    with unchanged(device, changing):
        return try_optimised(f"the CUDA graph of {name}", function, lambda: cuda_graph(function))


class CapturedForward:
    """A function of states, for choosing actions; on a GPU, one CUDA graph.

    Launching its twenty or so kernels takes longer than running them. A graph also accepts batches
    smaller than ``states_shape``.

    Args:
        function: maps states, uint8 (n, stack, height, width), to one or more tensors (n, ...).
        compiled: compile it on the CPU, for inputs of one shape.
        alone: False if the function becomes part of a larger graph.
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

        with unchanged(device):  # capturing and compiling may draw random numbers
            if is_asynchronous(device) and alone:
                self._call = try_optimised("the CUDA graph that chooses actions", function, capture)
            elif compiled and not is_asynchronous(device) and compiles(device):
                self._call = try_compile("action selection", function, device, place)

    def __call__(self, states: torch.Tensor) -> Any:
        """Return the function's result; on a GPU, the next call overwrites it."""
        return self._call(states)


class CompiledUpdate:
    """A compiled update; on a GPU, captured once and replayed as one CUDA graph.

    The update returns the loss, and changes ``net`` and ``others``. It must meet the conditions of
    ``cuda_graph``.
    """

    def __init__(
        self, update: Update, device: torch.device, net: MixedWeights, *others: torch.Tensor
    ) -> None:
        self._call, self._device, self._net, self._others = update, device, net, others

    def compile(self) -> None:
        """Compile the update and, on a GPU, capture it, without changing weights or generators."""
        with unchanged(self._device, [*self._net.changing, *self._others]):
            if compiles(self._device):
                self._call = try_compile("update", self._call, self._device)
            self._call = graph_or_eager("the update", self._call, self._device)

    def __call__(self) -> torch.Tensor:
        return self._call().clone()  # the next replay overwrites it
