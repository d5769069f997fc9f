"""Games that CPU threads play."""

import os
import reprlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from .games import Scratch, reset_games, scratch, step_games
from .pong import ACTIONS
from .state import EMULATED_FRAMES, FIELDS, NOOPS_DRAWN
from .television import GREYS
from .vector_env import BasePongVectorEnv, Seed, Settings, check_changes, check_range

Share = tuple[int, int, Scratch]  # games [begin, end), and working memory
# The observations of a step, shares of other threads, and those left to the thread that waits.
Step = tuple[np.ndarray, list[Future], list[Callable[[], dict[int, np.ndarray]]]]
Results = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class ThreadedPongVectorEnv(BasePongVectorEnv):
    """``PongVectorEnv`` with ``device="cpu"``.

    During a step, each thread owns its games' columns of the state, their rows of the observations
    and results, and its scratch memory. Only the caller's thread changes anything else, in
    ``_settle`` and ``_seed``, when no other thread is playing.
    """

    _playing: Step | None = None  # the step in progress

    def __init__(
        self, num_envs: int, settings: Settings, seed: Seed | None = None, threads: int = 0
    ) -> None:
        check_range(0, threads=threads)
        super().__init__(num_envs, settings)
        # At least two games, for the layout that Numba compiles the functions for.
        self._state = np.zeros((FIELDS, max(2, self.num_envs)), np.int32, order="F")
        threads = min(threads or numba.config.NUMBA_DEFAULT_NUM_THREADS, self.num_envs)
        edges = np.linspace(0, self.num_envs, threads + 1).astype(int)
        self._shares: list[Share] = [(int(a), int(b), scratch()) for a, b in pairwise(edges)]
        self._begin_threads()
        self._seed(seed)

    def reset(
        self, *, seed: Seed | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new games.

        Args:
            seed: as for ``PongVectorEnv``; None: continue to draw no-ops from the last seed.
            options: not supported.

        Returns:
            Observations uint8 (num_envs, stack, 84, 84) and info, both new.

        Raises:
            ValueError: options were given, or not as many seeds as games.
            EmulatorError: a picture changed too often to be drawn.
        """
        self._check_reset(options)
        self._notice_fork()
        self._wait()
        if seed is not None:
            self._seed(seed)
        observations, self._observations = np.empty(self._shape, np.uint8), None
        self._settle()
        for begin, end, work in self._shares:
            self._reset(begin, end, work, observations)
        self._observations = observations
        return observations.copy(), self._info()

    def send(self, actions: np.ndarray) -> None:
        """Begin a step with these actions, integers (num_envs,), and return at once.

        With one thread, ``recv`` plays, because another thread would only take the core from this
        one.

        Raises:
            ValueError: actions are invalid.
            gymnasium.error.Error: closed, not reset (also since Ctrl-C or an EmulatorError ended a
                step), or ``recv`` was not called in between.
        """
        self._begin("send", actions, own=self._shares if len(self._shares) == 1 else [])

    def recv(self) -> Results:
        """Wait for all games.

        Returns:
            Observations uint8 (num_envs, stack, 84, 84), rewards int32 (num_envs,), terminated and
            truncated, both bool (num_envs,), and info; all of them new.

        Raises:
            gymnasium.error.NoAsyncCallError: ``send`` was not called before.
            EmulatorError: a picture changed too often to be drawn.
        """
        self._notice_fork()
        if not self._playing:
            raise NoAsyncCallError("recv: call send first", "recv")
        last = self._wait()
        rewards, terminated, truncated = self._results
        info = self._info()
        if last:
            info["final_obs"] = self._observations.copy()
            for g, observation in last.items():
                info["final_obs"][g] = observation
        if self._settings.reward_clipping:
            np.sign(rewards, out=rewards)
        # The next step reads these, so return a copy, which takes 1 to 5 % of a step.
        return self._observations.copy(), rewards, terminated, truncated, info

    def step(self, actions: np.ndarray) -> Results:
        """Step; this thread plays a share, because handing it on takes 40 us."""
        self._begin("step", actions, own=self._shares[-1:])
        return self.recv()

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the threads, for pickle and deepcopy; a copy starts its own."""
        self._notice_fork()
        if self._playing:
            raise AlreadyPendingCallError("copy: call recv first, the games are on", "copy")
        wait(self._handed_on)
        return {k: v for k, v in vars(self).items() if k not in ("_pool", "_handed_on")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_threads()

    def _begin_threads(self) -> None:
        self._pool, self._process = ThreadPoolExecutor(len(self._shares), "pong"), os.getpid()
        self._handed_on: list[Future] = []

    def _notice_fork(self) -> None:
        """In a forked process, which has no threads, begin new ones; a step in progress is lost."""
        if self._process != os.getpid():
            self._begin_threads()
            self._playing = None

    def close_extras(self, **kwargs: Any) -> None:
        self._playing = None
        self._pool.shutdown()

    def _begin(self, call: str, actions: np.ndarray, own: list[Share]) -> None:
        """Begin a step; whoever waits for it plays ``own``, the last shares."""
        self._notice_fork()
        self._check_turn(call)
        actions = np.asarray(actions)
        good = actions.dtype.kind in "iu" and actions.shape == (self.num_envs,)
        if not good or actions.min() < 0 or actions.max() >= len(ACTIONS):
            raise ValueError(
                f"actions are integers from 0 to {len(ACTIONS) - 1} of shape ({self.num_envs},), "
                f"not {actions.dtype} of shape {actions.shape}: {reprlib.repr(actions.tolist())}"
            )
        actions = np.array(actions, np.int64)  # the caller may change its own before they are read
        self._settle()
        # None until all shares are played or handed on, because Ctrl-C may come in between.
        before, self._observations = self._observations, None
        after = np.empty_like(before)
        ends = np.empty((2, self.num_envs), np.bool_)
        self._results = np.empty(self.num_envs, np.int32), *ends
        task = actions, before, after
        others = self._shares[: len(self._shares) - len(own)]
        self._handed_on = []
        for share in others:  # one by one, so that ``_settle`` knows them even after Ctrl-C
            self._handed_on.append(self._pool.submit(self._play, *share, *task))
        mine: list[Callable] = [partial(self._play, *share, *task) for share in own]
        self._playing = after, self._handed_on, mine

    def _settle(self) -> None:
        """Wait until no thread plays, and draw no-ops if a game has none left for a reset."""
        wait(self._handed_on)  # a step that Ctrl-C interrupted is still played
        if self._state[NOOPS_DRAWN].max() == len(self._noops):
            self._draw_noops(2 * len(self._noops), self._seeds)

    def _play(
        self, begin: int, end: int, work: Scratch, actions: np.ndarray, before: np.ndarray,
        after: np.ndarray,
    ) -> dict[int, np.ndarray]:  # fmt: skip
        """Step this thread's games and restart those that ended; return their last observations."""
        rewards, over, cut = self._results
        changes = step_games(
            self._state, begin, end, GREYS, self._seen, work, actions, self._stepping, before,
            after, rewards, over, cut,
        )  # fmt: skip
        check_changes(changes)
        ended = [int(g) for g in begin + np.flatnonzero(over[begin:end] | cut[begin:end])]
        last = {g: after[g].copy() for g in ended}
        for g in ended:
            self._reset(g, g + 1, work, after)
        return last

    def _reset(self, begin: int, end: int, work: Scratch, observations: np.ndarray) -> None:
        args = self._beginning, self._noops, GREYS, self._seen, work, observations
        check_changes(reset_games(self._state, begin, end, *args))

    def _wait(self) -> dict[int, np.ndarray]:
        observations, others, own = self._playing or (self._observations, [], [])
        self._playing = None
        last: dict[int, np.ndarray] = {}
        try:
            for play in own:
                last |= play()
            self._observations = observations
        finally:  # also for a step that Ctrl-C interrupted
            wait(self._handed_on)
        if any(share.exception() for share in others):
            self._observations = None
        for share in others:
            last |= share.result()
        return last

    def _here(self, state: np.ndarray) -> np.ndarray:
        wait(self._handed_on)  # a step that Ctrl-C interrupted is still played
        return state

    def _info(self) -> dict[str, Any]:
        return {"episode_frame_number": self._state[EMULATED_FRAMES, : self.num_envs].copy()}
