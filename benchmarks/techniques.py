"""Each optimisation by itself, on the same network and the same data.

Every technique is a handful of alternatives for one piece of work, measured in turn and
repeatedly, so that a machine that drifts slows all of them alike. The first alternative is
what the others are compared with. What this machine cannot run is listed with the reason.
"""

import argparse
import copy
import shutil
import sys
import tracemalloc
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, groupby
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import gymnasium as gym
import matplotlib
import numpy as np
import psutil
import torch
from ale_py import AtariVectorEnv
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from torch import nn
from tqdm import tqdm

from benchmarks.report import machine_line, write_table
from lib.arguments import Hyperparams
from lib.atari_wrappers import LazyFrames, make_atari, wrap_deepmind
from lib.dqn_model import DQN, adam
from lib.experience import Transition
from lib.loss import bellman_loss
from lib.replay_buffer import Batch, ReplayBuffer
from lib.run import _keep_freed_memory, prepare_torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DEFAULTS = Hyperparams()
SHAPE, ACTIONS = (4, 84, 84), 6  # Pong, as the rungs see it
DIFFERENT_BATCHES = 8
EPISODE = 1_000  # transitions of the made-up games
WARM_UP = 3  # calls before anything is timed

Measure = Callable[[], float]  # measures once


class NotRun(Exception):  # noqa: N818, it is no error
    """This machine cannot run an alternative; the message says why."""


@dataclass
class Settings:
    """What the alternatives are built from."""

    batch_size: int
    device: torch.device
    seconds: float  # of one measurement
    envs: int
    transitions: int
    cleanup: ExitStack = field(default_factory=ExitStack)


@dataclass(frozen=True)
class Alternative:
    """One way to do a piece of work."""

    task: str
    name: str
    build: Callable[[], Measure]  # may raise
    unit: str = "ms"  # "... per second": more is better; anything else: less is


@dataclass
class Result:
    """What was measured of an alternative, or why nothing was."""

    technique: str
    alternative: Alternative
    values: list[float]
    reason: str = ""
    relative: list[float] = field(default_factory=list)  # speed against the first alternative


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument(
        "--only", nargs="+", choices=list(TECHNIQUES), metavar="NAME", default=list(TECHNIQUES),
        help="techniques to measure: " + ", ".join(TECHNIQUES) + " (default: all)",
    )  # fmt: skip
    parser.add_argument("--cuda", action="store_true", help="measure on the GPU")
    parser.add_argument("--repeats", type=int, default=7, help="measurements of each (default: 7)")
    parser.add_argument("--batch-size", type=int, default=32, help="of an update (default: 32)")
    parser.add_argument("--envs", type=int, default=4, help="environments in a vector (default: 4)")
    parser.add_argument(
        "--transitions", type=int, default=10_000,
        help="transitions in the replay buffers that are compared (default: 10000)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="length of one measurement (default: 0.3)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/benchmarks"), help="folder of table and figure"
    )


