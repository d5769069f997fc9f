"""Hold the console of ``emulator`` against ALE: no byte may differ.

    frames  one game against ale_py.ALEInterface after every emulated frame: all RAM, all pixels of
            the screen as numbers of colours, points, and whether the game has ended
    steps   many games against ale_py.AtariVectorEnv after every step of an agent: observations,
            rewards, terminated, truncated, frames of the game, and the last observations of games
            that ended, for many settings

Both are played at random and with skill. Every run is told by its seed, and can be repeated by it.
The first difference ends the campaign, and is told with its place.

    python -m benchmarks console-campaign
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from ale_py import ALEInterface, AtariVectorEnv, LoggerMode, roms
from gymnasium.vector import AutoresetMode
from tqdm import tqdm

from benchmarks import Failed
from benchmarks.arguments import add_counts, add_out
from benchmarks.report import commit as told_commit
from benchmarks.report import join_machine, output_folder, write_table
from emulator import PongVectorEnv
from emulator.games import draw_game, reset_games, scratch, step_games
from emulator.pong import FIRE, LEFT, NOOP, POINTS_A, RIGHT, new_game
from emulator.state import FIELDS
from emulator.television import COLOURS
from emulator.tia import LINES, WIDTH
from lib.running.machine import describe_machine

BALL_Y, PADDLE_Y = 54, 51  # in RAM
NO_LIMIT = 10**9  # frames
SUMS = ("frames", "points", "ends", "won")  # of Tally


class Differs(AssertionError):  # noqa: N818, as Failed
    """The console did not do what ALE did; the message says what, and where."""


@dataclass(frozen=True)
class Settings:
    """How an agent sees the games; the names are those of ``PongVectorEnv``."""

    stack: int = 4
    frame_skip: int = 4
    max_pool: bool = True
    noop_max: int = 30
    reward_clipping: bool = True
    max_num_frames_per_episode: int = 108_000


# Settings that differ in what they ask of the console: which frames are seen, where a step is cut
# short, how a game begins.
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
)


@dataclass
class Tally:
    """What a run has compared."""

    kind: str  # frames or steps
    player: str
    seed: int
    settings: dict[str, Any]
    frames: int = 0  # emulated and compared, but for those of a game's last step
    points: int = 0  # scored by both sides
    ends: int = 0  # games
    won: int = 0  # of them by the agent
    seconds: float = field(default=0.0, compare=False)


Player = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]


def at_random(random: np.random.Generator, ram: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Actions (games,): others than those held now and then."""
    return np.where(random.random(len(held)) < 0.25, random.integers(6, size=len(held)), held)


