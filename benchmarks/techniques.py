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
from benchmarks.measuring import chosen_device, seconds_per_call
from benchmarks.report import here, made, spread, write_table
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch
from lib.training.machine import describe_machine, prepare_torch

SHAPE, ACTIONS = (4, 84, 84), 6  # Pong, as the rungs see it
DIFFERENT_BATCHES = 8


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
    device, out = chosen_device(args.cuda), made(args.out)
    prepare_torch(seed=0)
    works = [(name, task) for name in args.only for task in TECHNIQUES[name][0]]
    rows = []
    for technique, task in tqdm(works, unit="technique", disable=None):
        make = partial(learner, device, args.batch_size)
        ways = {name: partial(make, **how) for name, how in TECHNIQUES[technique][1].items()}
        measured = measure(ways, task, args.repeats, args.milliseconds)
        rows += [[technique, task, *cells] for cells in measured]
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
    """Time a work of what each way makes, in turn: rows of way, milliseconds, gain.

    A way that fails in its first call is left out, and its row says why.
    """
    calls: dict[str, Callable[[], Any]] = {}
    told: dict[str, str] = {}
    for way, make in ways.items():
        try:
            call = make()[task]
            call()  # compiles
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


def learner(
    device: torch.device,
    batch_size: int,
    network: Callable[..., nn.Module] = DQN,
    compiled: Callable[[nn.Module], Any] = lambda network: network,
    dtype: torch.dtype | None = None,
    **adam: bool,
) -> dict[str, Callable[[], Any]]:
    """The work of a network, its target network and its optimizer, on random batches.

    ``compiled`` changes the networks, but not the update, which 06 compiles; ``dtype`` is that of
    autocast; ``adam`` says how it goes through its parameters.
    """
    torch.manual_seed(0)  # the same weights and batches for every way
    net = network(SHAPE, ACTIONS).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4, **(adam or {"fused": True}))
    net, target = compiled(net), compiled(copy.deepcopy(net))
    batches = cycle([random_batch(batch_size, device) for _ in range(DIFFERENT_BATCHES)])
    autocast = partial(torch.autocast, device.type, dtype, enabled=dtype is not None)

    def forward() -> None:
        with torch.no_grad(), autocast():
            net(next(batches).states)

    def update() -> None:
        batch = next(batches)
        # New rewards every time: on batches learned by heart the gradients become denormal
        # numbers, which are slow.
        batch = batch._replace(rewards=torch.randn_like(batch.rewards))
        optimizer.zero_grad()
        with autocast():
            with torch.no_grad():
                next_q = target(batch.next_states)
            loss = bellman_loss(net(batch.states), next_q, batch, 0.99)
        loss.backward()
        optimizer.step()

    update()  # gradients to step with
    return {"forward": forward, "update": update, "step": optimizer.step}


class ChannelsFirst(DQN):
    """The network without its memory format."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.conv.to(memory_format=torch.contiguous_format)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """As the network's."""
        return self.fc(self.conv(frames.to(torch.float32).mul_(1 / 255)))


def random_batch(size: int, device: torch.device) -> Batch:
    """A batch of noise."""
    states, next_states = torch.randint(0, 256, (2, size, *SHAPE), dtype=torch.uint8)
    actions, ends = torch.randint(0, ACTIONS, (size,)), torch.rand(size) < 0.01
    noise = states, actions, torch.randn(size), ends, next_states
    return Batch(*(tensor.to(device) for tensor in noise))


# Technique -> the works of a learner that are timed, and how the learner is made in each way.
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
