"""Measure each optimisation of the network by itself, on the same data.

Every technique is a handful of ways to do one piece of work, timed by torch.utils.benchmark in
turn and repeatedly, so that a machine that drifts slows all of them alike. The first way is what
the others are compared with. What this machine cannot run is listed with the reason.

    python -m benchmarks techniques
    python -m benchmarks techniques --only optimizer precision --batch-size 128
"""

import argparse
import copy
import warnings
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from benchmarks.arguments import add_counts, add_out
from benchmarks.report import here, output_folder, spread, write_table
from benchmarks.timing import chosen_device, seconds_per_call
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch
from lib.running.machine import describe_machine, prepare_torch

SHAPE, ACTIONS = (4, 84, 84), 6  # Pong, as the rungs see it
DIFFERENT_BATCHES = 8
WARM_UP = 3  # calls before anything is timed: what is compiled or chosen by trial is ready then


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    names = list(TECHNIQUES)
    text = f"techniques to measure: {', '.join(names)} (default: all)"
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=text
    )
    parser.add_argument("--cuda", action="store_true", help="measure on the GPU")
    counts = {
        "repeats": (7, "measurements of each way"),
        "milliseconds": (300, "length of one measurement"),
        "batch-size": (32, "transitions of an update"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/techniques")


def run(args: argparse.Namespace) -> int:
    """Measure the techniques, write the table."""
    device, out = chosen_device(args.cuda), output_folder(args.out)
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of TorchScript
    prepare_torch(seed=0)
    works = [(name, task) for name in args.only for task in TECHNIQUES[name][0]]
    rows = []
    for technique, task in tqdm(works, unit="technique", disable=None):
        make = partial(Learner, device, args.batch_size)
        ways = {name: partial(make, **how) for name, how in TECHNIQUES[technique][1].items()}
        rows += measure(technique, task, ways, args.repeats, args.milliseconds / 1e3)
    title = f"Techniques one by one, on the {'GPU' if args.cuda else 'CPU'}"
    notes = [
        here(describe_machine(device)),
        f"Seed 0, updates of {args.batch_size}; {args.repeats} measurements of "
        f"{args.milliseconds} ms, in turn: medians (and ranges)",
        "Gain: how many times as fast as the first way, measurement by measurement",
    ]
    header = ["technique", "work", "way", "ms", "gain"]
    path = out / f"techniques{'-cuda' if args.cuda else ''}"
    print(write_table(path, title, header, rows, notes))
    print(f"written to {out}")
    return 0


def measure(
    technique: str,
    task: str,
    ways: dict[str, Callable[[], Any]],
    repeats: int,
    seconds: float,
) -> list[list[str]]:
    """Time a method of what each way makes, in turn; the rows of the table.

    A way that cannot be built, or fails in its first calls, is left out: its row says why.
    """
    times: dict[str, list[float]] = {way: [] for way in ways}
    calls: dict[str, Callable[[], Any]] = {}
    reasons: dict[str, str] = {}
    for way, make in ways.items():
        try:
            call = getattr(make(), task)
            for _ in range(WARM_UP):
                call()
            calls[way] = call
        except Exception as error:  # whatever it is, the other ways can go on
            reasons[way] = f"not run: {' '.join(str(error).split())[:160]}"
    for repeat in range(repeats):
        first = repeat % max(len(calls), 1)  # another one begins every time
        for way in [*calls][first:] + [*calls][:first]:
            times[way].append(1e3 * seconds_per_call(calls[way], seconds))
    base = next(iter(times.values()))
    return [
        [
            *(technique, task, way, reasons.get(way) or spread(spent, 3)),
            spread([one / other for one, other in zip(base, spent, strict=False)], 2),
        ]
        for way, spent in times.items()
    ]


class Learner:
    """A network, its target network and its optimizer, at work on random batches.

    Args:
        device: where it learns.
        batch_size: transitions of an update.
        dtype: of autocast, if it works under that.
        scale: keep float16 gradients from vanishing.
        channels_last: the memory format of convolutions.
        compiled: changes the networks, but not the update; 06 compiles that.
        copies: batches come from the CPU: "pageable" memory, or "pinned" without waiting.
        adam: how it goes through its parameters.

    Raises:
        RuntimeError: this works on a GPU alone.
    """

    def __init__(
        self,
        device: torch.device,
        batch_size: int,
        dtype: torch.dtype | None = None,
        scale: bool = False,
        channels_last: bool = True,
        compiled: Callable[[nn.Module], Any] = lambda network: network,
        copies: str = "",
        **adam: bool,
    ) -> None:
        if (scale or copies) and device.type != "cuda":
            raise RuntimeError("without --cuda")
        self.device, self.dtype, self.pinned = device, dtype, copies == "pinned"
        torch.manual_seed(0)  # the same weights and batches for every way
        network = (DQN if channels_last else ChannelsFirst)(SHAPE, ACTIONS).to(device)
        adam = adam or {"fused": True}  # as the rungs do
        self.optimizer = torch.optim.Adam(network.parameters(), 1e-4, **adam)
        self.net, self.target = compiled(network), compiled(copy.deepcopy(network))
        self.scaler = torch.amp.GradScaler(device.type, enabled=scale)
        batches = [random_batch(batch_size) for _ in range(DIFFERENT_BATCHES)]
        if self.pinned:
            batches = [Batch(*(tensor.pin_memory() for tensor in batch)) for batch in batches]
        self.batches = cycle(batches if copies else map(self.copied, batches))
        self.update()  # gradients to step with

    def copied(self, batch: Batch) -> Batch:
        """A batch on the device."""
        return Batch(*(tensor.to(self.device, non_blocking=self.pinned) for tensor in batch))

    def copy(self) -> None:
        """Copy a batch to the device."""
        self.copied(next(self.batches))

    def forward(self) -> None:
        """Value the states of a batch, without gradients."""
        with torch.no_grad(), self.autocast():
            self.net(next(self.batches).states)

    def update(self) -> None:
        """What a rung does with a batch."""
        batch = self.copied(next(self.batches))
        # New rewards every time: on batches learned by heart the gradients become denormal
        # numbers, which are slow.
        batch = batch._replace(rewards=torch.randn_like(batch.rewards))
        self.optimizer.zero_grad()
        with self.autocast():
            with torch.no_grad():
                next_q = self.target(batch.next_states)
            loss = bellman_loss(self.net(batch.states), next_q, batch, 0.99)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def step(self) -> None:
        """Adam alone, with the gradients of the last update."""
        self.optimizer.step()

    def autocast(self) -> torch.autocast:
        """The precision that was asked for."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)


class ChannelsFirst(DQN):
    """The network without its memory format."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.conv.to(memory_format=torch.contiguous_format)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """As the network's."""
        return self.fc(self.conv(frames.to(torch.float32).mul_(1 / 255)))


def random_batch(size: int) -> Batch:
    """A batch of noise on the CPU."""
    states, next_states = torch.randint(0, 256, (2, size, *SHAPE), dtype=torch.uint8)
    actions = torch.randint(0, ACTIONS, (size,))
    return Batch(states, actions, torch.randn(size), torch.rand(size) < 0.01, next_states)


def torch_script(network: nn.Module) -> Any:
    """The network, traced."""
    device = next(network.parameters()).device
    return torch.jit.trace(network, torch.zeros((1, *SHAPE), dtype=torch.uint8, device=device))


# Technique -> the methods of a learner that are timed, and how the learner is made in each way.
TECHNIQUES: dict[str, tuple[tuple[str, ...], dict[str, dict[str, Any]]]] = {
    "memory-format": (
        ("forward", "update"),
        {"contiguous": {"channels_last": False}, "channels-last": {}},
    ),
    "precision": (
        ("forward", "update"),
        {
            "float32 (on a GPU with TF32)": {},
            "bfloat16 autocast": {"dtype": torch.bfloat16},
            "float16 autocast, scaled": {"dtype": torch.float16, "scale": True},
        },
    ),
    "compilation": (
        ("forward", "update"),
        {
            "eager": {},
            "TorchScript": {"compiled": torch_script},
            "torch.compile": {"compiled": torch.compile},
        },
    ),
    "optimizer": (
        ("step", "update"),
        {
            "tensor by tensor": {"foreach": False, "fused": False},
            "foreach": {"foreach": True},
            "fused": {"fused": True},
        },
    ),
    "copies": (
        ("copy", "update"),
        {
            "pageable": {"copies": "pageable"},
            "pinned, non-blocking": {"copies": "pinned"},
        },
    ),
}
