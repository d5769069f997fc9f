"""A fake GPU: the CPU computes every kernel, by the rules of a GPU.

It is a backend of torch, and its numbers are real: a rung learns on it what it would learn
anywhere. It finds what a GPU does not forgive:

- an operation with tensors of both devices raises an error;
- a copy that makes the CPU wait for the GPU is noted, with the line that asked for it;
- an asynchronous copy arrives as late as it may: until then its target holds rubbish, and its
  source must not change;
- a capture refuses whatever would not be replayed, and a replay computes the same operations on
  the same memory again, so numbers that stayed on the CPU keep their values from the capture;
- a replay that needs memory from before its capture raises an error if that was freed. What a
  capture allocated is rubbish once the graph is gone;
- after a refused operation no other capture can begin until the allocator is told that this one is
  over, and there are no random numbers until another one has ended well;
- a stream that has not waited for another stream's work must not compute.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from lib import gpu_checks, transfer
from lib.learning import compiled_update

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule as BackendModule
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fakegpu"
ROOT = Path(__file__).parent.parent
OURS = (f"{ROOT}/0", f"{ROOT}/1", f"{ROOT}/lib/")  # the rungs, and lib
aten = torch.ops.aten
WAITING = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}


class GpuTensor(torch.Tensor):
    """Says that it lies on the GPU; its numbers are held by a tensor of the CPU."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "GpuTensor":
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=held.dtype, device=f"{NAME}:0", **layout
        )
        tensor.held = held
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return gpu.compute(func, args, kwargs or {})

    def _set_data(self, other):  # as a module's ``to`` does
        torch.Tensor.data.__set__(self, other)
        self.held = other.held

    data = property(torch.Tensor.data.__get__, _set_data)

    def __reduce_ex__(self, protocol):  # in a checkpoint; loading one asks for the CPU's anyway
        return self.held.__reduce_ex__(protocol)


def no_sharing(tensor: GpuTensor) -> None:
    raise RuntimeError("CUDA error: this GPU shares no memory with another process")


ForkingPickler.register(GpuTensor, no_sharing)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


