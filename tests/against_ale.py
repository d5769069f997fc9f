"""Hold the emulator against ALE: no byte may differ.

``compare_frames`` plays one game against ``ale_py.ALEInterface`` and compares all RAM, all pixels
of the screen as numbers of colours and as colours, points and ends after every emulated frame.
``compare_steps`` plays many games against ``ale_py.AtariVectorEnv``, with any settings, and
compares what every step returns. The first difference is an error that says where it is. A seed
repeats a comparison.

A million emulated frames take half an hour: ``python -m tests.against_ale``.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from ale_py import ALEInterface, AtariVectorEnv, LoggerMode, roms
from gymnasium.vector import AutoresetMode

from emulator import PongVectorEnv
from emulator.games import draw_game, reset_games, scratch, step_games
from emulator.pong import FIRE, LEFT, NOOP, RIGHT, new_game
from emulator.rom import BALL_Y, PADDLE_Y_A
from emulator.state import FIELDS
from emulator.television import COLOURS, RGB
from emulator.tia import LINES, WIDTH

NO_LIMIT = 10**9  # emulated frames
# Games that the agent wins, if no no-ops come before them: the actions, each for four emulated
# frames. They were found by trying many actions in copies of a game, and taking what won a point.
WON_GAMES = Path(__file__).with_name("won_games.txt").read_text().split()

Player = Callable[[np.ndarray], np.ndarray]  # RAM, uint8 (games, 128) -> actions (games,)


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


def winning(seed: int) -> Player:
    """The actions of the game of ``WON_GAMES`` with this number, then nothing."""
    actions = chain(map(int, WON_GAMES[seed]), repeat(NOOP))
    return lambda ram: np.array([next(actions)])


@dataclass(frozen=True)
class Settings:
    """How an agent sees the games; the names are those of ``PongVectorEnv``."""

    stack: int = 4
    frame_skip: int = 4
    max_pool: bool = True
    noop_max: int = 30
    reward_clipping: bool = True
    max_num_frames_per_episode: int = 108_000


# Settings that differ in what they ask of the emulator: which pictures are seen, where a step is
# cut short, how a game begins.
SETTINGS = (
    Settings(),
    Settings(stack=1, reward_clipping=False),
    Settings(max_pool=False),
    Settings(frame_skip=1),
    Settings(frame_skip=1, max_pool=False),
    Settings(frame_skip=2),
    Settings(frame_skip=3),
    Settings(frame_skip=5, stack=2),
    *(Settings(noop_max=n) for n in (0, 1, 2)),
    *(Settings(stack=2, max_num_frames_per_episode=n) for n in (1, 2, 3, 49, 50, 51, 52)),
    *(Settings(max_pool=False, max_num_frames_per_episode=n) for n in (49, 50, 51, 52)),
    Settings(max_num_frames_per_episode=503),
)


class OneGame:
    """A game whose every emulated frame can be looked at, the one in which it ends, too."""

    def __init__(self) -> None:
        self.state = np.zeros((FIELDS, 2), np.int32, order="F")
        self._beginning, self._work = new_game(), scratch()
        self._seen = np.zeros((2, 1, 84, 84), np.uint8)
        self._results = np.zeros(2, np.int32), np.zeros(2, bool), np.zeros(2, bool)
        self.screen = np.zeros((LINES, WIDTH), np.uint8)
        self.reset()

    @property
    def ram(self) -> np.ndarray:
        """uint8 (128,)."""
        return self.state[:128, 0].astype(np.uint8)

    def reset(self) -> None:
        """A new game, and FIRE."""
        self.state[:] = 0
        noops = np.ones((1, 2), np.int32)
        reset_games(self.state, 0, 1, self._beginning, noops, COLOURS, self._work, self._seen)

    def act(self, action: int) -> tuple[int, bool]:
        """Play an emulated frame: its points, and whether the game has ended."""
        rewards, over, cut = self._results
        actions, settings = np.array([action, 0]), (1, False, NO_LIMIT)
        step_games(
            self.state, 0, 1, COLOURS, self._work, actions, settings, self._seen, self._seen,
            rewards, over, cut,
        )  # fmt: skip
        draw_game(self.state, 0, COLOURS, self._work, self.screen)
        return int(rewards[0]), bool(over[0])


def ale_game(cartridge: Path | None = None) -> ALEInterface:
    """Pong in ALE, as its vector environment sets it up, before the first FIRE.

    Args:
        cartridge: another one, in a file that is called pong.bin, too.
    """
    ALEInterface.setLoggerMode(LoggerMode.Error)  # no welcome
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)
    ale.loadROM(cartridge or roms.get_rom_path("pong"))
    ale.reset_game()
    return ale


def ale_games(games: int, settings: Settings) -> AtariVectorEnv:
    """ALE's vector environment with these settings."""
    told = asdict(settings)
    return AtariVectorEnv(
        "pong",
        games,
        stack_num=told.pop("stack"),
        frameskip=told.pop("frame_skip"),
        maxpool=told.pop("max_pool"),
        autoreset_mode=AutoresetMode.SAME_STEP,
        **told,
    )


