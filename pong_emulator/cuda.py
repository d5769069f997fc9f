"""Games on a GPU: the same functions, compiled for CUDA, and their launches.

A step is two kernels. ``play`` gives every game a thread, which emulates and logs the changes of
the screen. ``see`` gives every game a block of threads, which share the columns of its pictures,
then the pixels of the observation.

At a reset, all games would wait for up to 29 emulated frames. As nothing in the emulator is random,
the state after each number of frames is computed once, and copied.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numba
import numpy as np
import torch
from gymnasium.error import NoAsyncCallError
from numba import boolean, cuda, int32, int64, uint8
from numba.cuda.dispatcher import CUDADispatcher

from .compiling import argument_types, compiled, kept
from .errors import EmulatorError
from .games import log_of, most_changes, reset_games, scratch, step
from .preprocessing import COLUMN_UNITS, LINE_UNITS, SIZE, WEIGHTS, half_way, lines_of
from .state import BANK, EMULATED_FRAMES, FIELDS, LOG_SIZE, NOOPS_DRAWN
from .television import GREYS, LOOK, draw
from .tia import LINES, WIDTH
from .vector_env import DRAWS, BasePongVectorEnv, Seed, Settings, check_changes, check_range

if not hasattr(np, "row_stack"):  # NumPy 2.5 has removed it, and numba-cuda 0.30 names it
    np.row_stack = np.vstack
WARP = 32  # threads that execute each instruction together
WARPS = 16  # that a processor can run at once, at least: ``play`` takes 86 registers
VIEWERS = 128  # threads of a block that draws, half of them for each of the two pictures
ROWS = 80  # different rows that a picture can have; Pong's have up to 40
WATCH = DRAWS // 4  # steps from one check of the device's counts to the next
numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # a few games are a few blocks, which is fine
# Numba's simulator plays in Python, in the CPU's memory, to test kernels without a GPU.
SIMULATED = bool(numba.config.ENABLE_CUDASIM)

if not SIMULATED:
    compile_device = CUDADispatcher.compile_device

    def compile_once(self: Any, arguments: Any, return_type: Any = None) -> Any:
        """Compile a function for int32: 64 bits are two registers, and two instructions."""
        if self.py_func.__module__.startswith(str(__package__)):  # not other packages'
            arguments = argument_types(arguments, int32)
        return compile_device(self, arguments, return_type)

    CUDADispatcher.compile_device = compile_once


# torch's stream on the current GPU; always the same object, because Numba caches launches.
external_stream = cache(lambda gpu, pointer: cuda.external_stream(pointer))
kernel: Any = partial(kept, cuda.jit(cache=True))  # compiled when needed, then cached


@kernel
def begin(games, beginnings, noops):
    """Begin new games, with one thread each."""
    s, g = games.T, cuda.grid(1)
    if g < s.shape[1]:
        begin_game(s, g, beginnings, noops)


@kernel
def play(games, beginnings, noops, actions, skip, max_pool, limit, rewards, over, cut, most):
    """Step all games, with one thread each, and begin anew those that end.

    Args:
        games: int32 (games, FIELDS), the state.
        beginnings: int32 (numbers, FIELDS), see ``beginnings``.
        noops: as for ``games.reset_games``.
        actions, rewards, over, cut: as for ``games.step_games``.
        skip, max_pool, limit: its settings.
        most: int32 (2,), output: the first becomes the number of a picture's changes, if too many.
    """
    s, g = games.T, cuda.grid(1)
    if g < s.shape[1]:
        rewards[g], over[g], cut[g], _ = step(s, g, actions[g], skip, max_pool, limit)
        changes = most_changes(s, g)
        if changes > LOG_SIZE:
            cuda.atomic.max(most, 0, changes)
        if over[g] or cut[g]:
            begin_game(s, g, beginnings, noops)
        else:
            s[BANK, g] = 1 - s[BANK, g]


@compiled
def begin_game(s, g, beginnings, noops):
    """Begin a game like ``games.reset``, from the state after its no-ops."""
    drawn = s[NOOPS_DRAWN, g]
    number = noops[drawn % noops.shape[0], g]
    for field in range(FIELDS):
        s[field, g] = beginnings[number, field]
    s[NOOPS_DRAWN, g] = drawn + 1


@kernel
def see(games, max_pool, first, last, over, cut, observations, most):
    """Draw the observations, with a block of threads for each game.

    Args:
        games, max_pool: as for ``play``.
        first, last: the rows of an observation that are drawn, [first, last).
        over, cut: bool (games,); where one is set, a new game begins.
        observations: uint8 (games, stack, 84, 84), replaced by the new ones.
        most: the second becomes the number of a picture's different rows, if too many.
    """
    rows = cuda.shared.array((2, ROWS, WIDTH), numba.uint8)
    row_of = cuda.shared.array((2, LINES), numba.int32)
    look = cuda.local.array(LOOK, numba.int32)
    s, g, thread = games.T, cuda.blockIdx.x, cuda.threadIdx.x
    half = cuda.blockDim.x // 2
    picture, part = thread // half, thread % half
    width = (WIDTH + half - 1) // half
    lines = lines_of((first, last))
    columns = part * width, min((part + 1) * width, WIDTH)
    log = log_of(s[BANK, g], picture if max_pool else 1)
    used = draw(s, g, log, GREYS, look, rows[picture], row_of[picture], lines, columns)
    if used > ROWS:
        cuda.atomic.max(most, 1, used)
    cuda.syncthreads()
    new, newest = over[g] or cut[g], observations.shape[1] - 1
    for place in range(thread, SIZE * SIZE, cuda.blockDim.x):
        y, x = place // SIZE, place % SIZE
        for i in range(newest):
            observations[g, i, y, x] = 0 if new else observations[g, i + 1, y, x]
        drawn = first <= y < last
        observations[g, newest, y, x] = small_pixel(rows, row_of, y, x) if drawn else 0


@compiled
def small_pixel(rows, row_of, y, x):
    """Return a pixel of ``preprocessing.shrink``, of the maximum of two pictures."""
    top, first = y * LINE_UNITS // 2, x * COLUMN_UNITS // 21
    total = 0
    for line in range(top, top + 3):
        row_0, row_1 = row_of[0, line], row_of[1, line]
        height = overlap(y, LINE_UNITS, line, 2)
        for i in range(first, first + 3):
            column = min(i, WIDTH - 1)  # the one beyond has no weight
            pixel = max(rows[0, row_0, column], rows[1, row_1, column])
            total += height * overlap(x, COLUMN_UNITS, i, 21) * np.int32(pixel)
    if total % WEIGHTS == WEIGHTS // 2:
        return half_way(rows[0], row_of[0], rows[1], row_of[1], y, x)
    return (total + WEIGHTS // 2) // WEIGHTS  # faster than ``preprocessing.QUOTIENTS``


@compiled
def overlap(small, units, large, width):
    """Return the units that a small pixel shares with a line or column ``width`` units wide."""
    begin, end = max(small * units, large * width), min((small + 1) * units, (large + 1) * width)
    return max(end - begin, 0)


TABLE, COUNTS, FLAGS = int32[:, ::1], int32[::1], boolean[::1]
KERNELS = {  # and their argument types
    begin: 3 * (TABLE,),
    play: (*3 * (TABLE,), int64[::1], int64, boolean, int64, COUNTS, FLAGS, FLAGS, COUNTS),
    see: (TABLE, boolean, int64, int64, FLAGS, FLAGS, uint8[:, :, :, ::1], COUNTS),
}


def prepare(device: str) -> None:
    """Compile the kernels for this GPU, or load them from the cache."""
    with cuda.gpus[torch.device(device).index or 0]:
        for function, arguments in KERNELS.items():
            function.compile(arguments)


class CudaPongVectorEnv(BasePongVectorEnv):
    """``PongVectorEnv`` with ``device="cuda"``: the same games, and nothing leaves the device.

    Actions, observations, rewards, ends and the numbers in ``info`` are torch tensors on the
    device. ``send`` launches kernels on torch's current stream. There is no ``info["final_obs"]``,
    and invalid actions do nothing.
    """

    def __init__(
        self,
        num_envs: int,
        settings: Settings,
        seed: Seed | None = None,
        device: Any = "cuda",
        games_per_warp: int = 0,
    ) -> None:
        check_range(0, WARP, games_per_warp=games_per_warp)
        super().__init__(num_envs, settings)
        # Fixed now: "cuda" means another device when torch's current device changes.
        self._gpu = torch.device(device).index
        if self._gpu is None:
            self._gpu = 0 if SIMULATED else torch.cuda.current_device()
        self.device = torch.device("cpu" if SIMULATED else f"cuda:{self._gpu}")
        if not games_per_warp and not SIMULATED:  # as few as let all games run at once
            processors = torch.cuda.get_device_properties(self.device).multi_processor_count
            games_per_warp = -(-self.num_envs // (WARPS * processors))
        self._players = min(games_per_warp or WARP, WARP)
        self._games = self._there(np.zeros((self.num_envs, FIELDS), np.int32))
        self._state = self._games.T
        self._beginnings = self._there(beginnings(max(settings.noop_max, 2), self._beginning))
        self._most = self._there(np.zeros(2, np.int32))
        self._noops_there = self._there(np.empty((DRAWS, self.num_envs), np.int32))
        self._blocks = -(-self.num_envs // self._players)
        self._seed(seed)

    def _there(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _here(self, state: torch.Tensor) -> np.ndarray:
        return state.cpu().numpy()

    def _draw_noops(self, draws: int, seeds: np.ndarray) -> None:
        super()._draw_noops(draws, seeds)
        self._noops_there.copy_(torch.from_numpy(self._noops))
        self._drawn = np.full(self.num_envs, draws)  # by game
        self._counts: torch.Tensor | None = None  # the device's counts, requested last
        self._steps = 0  # since then

    def reset(
        self, *, seed: Seed | None = None, options: dict[str, Any] | None = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Begin new games, see ``ThreadedPongVectorEnv.reset``; wait for earlier steps."""
        self._check_reset(options)
        if seed is None:  # resets use up no-ops, too
            self.check(self.counts().cpu().numpy())
            self._counts, self._steps = None, 0
        else:
            self._seed(seed)
        self._playing = []
        tables = self._games, self._beginnings, self._noops_there
        self._launch(begin, self._blocks, self._players, *map(_argument, tables))
        if self._observations is None:
            self._observations = torch.empty(self._shape, dtype=torch.uint8, device=self.device)
        new = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self._launch(see, self.num_envs, VIEWERS, *self._seeing(new, new, self._observations))
        return self._observations.clone(), self._info()

    def send(self, actions: Any) -> None:
        """Begin a step with actions, int64 (num_envs,): a tensor on the device, or an array.

        Raises:
            ValueError: actions have another shape, or are not integers.
            EmulatorError: a picture some steps ago could not be drawn correctly.
            gymnasium.error.Error: as for ``ThreadedPongVectorEnv.send``.
        """
        self._check_turn("send")
        actions = torch.as_tensor(actions, device=self.device)
        whole = torch.can_cast(actions.dtype, torch.int64) and actions.dtype != torch.bool
        if actions.shape != (self.num_envs,) or not whole:
            given = f"{actions.dtype} of shape {tuple(actions.shape)}"
            raise ValueError(f"actions are integers of shape ({self.num_envs},), not {given}")
        actions = actions.long().contiguous()
        rewards = torch.empty(self.num_envs, dtype=torch.int32, device=self.device)
        over, cut = torch.empty((2, self.num_envs), dtype=torch.bool, device=self.device)
        self.stepper(actions, self._observations, rewards, over, cut)()
        self._steps += 1
        if self._steps == WATCH:
            self._watch()
        self._playing = [rewards.sign_() if self._settings.reward_clipping else rewards, over, cut]

    def recv(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Return tensors that may not be computed yet, see ``ThreadedPongVectorEnv.recv``."""
        if not self._playing:
            raise NoAsyncCallError("recv: call send first", "recv")
        (rewards, over, cut), self._playing = self._playing, []
        return self._observations.clone(), rewards, over, cut, self._info()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.send(actions)
        return self.recv()

    def stepper(
        self, actions: torch.Tensor, observations: torch.Tensor, *outcome: torch.Tensor
    ) -> Callable[[], None]:
        """Return a function that plays a step with these tensors of the device.

        It only launches two kernels, so a CUDA graph can capture it after a first call. Its caller
        must call ``check``.

        Args:
            actions: int64 (num_envs,).
            observations: uint8, from ``reset``; each step replaces them.
            outcome: rewards, over and cut, as for ``play``; rewards are not clipped.
        """
        tables = self._games, self._beginnings, self._noops_there
        arguments = *tables, actions, *self._stepping, *outcome, self._most
        playing = [*map(_argument, arguments)]
        seeing = self._seeing(*outcome[1:], observations)

        def step() -> None:
            self._launch(play, self._blocks, self._players, *playing)
            self._launch(see, self.num_envs, VIEWERS, *seeing)

        return step

    def _seeing(self, *tensors: torch.Tensor) -> list[Any]:
        arguments = self._games, self._stepping[1], *self._seen, *tensors, self._most
        return [*map(_argument, arguments)]

    @property
    def changing(self) -> torch.Tensor:
        """The state, int32: a step changes it besides the stepper's tensors, always in place."""
        return self._games

    def counts(self) -> torch.Tensor:
        """Return new input for ``check``, int32 (2 + num_envs,), on the device."""
        return torch.cat([self._most, self._state[NOOPS_DRAWN]])

    def check(self, counts: np.ndarray) -> None:
        """Check the counts of some steps ago, and draw new no-ops in place of used ones.

        Call it so often that no game uses up its ``DRAWS`` no-ops in between. It draws once a game
        has used a quarter of them.

        Raises:
            EmulatorError: a picture could not be drawn correctly, or no-ops ran out.
        """
        changes, rows, *_ = counts.tolist()
        if changes or rows:
            self._most.zero_()
            raise EmulatorError(
                f"a picture had {changes or 'few'} changes and {rows or 'few'} different rows, "
                f"but only {LOG_SIZE} and {ROWS} are kept"
            )
        kept = len(self._noops)
        used = counts[2:] - (self._drawn - kept)
        if used.max() > kept:
            raise EmulatorError("no-ops ran out: check was called too rarely")
        if used.max() < kept // 4:
            return
        for g in np.flatnonzero(used):
            places = (self._drawn[g] + np.arange(used[g])) % kept
            self._noops[places, g] = self._next_noops(self._randoms[g], int(used[g]))
        self._drawn += used
        noops = torch.from_numpy(self._noops)  # unused ones stay as they are
        self._noops_there.copy_(noops if SIMULATED else noops.pin_memory(), non_blocking=True)

    def _watch(self) -> None:
        """Check the counts requested last time, and request new ones."""
        seen, self._counts, self._steps = self._counts, None, 0
        if seen is not None:
            if not SIMULATED:
                self._arrived.synchronize()  # so the CPU never gets further ahead
            self.check(seen.numpy())
        self._counts = self.counts().to("cpu", non_blocking=True)
        if not SIMULATED:
            self._arrived: Any = torch.cuda.current_stream(self.device).record_event()

    def _launch(self, function: Any, blocks: int, threads: int, *arguments: Any) -> None:
        with cuda.gpus[self._gpu]:  # otherwise Numba launches on torch's current device
            stream: Any = 0
            if not SIMULATED:
                pointer = torch.cuda.current_stream(self.device).cuda_stream
                stream = external_stream(self._gpu, pointer)
            function[blocks, threads, stream](*arguments)

    def _info(self) -> dict[str, Any]:
        return {"episode_frame_number": self._state[EMULATED_FRAMES].clone()}


def beginnings(count: int, beginning: np.ndarray) -> np.ndarray:
    """Return the states of new games after 0, 1, ... emulated frames, int32 (count, FIELDS).

    The first two are equal, because FIRE is always pressed. ``beginning`` is ``pong.new_game()``.
    """
    state = np.zeros((FIELDS, count), np.int32, order="F")
    noops = np.maximum(np.arange(count, dtype=np.int32), 1)[None]
    observations = np.empty((count, 1, SIZE, SIZE), np.uint8)
    changes = reset_games(
        state, 0, count, beginning, noops, GREYS, (0, SIZE), scratch(), observations
    )
    check_changes(changes)
    return np.ascontiguousarray(state.T)


def _argument(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.numpy() if SIMULATED else cuda.as_cuda_array(argument, sync=False)