class FakeGpu(BackendModule):
    """The GPU, its generator, and what it saw."""

    def __init__(self) -> None:
        random = self.random = torch.Generator()
        # What torch asks of a backend.
        self.manual_seed_all, self.get_rng_state = random.manual_seed, random.get_state
        self.set_rng_state = random.set_state
        self.get_amp_supported_dtype = lambda: [torch.bfloat16]
        self.restart()

    def restart(self) -> None:
        self.waits: set[str] = set()  # of the main thread, as "file function"
        self.pinned: dict[int, torch.UntypedStorage] = {}
        self.sources: list[tuple[torch.Tensor, torch.Tensor]] = []  # of copies under way
        self.arriving: list[tuple[torch.Tensor, torch.Tensor]] = []  # targets on the CPU
        self.graph: FakeGraph | None = None  # that is being captured
        self.recording: set[object] = set()  # pools of captures that the allocator takes for begun
        self.captures_random = False  # whether random numbers take a capture for begun
        self.launches = 0  # of kernels, and of graphs
        FakeStream.all.clear()
        self.stream = FakeStream()

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation, which may be one of the CPU alone."""
        if func is aten.is_pinned.default:
            return args[0].untyped_storage().data_ptr() in self.pinned
        flat, spec = pytree.tree_flatten((args, kwargs))
        here = {id(x.held): x for x in flat if isinstance(x, GpuTensor)}
        device = kwargs.get("device")
        on_gpu = device.type == NAME if device is not None else bool(here)
        if func is aten.copy_.default:
            on_gpu = isinstance(args[0], GpuTensor)
        elif here and func is not aten._to_copy.default:
            self._check(func, args, [x for x in flat if type(x) in (torch.Tensor, nn.Parameter)])
        if on_gpu and self.graph is None:
            self.stream.work()
        flat = [x.held if isinstance(x, GpuTensor) else x for x in flat]
        flat = [torch.device("cpu") if isinstance(x, torch.device) else x for x in flat]
        cpu_args, cpu_kwargs = pytree.tree_unflatten(flat, spec)
        pin = cpu_kwargs.pop("pin_memory", False) or func is aten._pin_memory.default
        if func is aten._pin_memory.default:
            func, cpu_args, cpu_kwargs = aten.clone.default, cpu_args[:1], {}
        compute = partial(self.run, func) if on_gpu else func
        result = compute(*cpu_args, **cpu_kwargs)
        if pin:
            storage = result.untyped_storage()
            self.pinned[storage.data_ptr()] = storage  # kept, so the address stays its own
        if func is aten.copy_.default and isinstance(args[1], GpuTensor) != on_gpu:
            self._copied(func, cpu_args[1], result, on_gpu, any(args[2:]))
        if func is aten._to_copy.default and bool(here) != on_gpu:
            self._copied(func, cpu_args[0], result, on_gpu, kwargs.get("non_blocking", False))
        if not on_gpu:
            return result
        if self.graph is not None:
            self.graph.record(func, cpu_args, cpu_kwargs, result)
        else:
            self.launches += not func.is_view

        def there(held: torch.Tensor) -> GpuTensor:
            return here[id(held)] if id(held) in here else GpuTensor(held)

        return pytree.tree_map_only(torch.Tensor, there, result)

    def ended(self, pool: object) -> None:
        """Tell the allocator that a capture is over."""
        if pool not in self.recording:
            raise RuntimeError("no capture allocates in this pool")
        self.recording.remove(pool)

    def run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute an operation, with the GPU's random numbers."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if self.captures_random and self.graph is None:
            raise RuntimeError("Offset increment outside graph capture encountered")
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.random.get_state())
            result = func(*args, **kwargs)
            self.random.set_state(torch.get_rng_state())
        return result

    def _check(self, func: Any, args: Any, there: list[torch.Tensor]) -> None:
        """Whether a GPU would compute this, and whether without the CPU's waiting."""
        if func in INDEXING:
            indices = [i for i in args[1] if i is not None]
            if not isinstance(args[0], GpuTensor):
                raise RuntimeError(f"{func}: the indices are on the GPU, the table is not")
            if any(not isinstance(i, GpuTensor) or i.dtype is torch.bool for i in indices):
                self._wait(func)
        elif any(x.dim() for x in there):
            raise RuntimeError(f"{func}: expected all tensors to be on the same device")
        elif there and self.graph is not None:
            self.graph.refuse(f"{func}: a number of the CPU in a capture stays what it is")
        if func in WAITING:
            self._wait(func)

    def _copied(self, func, source, target, to_gpu: bool, later: bool) -> None:
        """Note a copy between the two sides: wait for it, or let it come late."""
        pinned = (source if to_gpu else target).untyped_storage().data_ptr() in self.pinned
        if self.graph is not None:
            self.graph.refuse(f"{func}: a copy from or to the CPU in a capture")
        if not later or not pinned:
            self._wait(func)
        elif to_gpu:
            self.sources.append((source, source.clone()))
        else:
            self.arriving.append((target, target.clone()))
            target.view(torch.uint8).fill_(0xA5)

    def _wait(self, func: Any) -> None:
        if self.graph is not None:
            self.graph.refuse(f"{func}: the CPU cannot wait within a capture")
        self.synchronize()
        frame = our_frame()
        if frame and threading.current_thread() is threading.main_thread():
            self.waits.add(f"{Path(frame.f_code.co_filename).name} {frame.f_code.co_qualname}")

    def synchronize(self) -> None:
        for source, was in self.sources:
            assert torch.equal(source, was), "pinned memory changed while it was copied"
        for target, numbers in self.arriving:
            target.copy_(numbers)
        self.sources, self.arriving = [], []


def our_frame() -> Any:
    """The innermost frame of the rungs, lib or benchmarks, or None."""
    frame = sys._getframe(1)
    while frame and not frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return frame


class Place:
    """A tensor of a capture, in memory that others may free unless the graph owns it."""

    def __init__(self, tensor: torch.Tensor, captured: str) -> None:
        self.memory = StorageWeakRef(tensor.untyped_storage())
        self.dtype, self.captured = tensor.dtype, captured
        self.layout = tensor.storage_offset(), tensor.size(), tensor.stride()

    def tensor(self) -> torch.Tensor:
        if self.memory.expired():
            raise RuntimeError(f"a graph uses memory that was freed; captured in {self.captured}")
        storage = torch.UntypedStorage._new_with_weak_ptr(self.memory.cdata)
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.layout)


