"""Techniques of remembering: the memory of a transition, and the speed of sampling."""

import multiprocessing
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from benchmarks.measuring import Measure, timed
from benchmarks.techniques.learning import SHAPE, Works
from lib.envs.atari_wrappers import LazyFrames
from lib.envs.experience import Transitions
from lib.learning.replay_buffer import ReplayBuffer

import numpy as np
import psutil
import torch

Sample = Callable[[int], Any]  # batch size -> a batch on the device


def fresh_processes() -> multiprocessing.context.BaseContext:
    """Return a context whose processes fork from one with the imports; Windows has none."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def frames(count: int) -> Iterator[np.ndarray]:
    """Yield frames with memory of their own, uint8 (1, height, width)."""
    return (np.full((1, *SHAPE[1:]), i % 251, np.uint8) for i in range(count))


def transitions(stack: Callable[..., Any], count: int) -> Iterator[tuple[Any, Any]]:
    """Yield states and next states as stacks of frames; each state is the last next state."""
    last = deque(frames(SHAPE[0]), SHAPE[0])
    state = stack(last)
    for frame in frames(count):
        last.append(frame)
        before, state = state, stack(last)
        yield before, state


def listed(stack: Callable[..., Any], count: int, device: torch.device) -> Sample:
    """Return samples from a list of transitions."""
    entries, rng = list(transitions(stack, count)), np.random.default_rng(0)

    def sample(size: int) -> torch.Tensor:
        rows = rng.integers(count, size=size)
        both = [[np.asarray(state) for state in entries[row]] for row in rows]
        return torch.from_numpy(np.array(both)).to(device)

    return sample


def preallocated(count: int, device: torch.device) -> Sample:
    """Return samples from a float32 array of all states and next states."""
    states, rng = np.empty((count, 2, *SHAPE), np.float32), np.random.default_rng(0)
    for row, both in enumerate(transitions(np.concatenate, count)):
        states[row] = both
    return lambda size: torch.from_numpy(states[rng.integers(count, size=size)]).to(device)


def ours(count: int, device: torch.device) -> ReplayBuffer:
    """Return the rungs' buffer, full."""
    buffer, begins = ReplayBuffer(count, SHAPE, device), np.array([True])
    zero, first = np.zeros(1), next(frames(1))
    columns: tuple[Any, ...]
    for frame in frames(count):
        columns = zero.astype(int), zero.astype("f4"), zero > 0, frame, begins, first, [None]
        buffer.extend([Transitions(*columns)])
        begins, first = np.array([False]), first[:0]
    return buffer


BUFFERS: dict[str, Callable[[int, torch.device], Sample]] = {
    "list of stacks": partial(listed, np.concatenate),
    "list of lazy frames": partial(listed, LazyFrames),
    "float32 arrays": preallocated,
    "ours": lambda count, device: ours(count, device).sample,
}


def growth(kind: str, count: int) -> float:
    """Return the bytes per transition by which this process grows."""
    process, buffers = psutil.Process(), [BUFFERS[kind](9, torch.device("cpu"))]  # loads the code
    before = process.memory_info().rss
    buffers.append(BUFFERS[kind](count, torch.device("cpu")))
    return (process.memory_info().rss - before) / count


def memory(args: Namespace) -> Works:
    """What the replay buffer keeps."""
    count, size = args.transitions, args.batch_size

    def resident(kind: str) -> Measure:
        with ProcessPoolExecutor(1, mp_context=fresh_processes()) as process:
            grown = process.submit(growth, kind, count).result()
        return lambda _: grown  # measured once

    def sampling(kind: str) -> Measure:
        sample = BUFFERS[kind](count, args.device)
        return timed(lambda: sample(size))

    works = {"a transition's RSS (bytes)": resident, f"sampling {size} (ms)": sampling}
    return {work: {kind: partial(works[work], kind) for kind in BUFFERS} for work in works}