def compare_frames(player: Player, frames: int, ram: dict[int, int] | None = None) -> Counter:
    """Compare a game, and those that follow, emulated frame by emulated frame.

    Args:
        player: acts in every fourth of them.
        frames: emulated frames to play.
        ram: what to put into both RAMs before them, by its place.

    Returns:
        How many points were scored by both sides, and how many games were won and lost.
    """
    tally: Counter = Counter()
    own, ale = OneGame(), ale_game()
    actions = ale.getMinimalActionSet()
    ale.act(actions[FIRE])
    for place, value in (ram or {}).items():
        own.state[place, 0] = value
        ale.setRAM(place, value)
    for frame in range(frames):
        if frame % 4 == 0:
            (action,) = player(own.ram[None])
        points = ale.act(actions[action])
        own_points, over = own.act(int(action))
        where = f"emulated frame {frame:,}"
        _same(where, "RAM", ale.getRAM(), own.ram)
        _same(where, "the screen", ale.getScreen(), own.screen)
        if frame % 16 == 0:
            _same(where, "colours of the screen", ale.getScreenRGB(), RGB[own.screen])
        _same(where, "points", points, own_points)
        _same(where, "the end", ale.game_over(), over)
        tally["points"] += abs(points)
        if over:
            tally["won" if points > 0 else "lost"] += 1
            ale.reset_game()
            ale.act(actions[FIRE])
            own.reset()
            _same(where, "RAM after the reset", ale.getRAM(), own.ram)
    return tally


def compare_steps(
    settings: Settings, player: Player, steps: int, games: int, seed: int = 0
) -> Counter:
    """Compare games step by step, across their ends.

    Args:
        settings, player: how the games are seen and played.
        steps, games: how many.
        seed: of the games.

    Returns:
        How many points were scored, and how many games were won, lost, and truncated.
    """
    tally: Counter = Counter()
    envs = PongVectorEnv(games, seed=seed, threads=1, **asdict(settings))
    ale = ale_games(games, settings)
    ale_seen, ale_info = ale.reset(seed=seed)
    seen, info = envs.reset()
    _same(f"{settings}", "the first observations", ale_seen, seen)
    _same(f"{settings}", "the first emulated frames", *map(_frames, (ale_info, info)))
    for step in range(steps):
        actions = player(envs.ram)
        own_step = envs.step(actions)
        compare_step(f"{settings}, step {step:,}", ale.step(actions), own_step)
        _, rewards, terminated, truncated, _ = own_step
        tally["points"] += int(np.abs(rewards).sum())
        tally["won"] += int((terminated & (rewards > 0)).sum())
        tally["lost"] += int((terminated & (rewards < 0)).sum())
        tally["truncated"] += int(truncated.sum())
    envs.close()
    return tally


def compare_step(where: str, ale_step: tuple[Any, ...], own_step: tuple[Any, ...]) -> None:
    """Compare what a step returned."""
    names = ("observations", "rewards", "terminated", "truncated")
    for name, theirs, own in zip(names, ale_step[:4], own_step[:4], strict=True):
        _same(where, name, theirs, own)
    ale_info, info = ale_step[4], own_step[4]
    _same(where, "emulated frames", _frames(ale_info), _frames(info))
    ended = own_step[2] | own_step[3]
    _same(where, "an end", "final_obs" in ale_info, "final_obs" in info)
    if ended.any():
        _same(where, "last observations", *(i["final_obs"][ended] for i in (ale_info, info)))


def _frames(info: dict[str, Any]) -> np.ndarray:
    return info["episode_frame_number"]


def _same(where: str, what: str, theirs: Any, own: Any) -> None:
    if not np.array_equal(own, theirs):  # a tenth of the time
        told = f"{where}: {what} differ, ALE's are the second"
        np.testing.assert_array_equal(own, theirs, told, strict=True)


def main() -> None:
    """Compare a million emulated frames."""
    for player in (at_random, following):
        for seed in range(10):
            print(player.__name__, seed, dict(compare_frames(player(seed), 30_000)), flush=True)
        for seed, settings in enumerate(SETTINGS):
            tally = compare_steps(settings, player(seed), 600, games=4, seed=seed)
            print(player.__name__, settings, dict(tally), flush=True)
    for number, actions in enumerate(WON_GAMES):
        print("won game", dict(compare_frames(winning(number), 4 * len(actions))), flush=True)


if __name__ == "__main__":
    main()