class FakeGraph:
    """A CUDA graph: operations of a capture, which ``replay`` computes again in their places."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any]] = []
        self.pool: list[torch.UntypedStorage] = []  # what the capture allocated
        self.broken = False

    def refuse(self, reason: str) -> None:
        self.broken = True
        raise RuntimeError(reason)

    def record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note an operation, and own the memory that is new."""
        given = {x.untyped_storage()._cdata for x in _tensors((args, kwargs))}
        new = (x.untyped_storage() for x in _tensors(result))
        self.pool += [storage for storage in new if storage._cdata not in given]
        frame = our_frame()
        line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "a test"
        place = partial(Place, captured=line)
        places = pytree.tree_map_only(torch.Tensor, place, (args, kwargs, result))
        self.operations.append((func, places))

    def replay(self) -> None:
        gpu.launches += 1
        gpu.stream.work()
        for func, places in self.operations:
            if not func.is_view:
                args, kwargs, result = pytree.tree_map_only(Place, Place.tensor, places)
                computed = _tensors(gpu.run(func, *args, **kwargs))
                for place, new in zip(_tensors(result), computed, strict=True):
                    if place.data_ptr() != new.data_ptr():
                        place.copy_(new)

    def __del__(self) -> None:
        for storage in self.pool:  # which may be kept by a result
            storage.fill_(0xA5)

    @contextlib.contextmanager
    def capture(self, pool: object = None, stream: "FakeStream | None" = None) -> Iterator[None]:
        if gpu.recording:
            raise RuntimeError("INTERNAL ASSERT FAILED: a capture is underway")
        gpu.synchronize()
        for other in FakeStream.all:
            gpu.stream.wait_stream(other)
        before, gpu.stream = gpu.stream, stream or FakeStream()
        gpu.graph, pool = self, pool or object()
        gpu.recording.add(pool)
        gpu.captures_random = True
        try:
            yield
        finally:
            gpu.graph = None
            if self.broken:  # torch stays on the capture's stream
                raise RuntimeError("CUDA error: operation failed due to a previous error")
            gpu.recording.remove(pool)
            gpu.captures_random = False
            gpu.stream = before


class FakeStream:
    """A stream: its work is done at once, but others must wait for it."""

    device, all = NAME, list["FakeStream"]()

    def __init__(self, _: int = 0) -> None:
        self.launched, self.seen = 0, dict[FakeStream, int]()
        FakeStream.all.append(self)

    def work(self) -> None:
        for other in FakeStream.all:
            if other is not self and other.launched > self.seen.get(other, 0):
                raise RuntimeError("a stream computes while another one may still write")
        self.launched += 1

    def wait_stream(self, stream: "FakeStream") -> None:
        """Wait for the work of another stream, and for what that one has waited for."""
        self.seen = {**self.seen, **stream.seen, stream: stream.launched}

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        before, gpu.stream = gpu.stream, self
        try:
            yield
        finally:
            gpu.stream = before


class FakeEvent:
    """Waiting for it brings the copies that began before it was recorded, and no others."""

    def __init__(self) -> None:
        self.before = list[tuple[torch.Tensor, torch.Tensor]]()

    def record(self) -> None:
        self.before = [*gpu.arriving]

    def synchronize(self) -> None:
        for target, numbers in self.before:
            target.copy_(numbers)
        gpu.arriving = [new for new in gpu.arriving if all(new is not old for old in self.before)]


class Everything(TorchDispatchMode):
    """Sends what makes new tensors to the GPU, too."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return gpu.compute(func, args, kwargs or {})


gpu = FakeGpu()
_setup_privateuseone_for_python_backend(NAME, gpu)


@contextlib.contextmanager
def in_place_of_cuda() -> Iterator[FakeGpu]:
    """Within, the project takes the fake for an NVIDIA GPU, and compiles nothing."""
    gpu.restart()
    gpu_checks.fallbacks.clear()
    with pytest.MonkeyPatch.context() as patch, Everything():
        patch.setattr(transfer, "ASYNCHRONOUS", (NAME,))
        patch.setattr(torch, "compile", lambda function, **_: function)
        compiled_update.capture_streams.cache_clear()  # they belong to another fake
        cuda = {"Stream": FakeStream, "stream": FakeStream.current, "Event": FakeEvent}
        cuda |= {"set_stream": lambda stream: setattr(gpu, "stream", stream)}
        cuda |= {"current_stream": lambda: gpu.stream, "current_device": lambda: 0}
        cuda |= {"CUDAGraph": FakeGraph, "graph": FakeGraph.capture, "graph_pool_handle": object}
        for name, fake in cuda.items():
            patch.setattr(torch.cuda, name, fake)
        patch.setattr(torch.accelerator, "synchronize", gpu.synchronize)
        patch.setattr(torch._C, "_cuda_endAllocateToPool", lambda _, pool: gpu.ended(pool))
        patch.setattr(torch._C, "_cuda_releasePool", lambda *_: None)
        yield gpu
