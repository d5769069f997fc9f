"""Many games as a vector environment, as gymnasium and ALE have it."""

import os
import reprlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from emulator import missing
from emulator.games import Scratch, draw_game, reset_games, scratch, step_games
from emulator.pong import ACTIONS, new_game
from emulator.preprocessing import SIZE
from emulator.rom import EmulatorError
from emulator.state import FIELDS, FRAMES, LOG_SIZE, NOOPS_DRAWN, RAM
from emulator.television import COLOURS, GREYS
from emulator.tia import LINES, WIDTH

DRAWS = 64  # resets that are drawn at once


class PongVectorEnv(VectorEnv):
    """Games of Pong, emulated in compiled Python, and preprocessed as DeepMind did.

    The same seeds and actions give the same games as ``ale_py.AtariVectorEnv("pong", ...)`` with
    ``AutoresetMode.SAME_STEP``, pixel for pixel. What ends is followed by the next game in the same
    step; ``info["final_obs"]`` then has the last observations.

        envs = PongVectorEnv(32, seed=0)
        observations, info = envs.reset()
        observations, rewards, terminated, truncated, info = envs.step(actions)

    Args:
        num_envs: games played at once.
        seed: game ``i`` is seeded with ``seed + i``, or a seed for each; None for chance. ``reset``
            may change it.
        device: cpu; or cuda, then arrays are torch tensors there (see ``emulator.cuda``).
        threads: of the CPU that play, outside of the interpreter's lock; 0 for one per core.
        stack: frames of an observation; a new game begins with black ones.
        frame_skip: emulated frames that an action is held.
        max_pool: see the maximum of the last two emulated frames, not the last one alone.
        noop_max: games begin with FIRE and up to so many frames, less two, of doing nothing.
        reward_clipping: rewards as their sign.
        max_num_frames_per_episode: emulated frames after which a game is cut short.

    Raises:
        ValueError: a number is too small, or there are not as many seeds as games.
        EmulatorError: what it takes for a GPU is missing.
    """

    def __new__(cls, *args: Any, device: Any = "cpu", **kwargs: Any) -> "PongVectorEnv":
        """A ``CudaPongVectorEnv`` for a GPU, as ``pathlib.Path`` makes a path of its system's."""
        if not str(device).startswith("cuda"):
            return super().__new__(cls)
        if problem := missing("cuda"):
            raise EmulatorError(problem)
        from emulator.cuda import CudaPongVectorEnv  # torch and CUDA are wanted there alone

        return super().__new__(CudaPongVectorEnv)

    def __init__(
        self,
        num_envs: int,
        *,
        seed: int | Sequence[int] | np.ndarray | None = None,
        device: str = "cpu",
        threads: int = 0,
        stack: int = 4,
        frame_skip: int = 4,
        max_pool: bool = True,
        noop_max: int = 30,
        reward_clipping: bool = True,
        max_num_frames_per_episode: int = 108_000,
    ) -> None:
        at_least = {"num_envs": 1, "threads": 0, "stack": 1, "frame_skip": 1, "noop_max": 0}
        for name, least in (at_least | {"max_num_frames_per_episode": 1}).items():
            if locals()[name] < least:
                raise ValueError(f"{name} is {locals()[name]}, and must be at least {least}")
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = Box(0, 255, (stack, SIZE, SIZE), np.uint8)
        self.single_action_space = Discrete(len(ACTIONS))
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._settings = frame_skip, max_pool, max_num_frames_per_episode
        self._shape = (num_envs, stack, SIZE, SIZE)  # of observations
        self._noop_max, self._clips = noop_max, reward_clipping
        self._beginning = new_game()
        self._prepare(device, threads)
        self._observations: np.ndarray | None = None
        self._results: tuple[np.ndarray, ...] = ()
        self._playing: list[Future] = []
        self._seed(np.random.SeedSequence().generate_state(1)[0] if seed is None else seed)

    @cached_property
    def observation_space(self) -> Box:
        """Of all games; its bounds take four times the memory of an observation."""
        return batch_space(self.single_observation_space, self.num_envs)

    def _prepare(self, device: Any, threads: int) -> None:
        """The state of the games, and what plays them."""
        if str(device) != "cpu":
            raise ValueError(f"device is {device}, and must be cpu or cuda")
        # Two games at least: the compiled functions know arrays whose columns lie side by side.
        self._state = np.zeros((FIELDS, max(2, self.num_envs)), np.int32, order="F")
        threads = min(threads or _cores(), self.num_envs)
        edges = np.linspace(0, self.num_envs, threads + 1).astype(int)
        self._shares = [(int(a), int(b), scratch()) for a, b in pairwise(edges)]
        self._pool = ThreadPoolExecutor(threads, "pong")

    def _seed(self, seed: int | Sequence[int] | np.ndarray) -> None:
        seeds = np.asarray(seed, np.int64)
        if seeds.shape not in ((), (self.num_envs,)):
            raise ValueError(f"seed has the shape {seeds.shape}: give one, or {self.num_envs}")
        self._seeds = (seeds if seeds.ndim else seeds + np.arange(self.num_envs)) % 2**32
        self._state[NOOPS_DRAWN] = 0
        self._draw_noops(DRAWS)

    def _draw_noops(self, draws: int) -> None:
        """Frames before the agent plays, by reset and game."""
        noops = np.empty((draws, self.num_envs), np.int32)
        for g, seed in enumerate(self._seeds):
            noops[:, g] = _uniform(np.random.RandomState(seed), self._noop_max, draws)
        self._noops = np.maximum(noops, 1)  # FIRE is one of them

    def reset(
        self,
        *,
        seed: int | Sequence[int] | np.ndarray | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new games.

        Args:
            seed: as for the class; None: no-ops are drawn on from where they are.
            options: there are none.

        Returns:
            Observations uint8 (num_envs, stack, 84, 84) and info, both new.

        Raises:
            ValueError: there are options, or not as many seeds as games.
        """
        self._check_options(options)
        self._wait()
        if seed is not None:
            self._seed(seed)
        self._observations = np.empty(self._shape, np.uint8)
        for begin, end, work in self._shares:
            self._reset(begin, end, work, self._observations)
        return self._observations, self._info()

    def send(self, actions: np.ndarray) -> None:
        """Let the games go on with these actions, integers (num_envs,); returns at once.

        Raises:
            ValueError: these are no actions.
            gymnasium.error.Error: closed, never reset, or ``recv`` was not called in between.
        """
        task = self._task(actions)
        self._playing = [self._pool.submit(self._play, *share, *task) for share in self._shares]

    def _task(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What threads need for a step: actions, last observations, and where the next ones go."""
        self._check_turn()
        actions = np.asarray(actions)
        integers = actions.dtype.kind in "iu"
        if not integers or actions.shape != (self.num_envs,) or not _all_below(actions):
            raise ValueError(
                f"actions are integers from 0 to {len(ACTIONS) - 1} of shape ({self.num_envs},), "
                f"not {actions.dtype} of shape {actions.shape}: {reprlib.repr(actions.tolist())}"
            )
        actions = np.ascontiguousarray(actions, np.int64)
        before, self._observations = self._observations, np.empty_like(self._observations)
        ends = np.empty((2, self.num_envs), np.bool_)
        self._results = np.empty(self.num_envs, np.int32), *ends
        return actions, before, self._observations

    def _check_options(self, options: dict[str, Any] | None) -> None:
        if options:
            raise ValueError(f"reset knows no options, but was given {', '.join(options)}")

    def _check_turn(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("send: the games are closed")
        if self._observations is None:
            raise ResetNeeded("send: call reset first")
        if self._playing:
            raise AlreadyPendingCallError("send: call recv first, the games are on", "send")

    def recv(
        self,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Wait for all games.

        Returns:
            Observations uint8 (num_envs, stack, 84, 84), rewards int32 (num_envs,), terminated and
            truncated, both bool (num_envs,), and info; all of them new arrays.

        Raises:
            gymnasium.error.NoAsyncCallError: ``send`` was not called before.
        """
        if not self._playing:
            raise NoAsyncCallError("recv: call send first", "recv")
        return self._outcome(self._wait())

    def _outcome(
        self, last: dict[int, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        rewards, terminated, truncated = self._results
        info = self._info()
        if last:
            info["final_obs"] = self._observations.copy()
            for g, observation in last.items():
                info["final_obs"][g] = observation
        if self._clips:
            np.sign(rewards, out=rewards)
        return self._observations, rewards, terminated, truncated, info

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """``send`` and ``recv``; this thread plays a share itself, as handing it on takes 40 us."""
        task = self._task(actions)
        *others, own = self._shares
        self._playing = [self._pool.submit(self._play, *share, *task) for share in others]
        try:
            last = self._play(*own, *task)
        finally:  # the games of the others have had their step, too
            last_of_others = self._wait()
        return self._outcome(last | last_of_others)

    @property
    def ram(self) -> np.ndarray:
        """The consoles' RAM, uint8 (num_envs, 128)."""
        return self._state[RAM : RAM + 128, : self.num_envs].T.astype(np.uint8)

    def screen(self, i: int) -> np.ndarray:
        """The last picture of game ``i``, uint8 (210, 160), as numbers of colours."""
        picture = np.empty((LINES, WIDTH), np.uint8)
        draw_game(self._state, i, COLOURS, self._shares[0][2], picture)
        return picture

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads."""
        if hasattr(self, "_pool"):  # not where the arguments were refused
            self._pool.shutdown()

    def _play(
        self, begin: int, end: int, work: Scratch, actions: np.ndarray, before: np.ndarray,
        after: np.ndarray,
    ) -> dict[int, np.ndarray]:  # fmt: skip
        """What a thread does: a step of its games, and new ones for those that ended."""
        rewards, over, cut = self._results
        changes = step_games(
            self._state, begin, end, GREYS, work, actions, self._settings, before, after,
            rewards, over, cut,
        )  # fmt: skip
        check_changes(changes)
        ended = [int(g) for g in begin + np.flatnonzero(over[begin:end] | cut[begin:end])]
        last = {g: after[g].copy() for g in ended}
        for g in ended:
            self._reset(g, g + 1, work, after)
        return last

    def _reset(self, begin: int, end: int, work: Scratch, observations: np.ndarray) -> None:
        if self._state[NOOPS_DRAWN, begin:end].max() == len(self._noops):
            self._draw_noops(2 * len(self._noops))
        args = self._beginning, self._noops, GREYS, work, observations
        check_changes(reset_games(self._state, begin, end, *args))

    def _wait(self) -> dict[int, np.ndarray]:
        """Until the threads are done; the last observations of games that ended."""
        playing, self._playing = self._playing, []
        wait(playing)
        last: dict[int, np.ndarray] = {}
        for share in playing:
            last |= share.result()
        return last

    def _info(self) -> dict[str, Any]:
        return {"episode_frame_number": self._state[FRAMES, : self.num_envs].copy()}


def check_changes(changes: int) -> None:
    """Raise EmulatorError if a picture changed more often than its log can hold."""
    if changes > LOG_SIZE:
        raise EmulatorError(f"a picture changed {changes} times, more than {LOG_SIZE} are kept")


def _cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on Windows and macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _all_below(actions: np.ndarray) -> bool:
    return bool(actions.min() >= 0 and actions.max() < len(ACTIONS))


def _uniform(random: np.random.RandomState, below: int, count: int) -> np.ndarray:
    """Numbers from 0 to ``below`` - 1, as C++'s library draws them from a Mersenne twister.

    Source: Lemire, arXiv:1805.10941.
    """
    drawn = np.zeros(0 if below else count, np.int64)
    while len(drawn) < count:
        products = below * random.randint(2**32, size=count, dtype=np.uint32).astype(np.int64)
        drawn = np.append(drawn, products[products % 2**32 >= 2**32 % below] >> 32)
    return drawn[:count]
