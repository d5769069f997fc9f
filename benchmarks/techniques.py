"""Measure each optimisation by itself, on the same network and the same data.

Every technique is a handful of ways to do one piece of work, timed by torch.utils.benchmark in
turn and repeatedly, so that a machine that drifts slows all of them alike. The first way is what
the others are compared with. What this machine cannot run is listed with the reason.

    python -m benchmarks techniques
    python -m benchmarks techniques --only optimizer precision --batch-size 128
"""

import argparse
import copy
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ale_py import AtariVectorEnv
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from torch import nn
from tqdm import tqdm

from benchmarks import charts
from benchmarks.arguments import add_counts, add_out
from benchmarks.report import here, output_folder, short_machine, spread, write_table
from benchmarks.timing import chosen_device, seconds_per_call, warm
from lib.games.atari_wrappers import make_atari, wrap_deepmind
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch
from lib.running.machine import describe_machine, prepare_torch

ENV, SHAPE, ACTIONS = "PongNoFrameskip-v4", (4, 84, 84), 6  # as the rungs see it
DIFFERENT_BATCHES = 8

Way = tuple[Callable[[], Any], int]  # the work, and how many things a call does


class NotRun(Exception):  # noqa: N818, it is no error
    """This machine cannot do it in this way; the message says why."""


