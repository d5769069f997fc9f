"""Hold the emulator against ALE: no byte may differ.

``compare_frames`` plays one game against ``ale_py.ALEInterface`` and compares all RAM, all pixels
of the screen as numbers of colours, points and ends after every emulated frame. ``compare_steps``
plays many games against ``ale_py.AtariVectorEnv``, with any settings, and compares what every step
returns; and RAM and screens with an ``ALEInterface`` of each game. The first difference is an
error that says where it is. A seed repeats a comparison.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ale_py import ALEInterface, AtariVectorEnv, LoggerMode, roms
from gymnasium.vector import AutoresetMode

from emulator import PongVectorEnv
from emulator.games import draw_game, reset_games, scratch, step_games
from emulator.pong import FIRE, LEFT, NOOP, RIGHT, new_game
from emulator.state import FIELDS
from emulator.television import COLOURS
from emulator.tia import LINES, WIDTH

BALL_Y, PADDLE_Y = 54, 51  # in RAM
NO_LIMIT = 10**9  # emulated frames
# Games that the agent wins, if no no-ops come before them: the actions, each for four emulated
# frames. They were found by trying many actions in copies of a game, and taking what won a point.
WON_GAMES = Path(__file__).with_name("won_games.txt").read_text().split()


class Differs(AssertionError):  # noqa: N818, a finding
    """The emulator did not do what ALE did; the message says what, and where."""


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


@dataclass
class Tally:
    """What a comparison has seen."""

    frames: int = 0  # emulated and compared, but for those of a game's last step
    points: int = 0  # scored by both sides
    lost: int = 0  # games
    won: int = 0
    truncated: int = 0

    @property
    def ends(self) -> int:
        """Games that ended."""
        return self.lost + self.won + self.truncated


class Player:
    """Plays several games.

    Args:
        games: how many.
        seed: of what is random.
        repeats: how often it is asked in four emulated frames.
    """

    def __init__(self, games: int = 1, seed: int = 0, repeats: int = 1) -> None:
        self.random = np.random.default_rng(seed)
        self.repeats = repeats
        self.actions = np.zeros(games, np.int64)

    def __call__(self, ram: np.ndarray) -> np.ndarray:
        """Actions (games,), which may depend on RAM, uint8 (games, 128)."""
        raise NotImplementedError


class Random(Player):
    """Holds an action for some time."""

    def __call__(self, ram: np.ndarray) -> np.ndarray:
        n = len(ram)
        change = self.random.random(n) < 0.25
        self.actions = np.where(change, self.random.integers(6, size=n), self.actions)
        return self.actions


class Following(Player):
    """Follows the ball, but for one action in fifty, and so plays long rallies."""

    def __call__(self, ram: np.ndarray) -> np.ndarray:
        n = len(ram)
        above = ram[:, BALL_Y].astype(int) - ram[:, PADDLE_Y] - 10  # the middle of the paddle
        follow = np.where(above > 2, LEFT, np.where(above < -2, RIGHT, NOOP))
        follow[ram[:, BALL_Y] == 0] = FIRE  # there is no ball
        lapse = self.random.random(n) < 0.02
        return np.where(lapse, self.random.integers(6, size=n), follow)


class Winning(Player):
    """Game by game the actions of ``WON_GAMES``, from the one with the number ``seed`` on."""

    def __init__(self, games: int = 1, seed: int = 0, repeats: int = 1) -> None:
        super().__init__(games, seed, repeats)
        self.games = WON_GAMES[seed : seed + games]
        self.asked = 0

    def __call__(self, ram: np.ndarray) -> np.ndarray:
        place = self.asked // self.repeats
        self.asked += 1
        return np.array([int(game[place : place + 1] or NOOP) for game in self.games])


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


def ale_game() -> ALEInterface:
    """Pong in ALE, as its vector environment sets it up, before the first FIRE."""
    ALEInterface.setLoggerMode(LoggerMode.Error)  # no welcome
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)
    ale.loadROM(roms.get_rom_path("pong"))
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


def compare_frames(player: type[Player], seed: int, frames: int) -> Tally:
    """Compare a game, and those that follow, emulated frame by emulated frame.

    Args:
        player: acts in every fourth of them.
        seed: of the player.
        frames: emulated frames to play.

    Raises:
        Differs: something did.
    """
    tally = Tally(frames)
    play = player(1, seed)
    own, ale = OneGame(), ale_game()
    actions = ale.getMinimalActionSet()
    ale.act(actions[FIRE])
    action = np.array([NOOP])
    for frame in range(frames):
        if frame % 4 == 0:
            action = play(own.ram[None])
        points = ale.act(actions[action[0]])
        own_points, over = own.act(int(action[0]))
        where = f"{player.__name__} player, seed {seed}, emulated frame {frame:,}"
        _same(where, "RAM", ale.getRAM(), own.ram)
        _same(where, "the screen", ale.getScreen(), own.screen)
        _same(where, "points", points, own_points)
        _same(where, "the end", ale.game_over(), over)
        tally.points += abs(points)
        if over:
            tally.won += points > 0
            tally.lost += points < 0
            ale.reset_game()
            ale.act(actions[FIRE])
            own.reset()
            _same(where, "RAM after the reset", ale.getRAM(), own.ram)
    return tally


def compare_steps(
    settings: Settings,
    player: type[Player],
    seed: int,
    steps: int,
    games: int,
    screens: bool = True,
) -> Tally:
    """Compare games step by step, across their ends.

    Args:
        settings, player: how the games are seen and played.
        seed: of games and player.
        steps, games: how many.
        screens: compare RAM and screens, too; a game that begins then takes ALE 0.1 s.

    Raises:
        Differs: something did.
    """
    tally, play = Tally(), player(games, seed, 4 // settings.frame_skip)
    envs = PongVectorEnv(games, seed=seed, threads=1, **asdict(settings))
    ale, alone = ale_games(games, settings), [ale_game() for _ in range(games if screens else 0)]
    ale_seen, ale_info = ale.reset(seed=seed)
    seen, info = envs.reset()
    where = f"{settings}, {player.__name__} player, seed {seed}"
    _same(where, "the first observations", ale_seen, seen)
    _same(where, "the first emulated frames", *(_frames(i) for i in (ale_info, info)))
    for g, game in enumerate(alone):
        _begin(game, _frames(info)[g])
    for step in range(steps):
        actions = play(envs.ram)
        ale_step, own_step = ale.step(actions), envs.step(actions)
        here = f"{where}, step {step:,}"
        ended = compare_step(here, ale_step, own_step)
        for g, game in enumerate(alone):
            for _ in range(settings.frame_skip):
                game.act(game.getMinimalActionSet()[actions[g]])
            if ended[g]:
                game.reset_game()
                _begin(game, _frames(own_step[4])[g])
            _same(here, f"RAM of game {g}", game.getRAM(), envs.ram[g])
            _same(here, f"the screen of game {g}", game.getScreen(), envs.screen(g))
        _, rewards, terminated, truncated, _ = own_step
        tally.points += int(np.abs(rewards).sum())
        tally.frames += int((~ended).sum()) * settings.frame_skip
        tally.won += int((terminated & (rewards > 0)).sum())
        tally.lost += int((terminated & (rewards < 0)).sum())
        tally.truncated += int(truncated.sum())
    envs.close()
    return tally


def compare_step(where: str, ale_step: tuple[Any, ...], own_step: tuple[Any, ...]) -> np.ndarray:
    """Compare what a step returned; which games ended, bool (games,)."""
    names = ("observations", "rewards", "terminated", "truncated")
    for name, theirs, own in zip(names, ale_step[:4], own_step[:4], strict=True):
        _same(where, name, theirs, own)
    ale_info, info = ale_step[4], own_step[4]
    _same(where, "emulated frames", _frames(ale_info), _frames(info))
    ended = np.asarray(own_step[2] | own_step[3])
    _same(where, "an end", "final_obs" in ale_info, "final_obs" in info)
    if ended.any():
        last = (i["final_obs"][ended] for i in (ale_info, info))
        _same(where, "the last observations", *last)
    return ended


def _frames(info: dict[str, Any]) -> np.ndarray:
    return info["episode_frame_number"]


def _begin(game: ALEInterface, count: int) -> None:
    """Press FIRE, and then nothing, in so many emulated frames."""
    actions = game.getMinimalActionSet()
    for number in range(count):
        game.act(actions[NOOP if number else FIRE])


def _same(where: str, what: str, theirs: Any, own: Any) -> None:
    theirs, own = np.asarray(theirs), np.asarray(own)
    if theirs.shape != own.shape:
        raise Differs(f"{where}: {what} have the shape {own.shape}, ALE's {theirs.shape}")
    if not np.array_equal(theirs, own):
        places = np.argwhere(np.atleast_1d(theirs != own))
        raise Differs(
            f"{where}: {what} differ at {len(places):,} places, the first is "
            f"{tuple(places[0].tolist())}: {own[theirs != own][0]}, ALE {theirs[theirs != own][0]}"
        )
