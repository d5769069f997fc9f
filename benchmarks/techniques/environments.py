"""Techniques for playing: several environments in turn, in processes, in threads, in C++."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import gymnasium as gym
import numpy as np
from ale_py import AtariVectorEnv
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from benchmarks.techniques.measuring import ACTIONS, DEFAULTS, Alternative, Measure, Settings, rate
from lib.games.atari_wrappers import make_atari, wrap_deepmind


def make_env() -> gym.Env:
    """Pong as the baseline plays it."""
    return wrap_deepmind(make_atari(DEFAULTS.env))


def random_play(env: gym.Env, seed: int) -> Callable[[], np.ndarray]:
    """Plays a random step at each call, and begins anew what ends; returns the state."""
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)

    def step() -> np.ndarray:
        state, _, terminated, truncated, _ = env.step(int(rng.integers(ACTIONS)))
        if terminated or truncated:
            env.reset()
        return np.asarray(state)

    return step


def environments(settings: Settings) -> list[Alternative]:
    """Random play, the frames as arrays, and new games where old ones end."""
    n = settings.envs

    def stepper(seed: int) -> Callable[[], np.ndarray]:
        env = make_env()
        settings.cleanup.callback(env.close)
        return random_play(env, seed)

    def threads() -> Measure:
        steps = [stepper(seed) for seed in range(n)]
        pool = settings.cleanup.enter_context(ThreadPoolExecutor(n))
        return rate(lambda: list(pool.map(lambda step: step(), steps)), n, settings.seconds)

    def vector(make: Callable[[], gym.vector.VectorEnv]) -> Measure:
        envs = make()
        settings.cleanup.callback(envs.close)
        envs.reset(seed=0)
        rng = np.random.default_rng(0)
        return rate(lambda: envs.step(rng.integers(ACTIONS, size=n)), n, settings.seconds)

    in_turn = partial(vector, lambda: SyncVectorEnv([make_env] * n))
    processes = partial(vector, lambda: AsyncVectorEnv([make_env] * n, context="spawn"))
    in_cpp = partial(vector, lambda: AtariVectorEnv("pong", n, episodic_life=True))
    ways: dict[str, Callable[[], Measure]] = {
        "one": lambda: rate(stepper(0), 1, settings.seconds),
        f"{n} in turn (SyncVectorEnv)": in_turn,
        f"{n} processes (AsyncVectorEnv)": processes,
        f"{n} threads": threads,
        f"{n} in C++ (AtariVectorEnv)": in_cpp,
    }
    unit = "frames per second"
    return [Alternative("step", name, build, unit) for name, build in ways.items()]
