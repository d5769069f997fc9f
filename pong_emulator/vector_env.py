"""The common part of games on the CPU and on a GPU: settings, spaces, seeds, order of calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from .errors import EmulatorError
from .games import draw_game, scratch
from .pong import ACTIONS, new_game
from .preprocessing import SIZE
from .state import FIELDS, LOG_SIZE, NOOPS_DRAWN, RAM
from .television import COLOURS, RGB
from .tia import LINES, WIDTH

DRAWS = 64  # resets whose no-ops are drawn at once
MOST = 2**31 - 1  # the largest number in the state

Seed = int | Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Settings:
    """The settings of ``PongVectorEnv``; ValueError if one is out of range or unknown."""

    stack: int
    frame_skip: int
    max_pool: bool
    noop_max: int
    reward_clipping: bool
    max_num_frames_per_episode: int
    rows: tuple[int, int]
    render_mode: str | None

    def __post_init__(self) -> None:
        check_range(0, noop_max=self.noop_max)
        check_range(1, stack=self.stack, frame_skip=self.frame_skip)
        check_range(1, max_num_frames_per_episode=self.max_num_frames_per_episode)
        match self.rows:
            case [first, last] if first in range(SIZE) and last in range(SIZE + 1) and first < last:
                pass
            case _:
                expected = f"two whole numbers from 0 to {SIZE}, the first one smaller"
                raise ValueError(f"rows is {self.rows}, and must be {expected}")
        if self.render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {self.render_mode!r}, and must be rgb_array or None")


def check_range(least: int, most: int = MOST, /, **numbers: int) -> None:
    """Raise ValueError, with the name, if a number is smaller, too large or not whole."""
    for name, number in numbers.items():
        whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not whole or not least <= number <= most:
            expected = f"must be a whole number from {least} to {most:,}"
            raise ValueError(f"{name} is {number!r}, and {expected}")


class BasePongVectorEnv(VectorEnv):
    """The base class of Pong games; subclasses have the state and play."""

    _state: Any  # int32 (FIELDS, games)
    _noops: np.ndarray  # int32 (draws, games): emulated frames before the agent plays, by reset
    _observations: Any = None  # the last ones; None if only ``reset`` is possible
    _playing: Any = None  # what ``recv`` waits for

    def __init__(self, num_envs: int, settings: Settings) -> None:
        check_range(1, num_envs=num_envs)
        self.num_envs = num_envs = int(num_envs)
        self.render_mode = settings.render_mode
        self.metadata = {
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "render_modes": ["rgb_array"],
            "render_fps": 60 / settings.frame_skip,
        }
        self.single_observation_space = Box(0, 255, (settings.stack, SIZE, SIZE), np.uint8)
        self.single_action_space = Discrete(len(ACTIONS))
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._shape = (num_envs, settings.stack, SIZE, SIZE)  # of observations
        self._settings = settings
        self._seen = int(settings.rows[0]), int(settings.rows[1])
        # The settings of a step, for the compiled functions.
        limit = settings.max_num_frames_per_episode
        self._stepping = int(settings.frame_skip), bool(settings.max_pool), int(limit)

    @cached_property
    def _beginning(self) -> np.ndarray:
        """The state of a new game, int32 (FIELDS,). The first access compiles the emulator."""
        return new_game()

    @cached_property
    def observation_space(self) -> Space:  # type: ignore[override]
        """The batched observation space. Its bounds need four times an observation's memory."""
        return batch_space(self.single_observation_space, self.num_envs)

    def _seed(self, seed: Seed | None) -> None:
        if seed is None:
            seed = np.random.SeedSequence().generate_state(1)[0] >> 2
        seeds = np.asarray(seed)
        last = MOST if seeds.ndim else MOST - self.num_envs + 1  # ALE refuses larger ones, too
        whole = seeds.dtype.kind in "iu"
        if not whole or (seeds.size and not 0 <= seeds.min() <= seeds.max() <= last):
            raise ValueError(f"seed is {seed!r}, and must be a whole number from 0 to {last:,}")
        seeds = seeds.astype(np.int64)
        if seeds.shape not in ((), (self.num_envs,)):
            raise ValueError(f"seed has the shape {seeds.shape}: give one, or {self.num_envs}")
        self._draw_noops(DRAWS, seeds if seeds.ndim else seeds + np.arange(self.num_envs))
        self._state[NOOPS_DRAWN] = 0

    def _draw_noops(self, draws: int, seeds: np.ndarray) -> None:
        randoms = [np.random.RandomState(seed) for seed in seeds]
        noops = np.empty((draws, self.num_envs), np.int32)
        for g, random in enumerate(randoms):
            noops[:, g] = self._next_noops(random, draws)
        # Last, because Ctrl-C may interrupt the draw.
        self._seeds, self._randoms, self._noops = seeds, randoms, noops

    def _next_noops(self, random: np.random.RandomState, count: int) -> np.ndarray:
        numbers = _uniform(random, int(self._settings.noop_max), count)
        return np.maximum(numbers, 1)  # FIRE is one of them

    def _check_reset(self, options: dict[str, Any] | None) -> None:
        if self.closed:
            raise ClosedEnvironmentError("reset: the games are closed")
        if options:
            raise ValueError(f"reset knows no options, but was given {', '.join(options)}")

    def _check_turn(self, call: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"{call}: the games are closed")
        if self._playing:
            raise AlreadyPendingCallError(f"{call}: call recv first, the games are on", call)
        if self._observations is None:
            raise ResetNeeded(f"{call}: call reset first")

    @property
    def ram(self) -> np.ndarray:
        """The RAM of all games, uint8 (num_envs, 128); errors as for ``screen``."""
        self._check_turn("ram")
        return self._here(self._state[RAM : RAM + 128, : self.num_envs]).T.astype(np.uint8)

    def _here(self, state: Any) -> np.ndarray:
        return state

    def screen(self, i: int) -> np.ndarray:
        """Return the last picture of game ``i``, uint8 (210, 160), as numbers of colours.

        Raises:
            IndexError: there is no such game.
            gymnasium.error.Error: closed, never reset, or ``recv`` was not called.
        """
        self._check_turn("screen")
        if i not in range(self.num_envs):
            raise IndexError(f"there is no game {i}, there are 0 to {self.num_envs - 1}")
        state = np.zeros((FIELDS, 2), np.int32, order="F")  # one column would be in C order, too
        state[:, 0] = self._here(self._state[:, i])
        picture = np.empty((LINES, WIDTH), np.uint8)
        draw_game(state, 0, COLOURS, scratch(), picture)
        return picture

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Return every game's last picture, uint8 (210, 160, 3), or None without a render mode."""
        if self.render_mode is None:
            return None
        self._check_turn("render")
        return tuple(RGB[self.screen(i)] for i in range(self.num_envs))


def check_changes(changes: int) -> None:
    """Raise EmulatorError if a picture changed more often than its log can hold."""
    if changes > LOG_SIZE:
        raise EmulatorError(f"a picture changed {changes} times, more than {LOG_SIZE} are kept")


def _uniform(random: np.random.RandomState, below: int, count: int) -> np.ndarray:
    """Draw numbers from 0 to ``below`` - 1, like C++'s library with a Mersenne twister.

    Source: Lemire, arXiv:1805.10941.
    """
    drawn = np.zeros(0 if below else count, np.int64)
    while missing := count - len(drawn):  # and not one more: the next call continues here
        products = below * random.randint(2**32, size=missing, dtype=np.uint32).astype(np.int64)
        drawn = np.append(drawn, products[products % 2**32 >= 2**32 % below] >> 32)
    return drawn
