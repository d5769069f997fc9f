"""Techniques of playing: environments, who plays while the network learns, and a what-if."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks.measuring import Measure, timed
from benchmarks.techniques.learning import ACTIONS, DEFAULTS, Learner, Works
from benchmarks.techniques.memory import fresh_processes, ours
from lib.devices import cores
from lib.envs.atari_wrappers import make_atari, wrap_deepmind
from lib.envs.experience import ExperienceSource, Transitions
from lib.learning.agents import EpsilonGreedyAgent
from lib.parallel.player import ExperienceQueue, Player
from pong_emulator import PongVectorEnv

import gymnasium as gym
import numpy as np
import torch
from ale_py import AtariVectorEnv
from gymnasium.vector import AsyncVectorEnv
from torch import nn


def make_env() -> gym.Env:
    """Make Pong as 01 to 03 play it."""
    return wrap_deepmind(make_atari(DEFAULTS.env))


def environments(args: Namespace) -> Works:
    """Random play, with the states as arrays."""
    n, rng, cleanup = args.envs, np.random.default_rng(0), args.cleanup

    def stepper(seed: int) -> Callable[[], np.ndarray]:
        env = make_env()
        cleanup.callback(env.close)
        env.reset(seed=seed)

        def step() -> np.ndarray:
            state, _, terminated, truncated, _ = env.step(int(rng.integers(ACTIONS)))
            if terminated or truncated:
                env.reset()
            return np.asarray(state)

        return step

    def each(count: int, run: Callable[..., Any] = map) -> Measure:
        steps = [stepper(seed) for seed in range(count)]
        return timed(lambda: list(run(lambda step: step(), steps)), count)

    def threads() -> Measure:
        return each(n, cleanup.enter_context(ThreadPoolExecutor(n)).map)

    def vector(make: Callable[..., Any], *args: Any, **how: Any) -> Measure:
        envs = make(*args, **how)
        cleanup.callback(envs.close)
        envs.reset(seed=0)
        return timed(lambda: envs.step(rng.integers(ACTIONS, size=n)), n)

    def processes() -> Measure:
        context = fresh_processes().get_start_method()  # Windows has none
        return vector(AsyncVectorEnv, [make_env] * n, context=context)

    cpp = {"num_threads": min(cores(), n)}
    ways: dict[str, Callable[[], Measure]] = {
        "one": partial(each, 1),
        f"{n} in turn": partial(each, n),
        f"{n} in threads": threads,
        f"{n} in processes (AsyncVectorEnv)": processes,
        f"{n} in C++ (AtariVectorEnv)": partial(vector, AtariVectorEnv, "pong", n, **cpp),
        f"{n} in our emulator": partial(vector, PongVectorEnv, n, threads=min(cores(), n)),
    }
    return {"a frame (ms)": ways}


def experience(net: nn.Module, frames: int) -> Iterator[list[Transitions]]:
    """Return lists of this many frames of one game, played by the network."""
    q_function, device = torch.no_grad()(net), next(net.parameters()).device
    agent = EpsilonGreedyAgent(q_function, ACTIONS, lambda _: DEFAULTS.epsilon_final, device)
    return iter(ExperienceSource([make_env()], agent, steps=frames))


def player_process(queue: ExperienceQueue, net: nn.Module, frames: int) -> None:
    """Play and fill the queue."""
    for steps in experience(net, frames):
        queue.put(steps)  # type: ignore[arg-type]  # several at once


def iteration(args: Namespace, frames: int, where: str = "", without: str = "") -> Measure:
    """Measure playing some frames, storing them, sampling, and an update."""
    learner, pool = Learner(args.device, args.batch_size), None
    net, buffer = learner.net, ours(args.transitions, args.device)
    played: Iterator[Any] = experience(net, frames)
    if where == "process":
        player = args.cleanup.enter_context(Player(player_process, (net.share_memory(), frames), 2))
        played = (steps for arrived in player for steps in arrived)
    elif where == "thread":
        pool = args.cleanup.enter_context(ThreadPoolExecutor(1))
    batch = buffer.sample(args.batch_size)

    def iterate() -> None:
        coming = pool.submit(next, played) if pool else None
        if not coming:
            buffer.extend(next(played))
        sampled = batch if without == "sampling" else buffer.sample(args.batch_size)
        if without != "loss":
            learner.learn(sampled, step=without != "step")
        if coming:
            buffer.extend(coming.result())

    return timed(iterate)


def collection(args: Namespace) -> Works:
    """Who plays while an update runs."""
    frames, size = args.envs, args.batch_size
    places = {"in this process": "", "in a thread": "thread", "in a process": "process"}
    ways = {way: partial(iteration, args, frames, place) for way, place in places.items()}
    return {f"{frames} frames and update of {size} (ms)": ways}


def profiler(args: Namespace) -> Works:
    """01 without a part of its iteration (`breakdown` gives the time of each part)."""
    parts = {"without sampling": "sampling", "without the optimizer's step": "step"}
    parts = {"all of it": "", **parts, "without the loss: no update": "loss"}
    ways = {way: partial(iteration, args, 1, "", part) for way, part in parts.items()}
    return {f"frame and update of {args.batch_size} (ms)": ways}
