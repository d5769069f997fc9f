"""Compare the emulator with ALE: no byte may differ.

``compare_frames`` compares it with ``ale_py.ALEInterface``: RAM, pixels, the agent's observation,
points and ends after every emulated frame. ``compare_steps`` compares what every step of many games
returns with ``ale_py.AtariVectorEnv``, with any settings. The first difference raises an error that
says where it is.
"""

from collections import Counter
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from pong_emulator import PongVectorEnv
from pong_emulator.pong import FIRE, LEFT, NOOP, RIGHT
from pong_emulator.rom import BALL_Y, PADDLE_Y_A

import cv2
import numpy as np
from ale_py import ALEInterface, AtariVectorEnv, LoggerMode, roms
from gymnasium.vector import AutoresetMode

# A game that the agent wins, if no no-ops come before it: the actions, each for four emulated
# frames. It was found by trying many actions in copies of a game, and taking what won a point.
WON_GAME = Path(__file__).with_name("won_games.txt").read_text().strip()

Player = Callable[[np.ndarray], np.ndarray]  # RAM, uint8 (games, 128) -> actions (games,)
ALE_NAMES = {"stack": "stack_num", "frame_skip": "frameskip", "max_pool": "maxpool"}


def at_random(seed: int) -> Player:
    """Holds an action for some time."""
    random, held = np.random.default_rng(seed), np.array(NOOP)

    def act(ram: np.ndarray) -> np.ndarray:
        nonlocal held
        n = len(ram)
        held = np.where(random.random(n) < 0.25, random.integers(6, size=n), held)
        return held

    return act


def following(seed: int) -> Player:
    """Follows the ball, but for one action in fifty, and so plays long rallies."""
    random = np.random.default_rng(seed)

    def act(ram: np.ndarray) -> np.ndarray:
        n = len(ram)
        above = ram[:, BALL_Y].astype(int) - ram[:, PADDLE_Y_A] - 10  # the middle of the paddle
        follow = np.where(above > 2, LEFT, np.where(above < -2, RIGHT, NOOP))
        follow[ram[:, BALL_Y] == 0] = FIRE  # there is no ball
        return np.where(random.random(n) < 0.02, random.integers(6, size=n), follow)

    return act


def winning() -> Player:
    """The actions of ``WON_GAME``, then nothing."""
    actions = chain(map(int, WON_GAME), repeat(NOOP))
    return lambda ram: np.array([next(actions)])


def ale_game(cartridge: Path | None = None) -> ALEInterface:
    """Pong in ALE, or another cartridge, as its vector environment sets it up, before FIRE."""
    ALEInterface.setLoggerMode(LoggerMode.Error)  # no welcome
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)
    ale.loadROM(cartridge or roms.get_rom_path("pong"))
    ale.reset_game()
    return ale


def ale_games(games: int, **settings: Any) -> AtariVectorEnv:
    """ALE's vector environment, with settings of ``PongVectorEnv``."""
    keywords = {ALE_NAMES.get(name, name): value for name, value in settings.items()}
    return AtariVectorEnv("pong", games, autoreset_mode=AutoresetMode.SAME_STEP, **keywords)


def compare_frames(player: Player, frames: int, ram: dict[int, int] | None = None) -> Counter:
    """Compare the second of two games, and those that follow, by every emulated frame.

    ``ram`` is what the emulator's games begin with, by its place: put into ALE's RAM, too. Returns
    the points of both sides, and games won and lost.
    """
    tally: Counter = Counter()
    settings = {"stack": 1, "threads": 1, "frame_skip": 1, "max_pool": False, "noop_max": 0}
    own, ale = PongVectorEnv(2, render_mode="rgb_array", **settings), ale_game()
    actions, over = ale.getMinimalActionSet(), True
    seen, _ = own.reset()
    for frame in range(frames):
        where = f"emulated frame {frame:,}"
        if over:
            ale.reset_game()
            for place, value in (ram or {}).items():
                ale.setRAM(place, value)
            ale.act(actions[FIRE])
        _same(where, "RAM", ale.getRAM(), own.ram[1])
        _same(where, "the screen", ale.getScreen(), own.screen(1))
        small = cv2.resize(ale.getScreenGrayscale(), (84, 84), interpolation=cv2.INTER_AREA)
        _same(where, "the observation", small, seen[1, 0])
        if frame % 16 == 0:
            _same(where, "the picture", ale.getScreenRGB(), own.render()[1])
        if frame % 4 == 0:
            (action,) = player(own.ram[1:])
        points = ale.act(actions[action])
        seen, (_, own_points), (_, over), *_ = own.step([NOOP, action])
        _same(where, "points", points, own_points)
        _same(where, "the end", ale.game_over(), over)
        tally["points"] += abs(points)
        if over:
            tally["won" if points > 0 else "lost"] += 1
    return tally


def compare_steps(player: Player, steps: int, games: int, seed: int, **settings: Any) -> Counter:
    """Compare games step by step, across their ends; returns how many ended, and were cut short."""
    tally: Counter = Counter()
    own = PongVectorEnv(games, seed=seed, threads=2, **settings)
    ale = ale_games(games, **settings)
    compare_results(f"{settings}, reset", ale.reset(seed=seed), own.reset())
    for step in range(steps):
        actions = player(own.ram)
        results = own.step(actions)
        compare_results(f"{settings}, step {step:,}", ale.step(actions), results)
        tally["ended"] += int(results[2].sum())
        tally["truncated"] += int(results[3].sum())
    return tally


def compare_results(where: str, theirs: tuple[Any, ...], own: tuple[Any, ...]) -> None:
    """Compare what ``reset`` or ``step`` returned."""
    names = ("observations", "rewards", "terminated", "truncated")
    for name, their, mine in zip(names, theirs[:-1], own[:-1], strict=False):
        _same(where, name, their, mine)
    ale_info, info = theirs[-1], own[-1]
    _same(where, "frames", *(each["episode_frame_number"] for each in (ale_info, info)))
    _same(where, "an end", "final_obs" in ale_info, "final_obs" in info)
    if "final_obs" in info:
        ended = own[2] | own[3]
        _same(where, "last observations", *(i["final_obs"][ended] for i in (ale_info, info)))


def _same(where: str, what: str, theirs: Any, own: Any) -> None:
    if not np.array_equal(own, theirs):  # a tenth of the time
        message = f"{where}: {what} differ, ALE's are the second"
        np.testing.assert_array_equal(own, theirs, message, strict=True)
