"""Techniques of learning: device, compilation, precision, copies, calls, details of an update."""

import copy
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from typing import Any

from benchmarks import Failed
from benchmarks.measuring import Measure, timed
from lib.learning.compiled_update import cuda_graph
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch
from lib.training.options import ReplayOptions

import torch

DEFAULTS = ReplayOptions()
SHAPE, ACTIONS = (4, 84, 84), 6  # Pong, as the rungs see it
Works = Mapping[str, Mapping[str, Callable[[], Measure]]]  # work and unit -> way -> its measure


class Learner:
    """A network, its target network and Adam, learning from batches of noise.

    ``change`` compiles both networks; ``dtype`` is for autocast. Batches are on the device if
    ``pinned`` is None, otherwise in pinned or pageable memory; ``later`` copies asynchronously.
    """

    def __init__(
        self,
        device: torch.device,
        size: int,
        change: Callable[[DQN], Any] = lambda net: net,
        dtype: torch.dtype | None = None,
        tf32: bool = True,
        pinned: bool | None = None,
        later: bool = False,
        **adam: Any,
    ) -> None:
        torch.manual_seed(0)  # the same weights and batches for every way
        net = DQN(SHAPE, ACTIONS).to(device)
        self.optimizer = torch.optim.Adam(net.parameters(), 1e-4, **(adam or {"fused": True}))
        self.target, self.net = change(copy.deepcopy(net)), change(net)
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
        self.device, self.dtype, self.tf32, self.later = device, dtype, tf32, later
        batches = [noise(size) for _ in range(8)]
        if pinned is None:
            batches = [to(device, batch) for batch in batches]
        elif pinned:
            batches = [Batch(*(part.pin_memory() for part in batch)) for batch in batches]
        self.batches = cycle(batches)

    def autocast(self) -> torch.autocast:
        """Return autocast in this learner's precision, and set TF32, which other learners share."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tf32
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)

    def copy(self) -> Batch:
        return to(self.device, next(self.batches), self.later)

    @torch.no_grad()
    def forward(self) -> torch.Tensor:
        with self.autocast():
            return self.net(self.copy().states)

    def update(self) -> None:
        batch = self.copy()  # with new rewards, because memorised ones make gradients denormal
        self.learn(batch._replace(rewards=torch.randn_like(batch.rewards)))

    def learn(self, batch: Batch, step: bool = True) -> None:
        self.optimizer.zero_grad()
        with self.autocast():
            with torch.no_grad():
                next_q = self.target(batch.next_states)
            loss = bellman_loss(self.net(batch.states), next_q, batch, DEFAULTS.gamma)
        self.scaler.scale(loss).backward()
        if step:
            self.scaler.step(self.optimizer)
            self.scaler.update()


def noise(size: int) -> Batch:
    """Return a batch of noise, on the CPU."""
    states, next_states = torch.randint(0, 256, (2, size, *SHAPE), dtype=torch.uint8)
    actions, ends = torch.randint(0, ACTIONS, (size,)), torch.rand(size) < 0.01
    return Batch(states, actions, torch.randn(size), ends, next_states)


def to(device: torch.device, batch: Batch, later: bool = False) -> Batch:
    """Move a batch to the device, without a copy if it is there already."""
    return Batch(*(tensor.to(device, non_blocking=later) for tensor in batch))


def need_gpu(device: torch.device) -> None:
    """Raise Failed on a CPU."""
    if device.type == "cpu":
        raise Failed("without --cuda" if torch.cuda.is_available() else "no GPU here")


def compare(
    args: Namespace, ways: dict[str, Any], *tasks: str, what: str = "", size: int = 0
) -> Works:
    """Return the tasks of learners made in these ways; ways with ``gpu`` need one."""
    size = size or args.batch_size

    def make(task: str, gpu: bool = False, graph: bool = False, **how: Any) -> Measure:
        device = how.pop("device", args.device)
        if gpu:
            need_gpu(device)
        work = getattr(Learner(device, size, **how), task)
        return timed(cuda_graph(work) if graph else work)

    def made(task: str) -> Mapping[str, Callable[[], Measure]]:
        return {way: partial(make, task, **how) for way, how in ways.items()}

    return {f"{what}{task} of {size} (ms)": made(task) for task in tasks}


def device(args: Namespace) -> Works:
    """CPU and GPU, by batch."""
    ways, works = {"CPU": {"device": torch.device("cpu")}, "GPU": {"gpu": True}}, dict[str, Any]()
    for size in (1, 32, 256):
        works |= compare(args, ways, "forward", size=size)
    return works


def scripted(net: Any) -> Any:
    """Compile the layers with TorchScript, which does not know all of ``DQN.pixels``."""
    with warnings.catch_warnings(action="ignore"):  # the table says that it is deprecated
        net.conv, net.fc = torch.jit.script(net.conv), torch.jit.script(net.fc)
    return net


def compilation(args: Namespace) -> Works:
    """Eager and compiled."""
    ways: dict[str, dict[str, Any]] = {
        "eager": {},
        "torch.jit.script (deprecated)": {"change": scripted},
        "torch.compile": {"change": torch.compile},
        "CUDA graph": {"gpu": True, "graph": True, "fused": True, "capturable": True},
    }
    return compare(args, ways, "forward", "update")


def kept_for_backward(args: Namespace, gpu: bool = False, **how: Any) -> Measure:
    """Measure the megabytes, weights too, that a forward pass keeps for the backward pass."""
    if gpu:
        need_gpu(args.device)
    learner, kept = Learner(args.device, args.batch_size, **how), dict[int, int]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.update()
    return lambda _: sum(kept.values()) / 1e6


def precision(args: Namespace) -> Works:
    """Full precision, TF32 and autocast."""
    ways: dict[str, dict[str, Any]] = {
        "float32": {"tf32": False},
        "TF32": {"gpu": True},
        "bfloat16 autocast": {"dtype": torch.bfloat16},
        "float16, GradScaler": {"gpu": True, "dtype": torch.float16},
    }
    memory = {way: partial(kept_for_backward, args, **how) for way, how in ways.items()}
    works = compare(args, ways, "forward", "update")
    return {**works, f"kept for backward, {args.batch_size} (MB)": memory}


def copies(args: Namespace) -> Works:
    """Batches from the CPU to the GPU."""
    ways = {
        "pageable": {"gpu": True, "pinned": False},
        "pinned": {"gpu": True, "pinned": True},
        "pinned, asynchronous": {"gpu": True, "pinned": True, "later": True},
    }
    return compare(args, ways, "copy", "update")


def calls(args: Namespace) -> Works:
    """Small requests to a device."""
    small = torch.zeros(32, 512, device=args.device)
    micro = partial(timed, count=1e-3)  # microseconds

    def kernels(count: int, graph: bool = False) -> Measure:
        if graph:
            need_gpu(args.device)
        call = lambda: [small.add_(1) for _ in range(count)]  # noqa: E731
        return micro(cuda_graph(call) if graph else call)

    ways: dict[str, Callable[[], Measure]] = {
        "a kernel": partial(kernels, 1),
        "20 kernels": partial(kernels, 20),
        "20 kernels, a CUDA graph": partial(kernels, 20, graph=True),
        "a new tensor": partial(micro, lambda: torch.empty_like(small)),
        "a number to the CPU": partial(micro, small[0, 0].item),
    }
    return {"a call (us)": ways}


def contiguous(net: Any) -> Any:
    """Undo the network's memory format."""

    def pixels(frames: torch.Tensor) -> torch.Tensor:
        scaled = frames.to(torch.float32).mul_(1 / 255)
        return scaled.sub_(scaled.mean((1, 2, 3), keepdim=True))

    net.conv.to(memory_format=torch.contiguous_format)
    net.pixels = pixels
    return net


def new_relus(net: Any) -> Any:
    """Put activations into new tensors, not in place."""
    for layer in net.modules():
        if isinstance(layer, torch.nn.ReLU):
            layer.inplace = False
    return net


def details(args: Namespace) -> Works:
    """Details of the network and its update."""
    layouts = {"contiguous": {"change": contiguous}, "channels-last": {}}
    adams = {"by tensor": {"foreach": False, "fused": False}, "foreach": {"foreach": True}}
    adams |= {"fused": {"fused": True}}
    relus = {"new tensors": {"change": new_relus}, "in place": {}}
    works = compare(args, layouts, "update", what="memory format: ")
    works = {**works, **compare(args, adams, "update", what="Adam: ")}
    return {**works, **compare(args, relus, "update", what="ReLU: ")}
