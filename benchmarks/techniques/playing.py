"""Techniques of playing: environments, who plays while the network learns, and a what-if."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ale_py import AtariVectorEnv
from gymnasium.vector import AsyncVectorEnv
from torch import nn

from benchmarks.measuring import Measure, timed
from benchmarks.techniques.learning import ACTIONS, DEFAULTS, Learner, Settings, Works
from benchmarks.techniques.memory import fresh_processes, ours
from lib.devices import cores
from lib.envs.atari_wrappers import make_atari, wrap_deepmind
from lib.envs.experience import ExperienceSource, Transitions
from lib.learning.agents import EpsilonGreedyAgent
from lib.learning.schedules import LinearSchedule
from lib.parallel.player import ExperienceQueue, Player
from pong_emulator import PongVectorEnv


def make_env() -> gym.Env:
    """Pong as 01 to 03 play it."""
    return wrap_deepmind(make_atari(DEFAULTS.env))


def environments(settings: Settings) -> Works:
    """Random play, with the states as arrays."""
    n, rng = settings.envs, np.random.default_rng(0)

    def stepper(seed: int) -> Callable[[], np.ndarray]:
        env = make_env()
        settings.cleanup.callback(env.close)
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
        return each(n, settings.cleanup.enter_context(ThreadPoolExecutor(n)).map)

    def vector(make: Callable[[], Any]) -> Measure:
        envs = make()
        settings.cleanup.callback(envs.close)
        envs.reset(seed=0)
        return timed(lambda: envs.step(rng.integers(ACTIONS, size=n)), n)

    def processes() -> AsyncVectorEnv:
        return AsyncVectorEnv([make_env] * n, context=fresh_processes().get_start_method())

    in_cpp = partial(AtariVectorEnv, "pong", n, num_threads=min(cores(), n))
    ways: dict[str, Callable[[], Measure]] = {
        "one": partial(each, 1),
        f"{n} in turn": partial(each, n),
        f"{n} in threads": threads,
        f"{n} in processes (AsyncVectorEnv)": partial(vector, processes),
        f"{n} in C++ (AtariVectorEnv)": partial(vector, in_cpp),
        f"{n} in our emulator": partial(vector, partial(PongVectorEnv, n, threads=min(cores(), n))),
    }
    return {"a frame (ms)": ways}


def experience(net: nn.Module, frames: int) -> Iterator[list[Transitions]]:
    """Lists of so many frames of one game, which the network plays."""
    epsilon = LinearSchedule(DEFAULTS.epsilon_final, DEFAULTS.epsilon_final, 1)
    device = next(net.parameters()).device

    @torch.no_grad()
    def q_function(states: torch.Tensor) -> torch.Tensor:
        return net(states)

    agent = EpsilonGreedyAgent(q_function, ACTIONS, epsilon, device)
    return iter(ExperienceSource([make_env()], agent, steps=frames))


def player_process(queue: ExperienceQueue, net: nn.Module, frames: int) -> None:
    """The player process."""
    for steps in experience(net, frames):
        queue.put(steps)  # type: ignore[arg-type]  # some at once


def iteration(settings: Settings, frames: int, where: str = "", without: str = "") -> Measure:
    """Measures playing some frames, storing them, sampling, and an update."""
    learner, pool = Learner(settings.device, settings.batch_size), None
    net, buffer = learner.net, ours(settings.transitions, settings.device)
    played: Iterator[Any] = experience(net, frames)
    if where == "process":
        player = settings.cleanup.enter_context(
            Player(player_process, (net.share_memory(), frames), 2)
        )
        played = (steps for arrived in player for steps in arrived)
    elif where == "thread":
        pool = settings.cleanup.enter_context(ThreadPoolExecutor(1))
    batch = buffer.sample(settings.batch_size)

    def iterate() -> None:
        coming = pool.submit(next, played) if pool else None
        if not coming:
            buffer.extend(next(played))
        sampled = batch if without == "sampling" else buffer.sample(settings.batch_size)
        if without != "loss":
            learner.learn(sampled, step=without != "step")
        if coming:
            buffer.extend(coming.result())

    return timed(iterate)


def collection(settings: Settings) -> Works:
    """Who plays while an update runs."""
    frames, size = settings.envs, settings.batch_size
    places = {"in this process": "", "in a thread": "thread", "in a process": "process"}
    ways = {way: partial(iteration, settings, frames, place) for way, place in places.items()}
    return {f"{frames} frames and update of {size} (ms)": ways}


def profiler(settings: Settings) -> Works:
    """01 without a part of its iteration (`breakdown` tells what each part takes)."""
    parts = {"without sampling": "sampling", "without the optimizer's step": "step"}
    parts = {"all of it": "", **parts, "without the loss: no update": "loss"}
    ways = {way: partial(iteration, settings, 1, "", part) for way, part in parts.items()}
    return {f"frame and update of {settings.batch_size} (ms)": ways}
