"""Techniques for remembering: a list of objects against the lib's replay buffer."""

import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.processes import in_fresh_process
from benchmarks.techniques.measuring import ACTIONS, SHAPE, Alternative, Measure, Settings, rate
from lib.games.atari_wrappers import LazyFrames
from lib.games.experience import Transition
from lib.learning.replay_buffer import Batch, ReplayBuffer

EPISODE = 1_000  # transitions of the made-up games
TRACED = 2_000  # transitions: tracing is slow, and it is exact


class ObjectBuffer:
    """The usual replay buffer: a list with an object per transition, which holds both states.

    Args:
        stack: makes a state of its frames; ``LazyFrames`` shares them between states.
        capacity: transitions to hold.
        device: where batches go.
    """

    def __init__(self, stack: Callable[..., Any], capacity: int, device: Any) -> None:
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
        state, self.state = self.state, self.stack(self.frames)
        _, action, reward, terminated, *_ = transition
        entry = (state, action, reward, terminated, self.state)
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
        return Batch(*(tensor.to(self.device) for tensor in batch))


BUFFERS: dict[str, Callable[..., ObjectBuffer | ReplayBuffer]] = {  # of a capacity, on a device
    "list of arrays": partial(ObjectBuffer, np.concatenate),
    "list of lazy frames": partial(ObjectBuffer, LazyFrames),
    "lib.ReplayBuffer": lambda capacity, device: ReplayBuffer(capacity, SHAPE, device),
}


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


def full_buffer(kind: str, count: int, device: Any = "cpu") -> ObjectBuffer | ReplayBuffer:
    """A buffer of made-up experience."""
    buffer = BUFFERS[kind](count, device)
    for transition in transitions(count):
        buffer.append(transition)
    return buffer


def resident_bytes(kind: str, count: int) -> int:
    """By how much this process grows when it fills a buffer."""
    process = psutil.Process()
    before = process.memory_info().rss
    buffer = full_buffer(kind, count)
    grown = process.memory_info().rss - before
    del buffer  # not earlier
    return grown


def allocated_bytes(kind: str, count: int) -> int:
    """What a full buffer has asked for."""
    tracemalloc.start()
    buffer = full_buffer(kind, count)
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del buffer
    return allocated


def replay(settings: Settings) -> list[Alternative]:
    """Rates of inserting and sampling, and memory."""

    def insert(kind: str) -> Measure:
        buffer = BUFFERS[kind](settings.transitions, "cpu")
        ready = list(transitions(min(EPISODE, settings.transitions)))

        def fill() -> None:
            for transition in ready:
                buffer.append(transition)

        return rate(fill, len(ready), settings.seconds)

    def sample(kind: str) -> Measure:
        buffer = full_buffer(kind, settings.transitions, settings.device)
        return rate(lambda: buffer.sample(settings.batch_size), 1, settings.seconds)

    def allocated(kind: str) -> Measure:
        count = min(settings.transitions, TRACED)
        return lambda: allocated_bytes(kind, count) / count

    def resident(kind: str) -> Measure:
        return lambda: in_fresh_process(resident_bytes, kind, settings.transitions) / 1e6

    tasks: dict[str, tuple[Callable[[str], Measure], str]] = {
        "insert": (insert, "transitions per second"),
        "sample": (sample, "batches per second"),
        "memory of a transition": (allocated, "bytes"),
        "resident memory when full": (resident, "MB"),
    }
    return [
        Alternative(task, kind, partial(build, kind), unit)
        for task, (build, unit) in tasks.items()
        for kind in BUFFERS
    ]