def run(args: argparse.Namespace) -> int:
    """Measure the techniques, write table and figure."""
    if min(args.repeats, args.batch_size, args.envs, args.transitions) < 1 or args.seconds <= 0:
        print(
            "techniques: error: --repeats, --batch-size, --envs, --transitions and --seconds "
            "must be positive",
            file=sys.stderr,
        )
        return 2
    if args.cuda and not torch.cuda.is_available():
        print("techniques: error: --cuda: torch finds no usable GPU here", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of TorchScript
    prepare_torch(seed=0)
    device = torch.device("cuda" if args.cuda else "cpu")
    results: list[Result] = []
    bar = tqdm(total=len(args.only) * args.repeats, unit="round", disable=None)
    for technique in args.only:
        settings = Settings(
            args.batch_size, device, args.seconds, args.envs, args.transitions
        )  # fmt: skip
        bar.set_description(technique)
        with settings.cleanup:
            alternatives = TECHNIQUES[technique](settings)
            results += measure(technique, alternatives, args.repeats, bar.update)
    bar.close()

    args.out.mkdir(parents=True, exist_ok=True)
    suffix = "-cuda" if args.cuda else ""
    title = f"Techniques one by one, on the {'GPU' if args.cuda else 'CPU'}"
    notes = [
        f"machine: {machine_line()}",
        f"seed 0, batch of {args.batch_size}, {args.envs} environments, "
        f"{args.transitions:,} transitions; {args.repeats} measurements of {args.seconds:g} "
        "seconds each, the alternatives in turn",
        f"updates take turns with {DIFFERENT_BATCHES} batches and see new rewards every time: "
        "on one batch learned by heart the gradients become denormal numbers, which are slow",
        "speed is relative to the first alternative of its work, repeat by repeat; the spread "
        "is the smallest and the largest of the repeats",
    ]
    write_table(args.out / f"techniques{suffix}", title, HEADER, [row(r) for r in results], notes)
    draw(results, args.out / f"techniques{suffix}.png", title)
    for result in results:
        print("  ".join(cell for cell in row(result) if cell))
    print(f"wrote {args.out}/techniques{suffix}.md, .csv and .png")
    return 0


HEADER = ["technique", "work", "alternative", "median", "spread", "unit", "speed", "speed spread"]


def row(result: Result) -> list[str]:
    """A line of the table."""
    alternative = result.alternative
    cells = [result.technique, alternative.task, alternative.name]
    if not result.values:
        return [*cells, "not run", "", "", "", result.reason]
    speeds = result.relative
    return [
        *cells,
        f"{median(result.values):,.4g}",
        f"{min(result.values):,.4g} to {max(result.values):,.4g}",
        alternative.unit,
        f"{median(speeds):.2f} x" if speeds else "",
        f"{min(speeds):.2f} to {max(speeds):.2f}" if speeds else "",
    ]


def measure(
    technique: str,
    alternatives: Sequence[Alternative],
    repeats: int,
    progress: Callable[[], Any] = lambda: None,
) -> list[Result]:
    """Measure the alternatives of a technique in turn, as often as asked for."""
    results, measures = [], []
    for alternative in alternatives:
        result = Result(technique, alternative, [])
        results.append(result)
        try:
            measures.append((result, alternative.build()))
        except Exception as error:  # whatever it is, the other alternatives can go on
            result.reason = one_line(error)
    for repeat in range(repeats):
        first = repeat % max(len(measures), 1)  # another one begins every time
        for result, once in measures[first:] + measures[:first]:
            if result.reason:
                continue
            try:
                result.values.append(once())
            except Exception as error:
                result.values, result.reason = [], one_line(error)
        progress()
    for _, same_work in groupby(results, key=lambda result: result.alternative.task):
        baseline, *others = same_work
        for result in (baseline, *others):
            pairs = zip(result.values, baseline.values, strict=False)
            faster = result.alternative.unit.endswith("per second")
            result.relative = [a / b if faster else b / a for a, b in pairs]
    return results


def one_line(error: Exception) -> str:
    """Say what went wrong in a table cell."""
    text = " ".join(str(error).split())
    if isinstance(error, NotRun):
        return text
    return f"{type(error).__name__}: {text}"[:160]


def milliseconds(work: Callable[[], Any], settings: Settings, device: Any = None) -> Measure:
    """Warm up, find out how often the work fits into a measurement, and return what measures."""
    device = torch.device(device or settings.device)

    def timed(calls: int) -> float:
        finish(device)
        begin = perf_counter()
        for _ in range(calls):
            work()
        finish(device)
        return (perf_counter() - begin) / calls

    timed(WARM_UP)
    calls = max(1, round(settings.seconds / timed(WARM_UP)))
    return lambda: timed(calls) * 1e3


def finish(device: torch.device) -> None:
    """Wait for what the GPU was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def need_gpu(settings: Settings) -> None:
    """Raise unless this measures on a GPU."""
    if not torch.cuda.is_available():
        raise NotRun("no GPU")
    if settings.device.type != "cuda":
        raise NotRun("without --cuda")


# The network at work ---------------------------------------------------------------------


class Learner:
    """A network, its target network and its optimizer, at work on random batches.

    Args:
        settings: batch size and, unless another is given, the device.
        network: makes the network.
        optimizer: makes the optimizer.
        dtype: of autocast; None for full precision.
        scale: the loss, so that float16 gradients do not vanish.
        device: instead of that of the settings.
    """

    def __init__(
        self,
        settings: Settings,
        network: Callable[..., nn.Module] = DQN,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
        dtype: torch.dtype | None = None,
        scale: bool = False,
        device: Any = None,
    ) -> None:
        self.device = torch.device(device or settings.device)
        torch.manual_seed(0)  # the same weights for every alternative
        self.net = network(SHAPE, ACTIONS).to(self.device)
        self.target = copy.deepcopy(self.net)
        make_optimizer = optimizer or partial(adam, learning_rate=DEFAULTS.learning_rate)
        self.optimizer = make_optimizer(self.net)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=scale)
        self.dtype = dtype
        batches = [random_batch(settings.batch_size, i) for i in range(DIFFERENT_BATCHES)]
        self.batches = cycle([to_device(batch, self.device) for batch in batches])

    def forward(self) -> None:
        """Value the states of a batch, as for choosing actions."""
        with torch.no_grad(), self.autocast():
            self.net(next(self.batches).states)

    def update(self) -> None:
        """What a rung does with a batch."""
        batch = next(self.batches)
        self.learn(batch._replace(rewards=torch.randn_like(batch.rewards)))

    def learn(self, batch: Batch) -> None:
        """One gradient step."""
        self.optimizer.zero_grad()
        with self.autocast():
            with torch.no_grad():
                next_q = self.target(batch.next_states)
            loss = bellman_loss(self.net(batch.states), next_q, batch, DEFAULTS.gamma)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def autocast(self) -> torch.autocast:
        """The precision that was asked for."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)


def random_batch(size: int, seed: int) -> Batch:
    """A batch of noise on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randint(0, 256, (2, size, *SHAPE), dtype=torch.uint8, generator=generator)
    return Batch(
        states=states[0],
        actions=torch.randint(0, ACTIONS, (size,), generator=generator),
        rewards=torch.randn(size, generator=generator),
        terminated=torch.rand(size, generator=generator) < 0.01,
        next_states=states[1],
    )


def to_device(batch: Batch, device: torch.device, non_blocking: bool = False) -> Batch:
    """Copy every tensor of a batch."""
    return Batch(*(tensor.to(device, non_blocking=non_blocking) for tensor in batch))


def forward_and_update(
    settings: Settings, ways: dict[str, Callable[[], Learner]]
) -> list[Alternative]:
    """Measure both of each way to make a learner."""

    def build(make: Callable[[], Learner], task: str) -> Measure:
        learner = make()
        return milliseconds(getattr(learner, task), settings, learner.device)

    return [
        Alternative(task, name, partial(build, make, task))
        for task in ("forward", "update")
        for name, make in ways.items()
    ]


def device_technique(settings: Settings) -> list[Alternative]:
    """CPU against GPU."""

    def gpu(make: Callable[[Any], Measure]) -> Measure:
        need_gpu(settings)
        return make("cuda")

    def one_state(device: Any) -> Measure:
        learner = Learner(settings, device=device)
        state = random_batch(1, 0).states

        @torch.no_grad()
        def act() -> None:
            learner.net(state.to(learner.device)).argmax(1).cpu()

        return milliseconds(act, settings, device)

    def work(task: str, device: Any) -> Measure:
        learner = Learner(settings, device=device)
        return milliseconds(getattr(learner, task), settings, device)

    tasks = {
        "act on 1 state": one_state,
        "forward": partial(work, "forward"),
        "update": partial(work, "update"),
    }
    return [
        alternative
        for task, make in tasks.items()
        for alternative in (
            Alternative(task, "CPU", partial(make, "cpu")),
            Alternative(task, "GPU", partial(gpu, make)),
        )
    ]


class ChannelsFirst(DQN):
    """The network without its memory format."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.conv.to(memory_format=torch.contiguous_format)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """As the network's."""
        return self.fc(self.conv(frames.to(torch.float32).mul_(1 / 255)))


def memory_format(settings: Settings) -> list[Alternative]:
    """Contiguous against channels-last."""
    return forward_and_update(
        settings,
        {
            "contiguous": lambda: Learner(settings, ChannelsFirst),
            "channels-last": lambda: Learner(settings),
        },
    )


def precision(settings: Settings) -> list[Alternative]:
    """Full precision against autocast."""

    def half() -> Learner:
        need_gpu(settings)  # the CPU has no gradients worth having in float16
        return Learner(settings, dtype=torch.float16, scale=True)

    return forward_and_update(
        settings,
        {
            "float32": lambda: Learner(settings),
            "bfloat16 autocast": lambda: Learner(settings, dtype=torch.bfloat16),
            "float16 autocast, scaled": half,
        },
    )


class Replayed(Learner):
    """Forward pass and update as captured CUDA graphs, fed through tensors that stay in place."""

    def __init__(self, settings: Settings) -> None:
        need_gpu(settings)
        super().__init__(
            settings,
            optimizer=lambda net: torch.optim.Adam(
                net.parameters(), DEFAULTS.learning_rate, fused=True, capturable=True
            ),
        )
        self.static = Batch(*(tensor.clone() for tensor in next(self.batches)))
        self.forward_graph = self.capture(self.values)
        self.update_graph = self.capture(lambda: self.learn(self.static))

    def values(self) -> None:
        """The forward pass that is captured."""
        with torch.no_grad():
            self.net(self.static.states)

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Run the work a few times beside the main stream, as capturing wants it, and record it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad()  # the gradients are to come from the graph's own memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph

    def forward(self) -> None:
        """As Learner.forward."""
        self.static.states.copy_(next(self.batches).states)
        self.forward_graph.replay()

    def update(self) -> None:
        """As Learner.update."""
        for static, new in zip(self.static, next(self.batches), strict=True):
            static.copy_(new)
        self.static.rewards.normal_()
        self.update_graph.replay()


def compilation(settings: Settings) -> list[Alternative]:
    """Eager against TorchScript, torch.compile and a captured CUDA graph."""

    def scripted() -> Learner:
        learner = Learner(settings)
        learner.net, learner.target = (
            torch.jit.script(net) for net in (learner.net, learner.target)
        )
        return learner

    def compiled() -> Learner:
        if not (shutil.which("g++") or shutil.which("clang++")):
            raise NotRun("no C++ compiler")
        learner = Learner(settings)
        learner.net, learner.target = torch.compile(learner.net), torch.compile(learner.target)
        return learner

    return forward_and_update(
        settings,
        {
            "eager": lambda: Learner(settings),
            "TorchScript": scripted,
            "torch.compile": compiled,
            "CUDA graph": lambda: Replayed(settings),
        },
    )


def relu(settings: Settings) -> list[Alternative]:
    """ReLU into new memory against ReLU in place."""

    def new_memory(*args: Any) -> nn.Module:
        network = DQN(*args)
        for module in network.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False
        return network

    return forward_and_update(
        settings,
        {
            "new memory": lambda: Learner(settings, new_memory),
            "in place": lambda: Learner(settings),
        },
    )


def optimizer(settings: Settings) -> list[Alternative]:
    """Adam tensor by tensor, by lists of tensors, and fused."""
    kinds: dict[str, dict[str, bool]] = {
        "tensor by tensor": {"foreach": False, "fused": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }

    def build(kind: dict[str, bool], task: str) -> Measure:
        learner = Learner(
            settings,
            optimizer=lambda net: torch.optim.Adam(
                net.parameters(), DEFAULTS.learning_rate, **kind
            ),
        )
        learner.update()  # gradients to step with
        work = learner.optimizer.step if task == "step" else learner.update
        return milliseconds(work, settings)

    return [
        Alternative(task, name, partial(build, kind, task))
        for task in ("step", "update")
        for name, kind in kinds.items()
    ]


def copies(settings: Settings) -> list[Alternative]:
    """Batches to the GPU: pageable or pinned memory, blocking or not."""

    def build(pin: bool, non_blocking: bool, learn: bool) -> Measure:
        need_gpu(settings)
        learner = Learner(settings)
        batches = [random_batch(settings.batch_size, i) for i in range(DIFFERENT_BATCHES)]
        if pin:
            batches = [Batch(*(tensor.pin_memory() for tensor in batch)) for batch in batches]
        turns = cycle(batches)

        def work() -> None:
            batch = to_device(next(turns), learner.device, non_blocking)
            if learn:
                learner.learn(batch)

        return milliseconds(work, settings)

    ways = {
        "pageable, blocking": (False, False),
        "pinned, blocking": (True, False),
        "pinned, non-blocking": (True, True),
    }
    return [
        Alternative(task, name, partial(build, pin, non_blocking, learn))
        for task, learn in (("copy", False), ("copy and update", True))
        for name, (pin, non_blocking) in ways.items()
    ]


# Environments ----------------------------------------------------------------------------


def make_env() -> gym.Env:
    """Pong as the baseline plays it."""
    return wrap_deepmind(make_atari(DEFAULTS.env))


def environments(settings: Settings) -> list[Alternative]:
    """One environment against several: in turn, in processes, in threads, in ALE's own C++."""
    n = settings.envs

    def rate(step: Callable[[], Any], frames: int) -> Measure:
        measure_step = milliseconds(step, settings, "cpu")
        return lambda: frames / measure_step() * 1e3

    def stepper(env: gym.Env, seed: int) -> Callable[[], np.ndarray]:
        """Step and reset; an array comes back, as from the vector environments."""
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        settings.cleanup.callback(env.close)

        def step() -> np.ndarray:
            state, _, terminated, truncated, _ = env.step(int(rng.integers(ACTIONS)))
            if terminated or truncated:
                env.reset()
            return np.asarray(state)

        return step

    def one() -> Measure:
        return rate(stepper(make_env(), 0), 1)

    def vector(make: Callable[[], gym.vector.VectorEnv]) -> Measure:
        envs = make()
        settings.cleanup.callback(envs.close)
        envs.reset(seed=0)
        rng = np.random.default_rng(0)
        return rate(lambda: envs.step(rng.integers(ACTIONS, size=n)), n)

    def threads() -> Measure:
        steps = [stepper(make_env(), seed) for seed in range(n)]
        pool = settings.cleanup.enter_context(ThreadPoolExecutor(n))
        return rate(lambda: list(pool.map(lambda step: step(), steps)), n)

    def ale() -> gym.vector.VectorEnv:
        return AtariVectorEnv("pong", n, episodic_life=True)

    ways: dict[str, Callable[[], Measure]] = {
        "one": one,
        f"{n} in turn (SyncVectorEnv)": partial(vector, lambda: SyncVectorEnv([make_env] * n)),
        f"{n} processes (AsyncVectorEnv)": partial(
            vector, lambda: AsyncVectorEnv([make_env] * n, context="spawn")
        ),
        f"{n} threads": threads,
        f"{n} in C++ (AtariVectorEnv)": partial(vector, ale),
    }
    return [
        Alternative("step", name, build, "frames per second") for name, build in ways.items()
    ]  # fmt: skip


# Replay buffers --------------------------------------------------------------------------


class ObjectBuffer:
    """The usual replay buffer: a list with an object per transition, which holds both states.

    Args:
        capacity: transitions to hold.
        stack: makes a state of its frames; ``LazyFrames`` shares them between states.
        device: where batches go.
    """

    def __init__(self, capacity: int, stack: Callable[..., Any], device: Any) -> None:
        self.capacity, self.stack, self.device = capacity, stack, torch.device(device)
        self.entries: list[tuple[Any, int, float, bool, Any]] = []
        self.position = 0
        self.rng = np.random.default_rng(0)

    def append(self, transition: Transition) -> None:
        """Store a transition."""
        if transition.first_frame is not None:
            self.frames = deque([transition.first_frame] * SHAPE[0], maxlen=SHAPE[0])
            self.state = self.stack(self.frames)
        self.frames.append(transition.frame)
        next_state = self.stack(self.frames)
        entry = (
            self.state,
            transition.action,
            transition.reward,
            transition.terminated,
            next_state,
        )
        self.state = next_state
        if len(self.entries) < self.capacity:
            self.entries.append(entry)
        else:
            self.entries[self.position] = entry
        self.position = (self.position + 1) % self.capacity

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions."""
        picked = [self.entries[i] for i in self.rng.integers(len(self.entries), size=batch_size)]
        states, actions, rewards, terminated, next_states = zip(*picked, strict=True)
        batch = Batch(
            states=torch.from_numpy(np.stack([np.asarray(state) for state in states])),
            actions=torch.tensor(actions),
            rewards=torch.tensor(rewards, dtype=torch.float32),
            terminated=torch.tensor(terminated),
            next_states=torch.from_numpy(np.stack([np.asarray(state) for state in next_states])),
        )
        return to_device(batch, self.device)


def make_buffer(kind: str, capacity: int, device: Any = "cpu") -> ObjectBuffer | ReplayBuffer:
    """One of the buffers that are compared."""
    if kind == "list of arrays":
        return ObjectBuffer(capacity, np.concatenate, device)
    if kind == "list of lazy frames":
        return ObjectBuffer(capacity, LazyFrames, device)
    return ReplayBuffer(capacity, SHAPE, device)


BUFFERS = ("list of arrays", "list of lazy frames", "lib.ReplayBuffer")


def transitions(count: int) -> Iterator[Transition]:
    """Made-up experience of one environment; every frame is new memory, as from a game."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (64, 1, *SHAPE[1:]), dtype=np.uint8)
    for i in range(count):
        yield Transition(
            env=0,
            action=i % ACTIONS,
            reward=0.0,
            terminated=i % EPISODE == EPISODE - 1,
            frame=noise[i % 64].copy(),
            first_frame=noise[0].copy() if i % EPISODE == 0 else None,
            episode=None,
        )


def resident_bytes(kind: str, count: int) -> int:
    """By how much this process grows when it fills a buffer."""
    before = psutil.Process().memory_info().rss
    buffer = make_buffer(kind, count)
    for transition in transitions(count):
        buffer.append(transition)
    grown = psutil.Process().memory_info().rss - before
    del buffer  # not earlier
    return grown


def allocated_bytes(kind: str, count: int) -> int:
    """What a full buffer has asked for."""
    tracemalloc.start()
    buffer = make_buffer(kind, count)
    for transition in transitions(count):
        buffer.append(transition)
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del buffer
    return allocated


def replay(settings: Settings) -> list[Alternative]:
    """A list of objects against the lib's replay buffer."""

    def insert(kind: str) -> Measure:
        buffer = make_buffer(kind, settings.transitions)
        ready = list(transitions(min(EPISODE, settings.transitions)))

        def fill() -> None:
            for transition in ready:
                buffer.append(transition)

        measure_fill = milliseconds(fill, settings, "cpu")
        return lambda: len(ready) / measure_fill() * 1e3

    def sample(kind: str) -> Measure:
        buffer = make_buffer(kind, settings.transitions, settings.device)
        for transition in transitions(settings.transitions):
            buffer.append(transition)
        measure_sample = milliseconds(lambda: buffer.sample(settings.batch_size), settings)
        return lambda: 1e3 / measure_sample()

    def resident(kind: str) -> Measure:
        return lambda: in_fresh_process(resident_bytes, kind, settings.transitions) / 1e6

    def allocated(kind: str) -> Measure:
        count = min(settings.transitions, 2_000)  # tracing is slow, and it is exact
        return lambda: allocated_bytes(kind, count) / count

    tasks: list[tuple[str, Callable[[str], Measure], str]] = [
        ("insert", insert, "transitions per second"),
        ("sample", sample, "batches per second"),
        ("memory of a transition", allocated, "bytes"),
        ("resident memory when full", resident, "MB"),
    ]
    return [
        Alternative(task, kind, partial(make, kind), unit)
        for task, make, unit in tasks
        for kind in BUFFERS
    ]


# Settings of a process -------------------------------------------------------------------


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of this module in a process that has done nothing before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *args).result()


def fresh_update(batch_size: int, seconds: float, keep: bool, flush: bool, idle: bool) -> float:
    """Milliseconds of an update on the CPU, in a process with these settings.

    Args:
        batch_size: of the update.
        seconds: of the measurement.
        keep: freed memory stays in the process.
        flush: denormal numbers count as zero.
        idle: half of the hidden units are never active, and for so long that their moments
            in Adam have become denormal.
    """
    torch.set_flush_denormal(flush)
    if keep:
        _keep_freed_memory()
    settings = Settings(batch_size, torch.device("cpu"), seconds, envs=1, transitions=1)
    learner = Learner(settings)
    if idle:
        make_idle(learner)
    return milliseconds(learner.update, settings)()


def make_idle(learner: Learner) -> None:
    """Switch off half of the hidden units, as if it had been long ago."""
    hidden = learner.net.fc[0]
    half = hidden.out_features // 2
    with torch.no_grad():
        hidden.bias[:half] = -1e6
    learner.update()  # Adam makes its state
    for parameter in (hidden.weight, hidden.bias):
        state = learner.optimizer.state[parameter]
        state["exp_avg"][:half] = 1e-40
        state["exp_avg_sq"][:half] = 1e-40


def process_setting(
    settings: Settings, names: tuple[str, str], make: Callable[[bool], tuple[bool, bool, bool]]
) -> list[Alternative]:
    """Measure an update in fresh processes, with a setting off and on."""

    def build(on: bool) -> Measure:
        return lambda: in_fresh_process(
            fresh_update, settings.batch_size, settings.seconds, *make(on)
        )

    return [
        Alternative("update, CPU", name, partial(build, on))
        for name, on in zip(names, (False, True), strict=True)
    ]


def freed_memory(settings: Settings) -> list[Alternative]:
    """glibc gives freed memory back to the kernel, or the process keeps it."""
    return process_setting(
        settings,
        ("given back (glibc's default)", "kept"),
        lambda on: (on, True, False),
    )


def denormals(settings: Settings) -> list[Alternative]:
    """Denormal numbers computed, or flushed to zero; half of the hidden units never active."""
    return process_setting(
        settings,
        ("computed (default)", "flushed to zero"),
        lambda on: (True, on, True),
    )


TECHNIQUES: dict[str, Callable[[Settings], list[Alternative]]] = {
    "device": device_technique,
    "memory-format": memory_format,
    "precision": precision,
    "compilation": compilation,
    "relu": relu,
    "optimizer": optimizer,
    "copies": copies,
    "environments": environments,
    "replay": replay,
    "freed-memory": freed_memory,
    "denormals": denormals,
}


def draw(results: Sequence[Result], path: Path, title: str) -> None:
    """Bars of relative speed, grouped by technique."""
    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.24 * len(results)), layout="constrained")
    techniques = list(dict.fromkeys(result.technique for result in results))
    position, positions, labels = 0.0, [], []
    group: tuple[str, str] | None = None
    for result in results:
        here = (result.technique, result.alternative.task)
        position += 1.0 if here == group or group is None else 1.6
        group = here
        positions.append(position)
        labels.append(f"{result.technique} / {result.alternative.task}: {result.alternative.name}")
        if not result.relative:
            text = " not run: " + result.reason if result.reason else " no baseline"
            axes.text(0, position, text[:80], va="center", fontsize=7, color="0.4")
            continue
        middle = median(result.relative)
        spread = [[middle - min(result.relative)], [max(result.relative) - middle]]
        color = f"C{techniques.index(result.technique) % 10}"
        axes.barh(position, middle, color=color, xerr=spread, error_kw={"lw": 0.8, "capsize": 2})
        axes.text(middle, position + 0.05, f"  {middle:.2f} x", va="bottom", fontsize=7)
    axes.axvline(1, color="0.3", linewidth=0.8)
    axes.set_yticks(positions, labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("speed relative to the first alternative (x; bar: median, line: range)")
    axes.set_title(title)
    figure.savefig(path, dpi=150)
    plt.close(figure)