@dataclass
class Result:
    """What was measured of one way to do a piece of work, or why nothing was."""

    technique: str
    work: str
    way: str
    rates: list[float] = field(default_factory=list)  # things per second
    reason: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    names = [*TECHNIQUES, "environments"]
    text = f"techniques to measure: {', '.join(names)} (default: all)"
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=text
    )
    parser.add_argument("--cuda", action="store_true", help="measure on the GPU")
    counts = {
        "repeats": (7, "measurements of each way"),
        "milliseconds": (300, "length of one measurement"),
        "batch-size": (32, "transitions of an update"),
        "envs": (4, "environments in a vector"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/techniques")


def run(args: argparse.Namespace) -> int:
    """Measure the techniques, write table and chart."""
    device, out = chosen_device(args.cuda), output_folder(args.out)
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of TorchScript
    prepare_torch(seed=0)
    results: list[Result] = []
    for technique in tqdm(args.only, unit="technique", disable=None):
        with ExitStack() as cleanup:
            if technique == "environments":
                works = {"step": environments(args.envs, cleanup)}
            else:
                learner = partial(Learner, device, args.batch_size)
                ways, tasks = TECHNIQUES[technique](learner)
                works = {task: at_work(ways, task) for task in tasks}
            for work, builds in works.items():
                results += measure(technique, work, builds, args.repeats, args.milliseconds / 1e3)
    machine = describe_machine(device)
    title = f"Techniques one by one, on the {'GPU' if args.cuda else 'CPU'}"
    path = out / f"techniques{'-cuda' if args.cuda else ''}"
    notes = [
        here(machine),
        f"Seed 0, updates of {args.batch_size}, {args.envs} environments; {args.repeats} "
        f"measurements of {args.milliseconds} ms, in turn: medians (and ranges)",
        "Gain: how many times as fast as the first way, repeat by repeat",
        "Environments: random actions; the states come as arrays, and games begin anew at once",
    ]
    rows, bars = [], []
    for base, one in zip(firsts(results), results, strict=True):
        pairs = zip(one.rates, base.rates, strict=False)  # none if one of them was not run
        gains = [rate / first for rate, first in pairs]
        told = spread([1e3 / rate for rate in one.rates], 3) or f"not run: {one.reason}"
        rows.append([one.technique, one.work, one.way, told, spread(gains, 2)])
        label = f"{one.technique} / {one.work}: {one.way}"
        bars.append(charts.Bar(label, gains, one.technique, told))
    header = ["technique", "work", "way", "ms (of an environment's step)", "gain"]
    print(write_table(path, title, header, rows, notes))
    unit = "gain: times as fast as the first way (bar: median, line: min to max)"
    charts.bar_chart(path.with_suffix(".png"), title, unit, bars, short_machine(machine))
    print(f"written to {out}")
    return 0


def firsts(results: list[Result]) -> list[Result]:
    """For each result that of the first way to do the same work."""
    first: dict[tuple[str, str], Result] = {}
    return [first.setdefault((one.technique, one.work), one) for one in results]


def measure(
    technique: str, work: str, builds: dict[str, Callable[[], Way]], repeats: int, seconds: float
) -> list[Result]:
    """Time the ways to do a piece of work, in turn; one that cannot be built is left out."""
    results = {way: Result(technique, work, way) for way in builds}
    built: list[tuple[Result, Way]] = []
    for name, build in builds.items():
        try:
            call, count = build()
            built.append((results[name], (warm(call), count)))
        except Exception as error:  # whatever it is, the other ways can go on
            text = " ".join(str(error).split())
            reason = text if isinstance(error, NotRun) else f"{type(error).__name__}: {text}"
            results[name].reason = reason[:160]
    for repeat in range(repeats):
        first = repeat % max(len(built), 1)  # another one begins every time
        for result, (call, count) in built[first:] + built[:first]:
            result.rates.append(count / seconds_per_call(call, seconds))
    return list(results.values())


class Learner:
    """A network, its target network and its optimizer, at work on random batches.

    It works under autocast to ``dtype``, if there is one. ``scale`` keeps float16 gradients from
    vanishing; ``adam`` says how Adam goes through its parameters. If batches are not ``ready`` on
    the device, each is copied there, ``non_blocking`` from pinned memory.
    """

    def __init__(
        self,
        device: torch.device,
        batch_size: int,
        network: Callable[..., nn.Module] = DQN,
        dtype: torch.dtype | None = None,
        scale: bool = False,
        ready: bool = True,
        non_blocking: bool = False,
        **adam: bool,
    ) -> None:
        self.device, self.dtype, self.non_blocking = device, dtype, non_blocking
        torch.manual_seed(0)  # the same weights and batches for every way
        self.net = network(SHAPE, ACTIONS).to(device)
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-4, **(adam or {"fused": True}))
        self.scaler = torch.amp.GradScaler(device.type, enabled=scale)
        batches = [random_batch(batch_size) for _ in range(DIFFERENT_BATCHES)]
        if non_blocking:
            batches = [Batch(*(tensor.pin_memory() for tensor in batch)) for batch in batches]
        self.batches = cycle(map(self.copied, batches) if ready else batches)

    def copied(self, batch: Batch) -> Batch:
        """A batch on the device."""
        return Batch(*(tensor.to(self.device, non_blocking=self.non_blocking) for tensor in batch))

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
        """Adam alone, with the gradients of an update."""
        if self.net.fc[0].weight.grad is None:
            self.update()
        self.optimizer.step()

    def autocast(self) -> torch.autocast:
        """The precision that was asked for."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)


def random_batch(size: int) -> Batch:
    """A batch of noise on the CPU."""
    states, next_states = torch.randint(0, 256, (2, size, *SHAPE), dtype=torch.uint8)
    actions = torch.randint(0, ACTIONS, (size,))
    return Batch(states, actions, torch.randn(size), torch.rand(size) < 0.01, next_states)


class ChannelsFirst(DQN):
    """The network without its memory format."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.conv.to(memory_format=torch.contiguous_format)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """As the network's."""
        return self.fc(self.conv(frames.to(torch.float32).mul_(1 / 255)))


Make = Callable[..., Learner]
Ways = tuple[dict[str, Callable[[], Learner]], tuple[str, ...]]  # and the methods to be timed


def on_gpu(learner: Make, **how: Any) -> Callable[[], Learner]:
    """Makes a learner, if there is a GPU to work on."""

    def build() -> Learner:
        if learner.args[0].type != "cuda":
            raise NotRun("without --cuda" if torch.cuda.is_available() else "no GPU")
        return learner(**how)

    return build


def memory_format(learner: Make) -> Ways:
    """Contiguous against channels-last."""
    ways = {"contiguous": partial(learner, network=ChannelsFirst), "channels-last": learner}
    return ways, ("forward", "update")


def precision(learner: Make) -> Ways:
    """float32 (on a GPU with TF32) against autocast; the CPU has no gradients for float16."""
    ways = {
        "float32": learner,
        "bfloat16 autocast": partial(learner, dtype=torch.bfloat16),
        "float16 autocast, scaled": on_gpu(learner, dtype=torch.float16, scale=True),
    }
    return ways, ("forward", "update")


def compilation(learner: Make) -> Ways:
    """Eager against TorchScript and torch.compile, of the networks alone; 06 compiles updates."""

    def changed(change: Callable[[nn.Module], Any]) -> Learner:
        made = learner()
        made.step()  # TorchScript's network has no parts to look into
        made.net, made.target = change(made.net), change(made.target)
        return made

    def compiled() -> Learner:
        if not (shutil.which("g++") or shutil.which("clang++")):
            raise NotRun("no C++ compiler")
        return changed(torch.compile)

    def traced(net: nn.Module) -> Any:
        device = next(net.parameters()).device
        return torch.jit.trace(net, torch.zeros((1, *SHAPE), dtype=torch.uint8, device=device))

    ways = {"eager": learner, "TorchScript": lambda: changed(traced), "torch.compile": compiled}
    return ways, ("forward", "update")


def optimizer(learner: Make) -> Ways:
    """Adam tensor by tensor, by lists of tensors, and fused."""
    ways = {
        "tensor by tensor": partial(learner, foreach=False, fused=False),
        "foreach": partial(learner, foreach=True),
        "fused": partial(learner, fused=True),
    }
    return ways, ("step", "update")


def copies(learner: Make) -> Ways:
    """Batches to the GPU: from pageable memory, or from pinned memory without waiting."""
    pinned = on_gpu(learner, ready=False, non_blocking=True)
    ways = {"pageable": on_gpu(learner, ready=False), "pinned, non-blocking": pinned}
    return ways, ("copy", "update")


TECHNIQUES = {
    technique.__name__.replace("_", "-"): technique
    for technique in (memory_format, precision, compilation, optimizer, copies)
}


def at_work(ways: dict[str, Callable[[], Learner]], task: str) -> dict[str, Callable[[], Way]]:
    """A method of each learner."""
    return {name: lambda make=make: (getattr(make(), task), 1) for name, make in ways.items()}


def random_play(seed: int) -> Callable[[], np.ndarray]:
    """Plays a random step of Pong as 01 does, and begins anew what ends; returns the state."""
    env = wrap_deepmind(make_atari(ENV))
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)

    def step() -> np.ndarray:
        state, _, terminated, truncated, _ = env.step(int(rng.integers(ACTIONS)))
        if terminated or truncated:
            env.reset()
        return np.asarray(state)

    return step


def environments(n: int, cleanup: ExitStack) -> dict[str, Callable[[], Way]]:
    """Several environments in turn, in processes, in threads, in C++."""

    def threads() -> Way:
        steps = [random_play(seed) for seed in range(n)]
        pool = cleanup.enter_context(ThreadPoolExecutor(n))
        return lambda: list(pool.map(lambda step: step(), steps)), n

    def vector(make: Callable[..., gym.vector.VectorEnv], *args: Any, **how: Any) -> Way:
        envs = make(*args, **how)
        cleanup.callback(envs.close)
        envs.reset(seed=0)
        rng = np.random.default_rng(0)
        return lambda: envs.step(rng.integers(ACTIONS, size=n)), n

    make_envs = [lambda: wrap_deepmind(make_atari(ENV))] * n
    return {
        "one": lambda: (random_play(0), 1),
        f"{n} in turn (SyncVectorEnv)": lambda: vector(SyncVectorEnv, make_envs),
        f"{n} processes": lambda: vector(AsyncVectorEnv, make_envs, context="spawn"),
        f"{n} threads": threads,
        f"{n} in C++ (AtariVectorEnv)": lambda: vector(
            AtariVectorEnv, "pong", n, episodic_life=True
        ),
    }