def with_skill(random: np.random.Generator, ram: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Actions (games,): follow the ball, but for one in fifty."""
    above = ram[:, BALL_Y].astype(int) - ram[:, PADDLE_Y] - 10  # the middle of the paddle
    follow = np.where(above > 2, LEFT, np.where(above < -2, RIGHT, NOOP))
    follow[ram[:, BALL_Y] == 0] = FIRE  # there is no ball
    lapse = random.random(len(held)) < 0.02
    return np.where(lapse, random.integers(6, size=len(held)), follow)


PLAYERS: dict[str, Player] = {"random": at_random, "skilled": with_skill}


class Console:
    """A game whose every frame can be looked at, the one in which it ends, too."""

    def __init__(self) -> None:
        self.state = np.zeros((FIELDS, 2), np.int32, order="F")
        self._beginning, self._work = new_game(), scratch()
        self._seen = np.zeros((2, 1, 84, 84), np.uint8)
        self._results = np.zeros(2, np.int32), np.zeros(2, bool), np.zeros(2, bool)
        self.screen = np.zeros((LINES, WIDTH), np.uint8)
        self.changes = 0  # that the longest log was asked to hold
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
        """Play a frame: its points, and whether the game has ended."""
        rewards, over, cut = self._results
        actions, settings = np.array([action, 0]), (1, False, NO_LIMIT)
        changes = step_games(
            self.state, 0, 1, COLOURS, self._work, actions, settings, self._seen, self._seen,
            rewards, over, cut,
        )  # fmt: skip
        self.changes = max(self.changes, changes)
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


def compare_frames(player: str, seed: int, frames: int, given: int = 0) -> Tally:
    """Compare a game, and those that follow, frame by frame.

    Args:
        player: of ``PLAYERS``.
        seed: of the player.
        frames: to play.
        given: points that the agent has when a game begins, in both consoles' RAM; with 20 it wins
            by its next one.

    Raises:
        Differs: something did.
    """
    tally = Tally("frames", player, seed, {"given": given})
    random = np.random.default_rng(seed)
    console, ale = Console(), ale_game()
    actions = ale.getMinimalActionSet()

    def give() -> None:
        if given:
            ale.setRAM(POINTS_A, given)
            console.state[POINTS_A] = given

    ale.act(actions[FIRE])
    give()
    action = np.array([NOOP])
    for frame in range(frames):
        if frame % 4 == seed % 4:
            action = PLAYERS[player](random, console.ram[None], action)
        points = ale.act(actions[action[0]])
        own_points, over = console.act(int(action[0]))
        where = f"{player} player, seed {seed}, frame {frame:,}"
        _same(where, "RAM", ale.getRAM(), console.ram)
        _same(where, "the screen", ale.getScreen(), console.screen)
        _same(where, "points", points, own_points)
        _same(where, "the end", ale.game_over(), over)
        tally.points += abs(points) if abs(points) == 1 else 0  # not those that were given
        if over:
            tally.ends += 1
            tally.won += points > 0
            ale.reset_game()
            ale.act(actions[FIRE])
            console.reset()
            _same(where, "RAM after the reset", ale.getRAM(), console.ram)
            give()
    tally.frames = frames
    return tally


def compare_steps(
    settings: Settings, player: str, seed: int, steps: int, games: int, threads: int = 0
) -> Tally:
    """Compare games step by step, across their ends.

    Raises:
        Differs: something did.
    """
    tally, random = Tally("steps", player, seed, asdict(settings)), np.random.default_rng(seed)
    envs = PongVectorEnv(games, seed=seed, threads=threads, **asdict(settings))
    ale = ale_games(games, settings)
    ale_seen, ale_info = ale.reset(seed=seed)
    seen, info = envs.reset()
    where = f"{settings}, {player} player, seed {seed}"
    _same(where, "the first observations", ale_seen, seen)
    _same(where, "the first frames", *(i["episode_frame_number"] for i in (ale_info, info)))
    actions = np.zeros(games, np.int64)
    for step in range(steps):
        actions = PLAYERS[player](random, envs.ram, actions)
        ale_step, own_step = ale.step(actions), envs.step(actions)
        here = f"{where}, step {step:,}"
        ended = compare_step(here, ale_step, own_step)
        tally.points += int(np.abs(own_step[1]).sum())
        tally.frames += int((~ended).sum()) * settings.frame_skip
        tally.ends += int(ended.sum())
        tally.won += int((own_step[2] & (own_step[1] > 0)).sum())
    envs.close()
    return tally


def compare_step(where: str, ale_step: tuple[Any, ...], own_step: tuple[Any, ...]) -> np.ndarray:
    """Compare what a step returned; which games ended, bool (games,)."""
    names = ("observations", "rewards", "terminated", "truncated")
    for name, theirs, own in zip(names, ale_step[:4], own_step[:4], strict=True):
        _same(where, name, theirs, own)
    ale_info, info = ale_step[4], own_step[4]
    _same(where, "frames", ale_info["episode_frame_number"], info["episode_frame_number"])
    ended = np.asarray(own_step[2] | own_step[3])
    _same(where, "an end", "final_obs" in ale_info, "final_obs" in info)
    if ended.any():
        last = (i["final_obs"][ended] for i in (ale_info, info))
        _same(where, "the last observations", *last)
    return ended


def ale_games(games: int, settings: Settings, threads: int = 0) -> AtariVectorEnv:
    """ALE's vector environment with these settings."""
    told = asdict(settings)
    return AtariVectorEnv(
        "pong",
        games,
        num_threads=threads,
        stack_num=told.pop("stack"),
        frameskip=told.pop("frame_skip"),
        maxpool=told.pop("max_pool"),
        autoreset_mode=AutoresetMode.SAME_STEP,
        **told,
    )


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    counts = {
        "seeds": (10, "runs of each player, frame by frame"),
        "frames": (50_000, "frames of each of them"),
        "steps": (400, "steps of each setting and player"),
        "games": (8, "games in them"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/console")


def run(args: argparse.Namespace) -> int:
    """Compare, and write what was."""
    out = output_folder(args.out)
    begin, tallies = time.perf_counter(), []
    with tqdm(total=2 * (args.seeds + len(SETTINGS)), unit="run", disable=None) as bar:
        for tally in _campaign(args):
            tallies.append(tally)
            bar.update()
    _write(out, tallies, time.perf_counter() - begin)
    return 0


def _campaign(args: argparse.Namespace) -> Iterator[Tally]:
    works: list[Callable[[], Tally]] = []
    for player in PLAYERS:
        for seed in range(args.seeds):
            given = 18 if player == "skilled" and seed % 2 else 0  # so that games are won, too
            works.append(lambda p=player, s=seed, n=given: compare_frames(p, s, args.frames, n))
        for seed, settings in enumerate(SETTINGS):
            works.append(
                lambda p=player, s=seed, how=settings: compare_steps(
                    how, p, s, args.steps, args.games
                )
            )
    for work in works:
        begin = time.perf_counter()
        try:
            tally = work()
        except Differs as difference:
            raise Failed(str(difference)) from None
        tally.seconds = round(time.perf_counter() - begin, 1)
        yield tally


def _write(out: Path, tallies: list[Tally], seconds: float) -> None:
    machine = describe_machine(torch.device("cpu")) | {"numba": numba.__version__}
    commit = told_commit()
    record = {"machine": machine, "commit": commit, "runs": [asdict(tally) for tally in tallies]}
    (out / "campaign.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    rows = []
    for kind in ("frames", "steps"):
        for player in PLAYERS:
            some = [t for t in tallies if (t.kind, t.player) == (kind, player)]
            sums = [sum(getattr(t, name) for t in some) for name in SUMS]
            rows.append([kind, player, f"{len(some)}", *(f"{n:,}" for n in sums)])
    frames = sum(tally.frames for tally in tallies)
    notes = [
        f"{frames:,} emulated frames in {seconds / 60:.0f} minutes; nothing differed (the campaign "
        "ends with the first difference); campaign.json has every run with its seed",
        "frames: after every emulated frame all 128 bytes of RAM, all 210 x 160 pixels as numbers "
        "of colours, points and the end of the game, against ale_py.ALEInterface",
        "steps: after every step of an agent observations, rewards, terminated, truncated, frames "
        f"of the game and last observations, against ale_py.AtariVectorEnv, in {len(SETTINGS)} "
        "settings",
        f"python -m benchmarks console-campaign, commit {commit or 'unknown'}",
        f"{join_machine(machine)}, numba {numba.__version__}",
    ]
    header = ["compared", "player", "runs", "emulated frames", "points", "ends", "won"]
    write_table(out / "campaign", "The console against ALE", header, rows, notes)
