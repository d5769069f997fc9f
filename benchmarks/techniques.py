"""Measure each optimisation of the network by itself, on the same data.

Every technique is a handful of ways to do one piece of work, timed by torch.utils.benchmark in
turn and repeatedly, so that a machine that drifts slows all of them alike. The first way is what
the others are compared with.

    python -m benchmarks techniques
    python -m benchmarks techniques --only optimizer precision --batch-size 128
"""

import argparse
import copy
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
    names, text = list(TECHNIQUES), "techniques to measure (default: all)"
    parser.add_argument("--only", nargs="+", choices=names, default=names, help=text)
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
    prepare_torch(seed=0)
    works = [(name, task) for name in args.only for task in TECHNIQUES[name][0]]
    rows = []
    for technique, task in tqdm(works, unit="technique", disable=None):
        make = partial(Learner, device, args.batch_size)
        ways = {name: partial(make, **how) for name, how in TECHNIQUES[technique][1].items()}
        rows += [
            [technique, task, *r] for r in measure(ways, task, args.repeats, args.milliseconds)
        ]
    notes = [
        here(describe_machine(device)),
        f"Seed 0, updates of {args.batch_size}; {args.repeats} measurements of "
        f"{args.milliseconds} ms, in turn: medians (and ranges)",
        "Gain: how many times as fast as the first way, measurement by measurement",
    ]
    title = f"Techniques one by one, on {device}"
    header = ["technique", "work", "way", "ms", "gain"]
    print(write_table(out / f"techniques-{device}", title, header, rows, notes))
    return 0


def measure(
    ways: dict[str, Callable[[], Any]], task: str, repeats: int, milliseconds: int
) -> list[list[str]]:
    """Time a method of what each way makes, in turn: rows of way, milliseconds, gain.

    A way that fails in its first calls is left out, and its row says why.
    """
    calls: dict[str, Callable[[], Any]] = {}
    told: dict[str, str] = {}
    for way, make in ways.items():
        try:
            call = getattr(make(), task)
            for _ in range(WARM_UP):
                call()
            calls[way] = call
        except Exception as error:  # no compiler, for example: the other ways can go on
            told[way] = f"not run: {' '.join(str(error).split())[:160]}"
    times: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats):
        first = repeat % max(len(calls), 1)  # another one begins every time
        for way in [*calls][first:] + [*calls][:first]:
            times[way].append(1e3 * seconds_per_call(calls[way], milliseconds / 1e3))
    base = next(iter(times.values()))
    gains = {way: [one / own for one, own in zip(base, times[way], strict=False)] for way in ways}
    return [[way, told.get(way) or spread(times[way], 3), spread(gains[way], 2)] for way in ways]


class Learner:
    """A network, its target network and its optimizer, at work on random batches.

    Args:
        device: where it learns.
        batch_size: transitions of an update.
        network: makes the network.
        compiled: changes the networks, but not the update; 06 compiles that.
        dtype: of autocast; None: float32.
        adam: how it goes through its parameters.
    """

    def __init__(
        self,
        device: torch.device,
        batch_size: int,
        network: Callable[..., nn.Module] = DQN,
        compiled: Callable[[nn.Module], Any] = lambda network: network,
        dtype: torch.dtype | None = None,
        **adam: bool,
    ) -> None:
        torch.manual_seed(0)  # the same weights and batches for every way
        net, adam = network(SHAPE, ACTIONS).to(device), adam or {"fused": True}  # as the rungs do
        self.optimizer = torch.optim.Adam(net.parameters(), 1e-4, **adam)
        self.net, self.target = compiled(net), compiled(copy.deepcopy(net))
        batches = [random_batch(batch_size) for _ in range(DIFFERENT_BATCHES)]
        self.batches = cycle(Batch(*(tensor.to(device) for tensor in one)) for one in batches)
        self.autocast = partial(torch.autocast, device.type, dtype, enabled=dtype is not None)
        self.update()  # gradients to step with

    def forward(self) -> None:
        """Value the states of a batch, without gradients."""
        with torch.no_grad(), self.autocast():
            self.net(next(self.batches).states)

    def update(self) -> None:
        """What a rung does with a batch."""
        batch = next(self.batches)
        # New rewards every time: on batches learned by heart the gradients become denormal
        # numbers, which are slow.
        batch = batch._replace(rewards=torch.randn_like(batch.rewards))
        self.optimizer.zero_grad()
        with self.autocast():
            with torch.no_grad():
                next_q = self.target(batch.next_states)
            loss = bellman_loss(self.net(batch.states), next_q, batch, 0.99)
        loss.backward()
        self.optimizer.step()

    def step(self) -> None:
        """Adam alone, with the gradients of the last update."""
        self.optimizer.step()


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


# Technique -> the methods of a learner that are timed, and how the learner is made in each way.
BOTH = ("forward", "update")
TECHNIQUES: dict[str, tuple[tuple[str, ...], dict[str, dict[str, Any]]]] = {
    "memory-format": (BOTH, {"contiguous": {"network": ChannelsFirst}, "channels-last": {}}),
    "precision": (BOTH, {"float32": {}, "bfloat16 autocast": {"dtype": torch.bfloat16}}),
    "compilation": (BOTH, {"eager": {}, "torch.compile": {"compiled": torch.compile}}),
    "optimizer": (
        ("step", "update"),
        {
            "tensor by tensor": {"foreach": False, "fused": False},
            "foreach": {"foreach": True},
            "fused": {"fused": True},
        },
    ),
}
