"""The emulator against ALE, of which no byte may differ, and as a vector environment."""

import multiprocessing
import os
import pickle
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from pong_emulator import EmulatorError, PongVectorEnv, threads, vector_env
from pong_emulator.pong import FIRE, LEFT, NOOP, RIGHT
from pong_emulator.rom import BALL_Y, CLOCK, LAST_POINT, PADDLE_Y_A, POINTS_B
from pong_emulator.television import GREYS, RGB

import cv2
import gymnasium
import numba
import numpy as np
import pytest
from ale_py import ALEInterface, AtariVectorEnv, LoggerMode, roms
from gymnasium import error as errors
from gymnasium.vector import AutoresetMode
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.usefixtures("console")
# Elsewhere, C++'s library draws other no-ops for ALE.
DRAWN_ALIKE = {} if sys.platform == "linux" else {"noop_max": 0}
RANDOM = np.random.default_rng(0).integers(6, size=(2_000, 4))  # actions of 4 games
# A game that the agent wins, if no no-ops come before it: the actions. They were found by trying
# many in copies of a game, and taking what won a point.
WON_GAME = Path(__file__).with_name("won_games.txt").read_text().strip()

Player = Callable[[np.ndarray], Sequence[int]]  # RAM, uint8 (games, 128) -> actions (games,)
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


def ale_game(cartridge: Path | None = None) -> ALEInterface:
    """Pong in ALE, or another cartridge, as its vector environment sets it up, before FIRE."""
    ALEInterface.setLoggerMode(LoggerMode.Error)  # no welcome
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)
    ale.loadROM(cartridge or roms.get_rom_path("pong"))
    ale.reset_game()
    return ale


def ale_games(**settings: Any) -> AtariVectorEnv:
    """ALE's vector environment, with settings of ``PongVectorEnv``."""
    keywords = {ALE_NAMES.get(name, name): value for name, value in settings.items()}
    return AtariVectorEnv("pong", autoreset_mode=AutoresetMode.SAME_STEP, **keywords)


def compare_frames(player: Player, frames: int, ram: dict[int, int] | None = None) -> Counter:
    """Compare the second of two games, and those that follow, by every emulated frame.

    Games begin with ``ram``, by its place. Returns points, and games won and lost.
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


def envs(num_envs: int = 4, **settings):
    return PongVectorEnv(num_envs, **{"seed": 7, "stack": 2, "threads": 2} | settings)


def begun(num_envs: int = 4, **settings):
    games = envs(num_envs, **settings)
    games.reset()
    return games


def play_alike(actions: np.ndarray, one, *others) -> None:
    """Step all with the same actions; all that they return must be equal."""
    for number, action in enumerate(actions):
        expected = one.step(action)
        for other in others:
            compare_results(f"step {number}", expected, other.step(action))


@pytest.fixture
def before_a_share(monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Makes threads call a function before they play their games; they fail if it says so."""

    patch, play = monkeypatch.setattr, threads.step_games
    return lambda call: patch(threads, "step_games", lambda *share: call() or play(*share))


def test_every_emulated_frame_is_that_of_ale() -> None:
    assert compare_frames(at_random(1), 4_500)["lost"] == 1
    assert compare_frames(following(1), 3_000)["points"] > 2
    winning = map(int, WON_GAME)
    assert compare_frames(lambda ram: [next(winning)], 4 * len(WON_GAME))["won"] == 1


def test_long_games_are_those_of_ale(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some 65,200 emulated frames the program shows the game in ever other colours.

    Some make means half way between two greys, which OpenCV rounds up or down.
    """
    late = vector_env.new_game()
    late[CLOCK] = 255
    monkeypatch.setattr(vector_env, "new_game", lambda: late)
    assert compare_frames(at_random(1), 4 * 1_500, ram={CLOCK: 255})["points"] > 0


# A cartridge that shows one colour after the other. SEI; CLD; LDX #FF; TXS; LDA #0; STA 96, in
# which ALE looks for the number of the game; frame: LDA #2; STA VSYNC; three STA WSYNC; LDA #0; STA
# VSYNC; STA VBLANK; LDX #0; line: STA WSYNC; TXA; ASL; STA COLUBK; INX; BNE line; JMP frame
RAINBOW = """
    78 D8 A2 FF 9A A9 00 85 96 A9 02 85 00 85 02 85 02 85 02 A9 00 85 00 85 01 A2 00
    85 02 8A 0A 85 09 E8 D0 F7 4C 09 F0
"""


def test_all_128_colours_are_those_of_ale(tmp_path: Path) -> None:
    code = bytes.fromhex(RAINBOW)
    cartridge = tmp_path / "pong.bin"
    cartridge.write_bytes(code.ljust(2048 - 4, b"\0") + bytes.fromhex("00 F0 00 F0"))
    ale = ale_game(cartridge)
    ale.act(ale.getMinimalActionSet()[0])
    screen = ale.getScreen()
    assert len(np.unique(screen)) == 128
    assert np.array_equal(RGB[screen], ale.getScreenRGB())
    assert np.array_equal(GREYS[screen], ale.getScreenGrayscale())


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, 1_050),
        ({"num_envs": 1}, 40),
        *(({"stack": 1, "frame_skip": 300, "reward_clipping": c}, 5) for c in (True, False)),
        *(({"frame_skip": n, "stack": 2}, 40) for n in (1, 2, 3, 5)),
        *(({"frame_skip": n, "max_pool": False}, 40) for n in (1, 4)),
        *(({"noop_max": n}, 40) for n in (0, 1, np.int32(2))),
        # Where a step is cut short decides which pictures are seen.
        *(({"max_num_frames_per_episode": n}, 40) for n in (1, 2, 3, 49, 50, 51, 52)),
        *(({"max_num_frames_per_episode": n, "max_pool": False}, 40) for n in (49, 50, 51, 52)),
    ],
    ids=str,
)
def test_every_setting_is_that_of_ale(settings: dict, steps: int, monkeypatch) -> None:
    monkeypatch.setattr(vector_env, "DRAWS", 8)  # in place of 64 resets that are drawn at once
    settings = {"num_envs": 2} | DRAWN_ALIKE | settings
    player, ends = at_random(2), np.zeros(2, int)
    own, ale = PongVectorEnv(seed=2, threads=2, **settings), ale_games(**settings)
    compare_results("reset", ale.reset(seed=2), own.reset())
    for step in range(steps):
        actions = player(own.ram)
        results = own.step(actions)
        compare_results(f"step {step:,}", ale.step(actions), results)
        ends += np.sum(results[2:4], axis=1)
    assert [*(ends >= 2)] == [steps > 40, "max_num_frames_per_episode" in settings]


def test_games_go_on_after_every_kind_of_reset_as_those_of_ale() -> None:
    own, theirs = envs(2, **DRAWN_ALIKE), ale_games(num_envs=2, stack=2, **DRAWN_ALIKE)
    for number, seed in enumerate([7, None, np.array([5, 3]), None, 8]):
        if number > 2:  # a step that nobody waits for is played before new games begin
            own.send(RANDOM[0, :2])
            theirs.step(RANDOM[0, :2])
        compare_results(f"seed {seed}", theirs.reset(seed=seed), own.reset(seed=seed))
        for actions in RANDOM[: 3 * number, :2]:
            compare_results(f"after seed {seed}", theirs.step(actions), own.step(actions))
    # Without a seed they differ from run to run, but for 0 and 1 no-ops.
    first, second = (envs(seed=None).reset()[1]["episode_frame_number"] for _ in range(2))
    assert not np.array_equal(first, second)


def test_threads_and_halves_of_a_step_make_no_difference(monkeypatch) -> None:
    """No-ops are drawn before a game's 9th, 17th, 33rd and 65th reset, while nobody reads them."""
    monkeypatch.setattr(vector_env, "DRAWS", 8)
    settings = {"frame_skip": 1, "max_num_frames_per_episode": 2, "noop_max": 10, "stack": 1}
    one, seeds = envs(64, threads=1, **settings), np.arange(7, 71)
    others = [envs(64, threads=n, seed=seeds, **settings) for n in (2, 3)]
    each, seeds[:] = [one, *others], 0  # the caller may change its own
    for number, action in enumerate(np.random.default_rng(0).integers(6, size=(140, 64))):
        if number in (0, 15):
            results = [games.reset() for games in each]
        elif number % 3:
            results = [games.step(action) for games in each]
        else:
            for games in others:
                games.send(action)
            results = [one.step(action), *(games.recv() for games in others)]
        for result in results[1:]:
            compare_results(f"call {number}", results[0], result)
        assert results[0][-1]["episode_frame_number"].min() > 0


def test_a_game_that_ends_more_often_than_another_has_its_own_no_ops(monkeypatch) -> None:
    """A game ends with the next point: soon where nobody moves, and late in a rally."""
    (late := vector_env.new_game())[POINTS_B] = LAST_POINT - 1
    monkeypatch.setattr(vector_env, "new_game", lambda: late)
    monkeypatch.setattr(vector_env, "DRAWS", 2)
    games, others, follow = envs(2), envs(2), following(1)
    begun = games.reset()[1]["episode_frame_number"].tolist()[:1]
    while len(begun) < 6:
        *_, over, _, info = games.step([NOOP, *follow(games.ram[1:])])
        begun += info["episode_frame_number"][:1][over[:1]].tolist()
    assert info["episode_frame_number"][1] > 200
    assert begun == [others.reset()[1]["episode_frame_number"][0] for _ in begun]


@pytest.mark.parametrize("max_pool", [True, False])
def test_rows_that_are_not_drawn_stay_black(max_pool: bool) -> None:
    """Where games begin, go on, end, and are cut short in the midst of a step, too."""

    def observations(**rows: Any) -> list[np.ndarray]:
        games = envs(max_pool=max_pool, max_num_frames_per_episode=50, **rows)
        results = [games.reset(), *map(games.step, RANDOM[:40])]
        return [array for array in tree_leaves(results) if array.ndim == 4]

    whole, part = observations(), observations(rows=(13, 73))
    assert len(whole) > 41
    for expected, seen in zip(whole, part, strict=True):
        assert np.array_equal(expected[..., 13:73, :], seen[..., 13:73, :])
        assert not np.delete(seen, np.s_[13:73], axis=2).any()


@pytest.mark.parametrize(("count", "asked"), [(4, 3), (4, 0), (3, 8)])
def test_threads_play_at_once(count, asked, before_a_share, monkeypatch) -> None:
    """Each waits in the midst of its step until all of them are there; 0: one for each core."""
    monkeypatch.setattr(numba.config, "NUMBA_DEFAULT_NUM_THREADS", 3)
    games, together, who = begun(count, threads=asked), threading.Barrier(3), []

    def wait() -> None:
        who.append(threading.current_thread() is threading.main_thread())
        together.wait(timeout=60)

    before_a_share(wait)
    games.step([0] * count)
    games.send([0] * count)
    games.recv()
    assert sorted(who[:3]) == [False, False, True], "a step takes the caller's thread for one"
    assert not any(who[3:]), "the caller may do something else"


@pytest.mark.parametrize("mine", [True, False])
def test_an_error_in_any_thread_is_raised_when_nobody_plays_any_more(mine, before_a_share) -> None:
    games, raised, played = begun(), threading.Event(), []

    def fail() -> int | None:
        if (threading.current_thread() is threading.main_thread()) == mine:
            return 10**6  # changes of a picture, too many
        raised.wait(timeout=0.2)  # it must not come before this thread is done
        return played.append("its share")

    before_a_share(fail)
    with pytest.raises(EmulatorError, match="a picture changed"):
        games.step([0] * 4)
    assert played
    raised.set()


@pytest.mark.parametrize("call", ["step", "ram", "copy", "reset", "reset after one of two shares"])
def test_what_follows_an_interruption_waits_for_the_step(call, before_a_share, monkeypatch) -> None:
    games, others, goes_on = begun(threads=3), begun(threads=1), threading.Event()
    others.step(RANDOM[0])

    def hold() -> None:
        if threading.current_thread() is not threading.main_thread():
            goes_on.wait(timeout=60)

    before_a_share(hold)
    wait, interrupt = threads.wait, Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch:
        if "shares" in call:
            submits = iter([threads.ThreadPoolExecutor.submit])
            submit = lambda *task: next(submits, interrupt)(*task)  # noqa: E731
            patch.setattr(threads.ThreadPoolExecutor, "submit", submit)
        else:
            patch.setattr(threads, "wait", Mock(side_effect=[None, KeyboardInterrupt]))
        with pytest.raises(KeyboardInterrupt):
            games.step(RANDOM[0])
    monkeypatch.setattr(threads, "wait", lambda futures: goes_on.set() or wait(futures))
    if call == "ram":
        assert np.array_equal(games.ram, others.ram)
    if call == "copy":
        games = deepcopy(games)
    if "reset" in call:
        compare_results(call, games.reset(), others.reset())
    play_alike(RANDOM[1:20], games, others)


@pytest.mark.parametrize("count", [1, 3])
def test_only_reset_follows_an_interruption_of_the_callers_share(count, before_a_share) -> None:
    games, others, interrupted = begun(threads=count), begun(), []

    def interrupt() -> None:
        if threading.current_thread() is threading.main_thread() and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    before_a_share(interrupt)
    with pytest.raises(KeyboardInterrupt):
        games.step(RANDOM[0])
    with pytest.raises(errors.ResetNeeded):
        games.step(RANDOM[0])
    others.step(RANDOM[0])
    for each in (games, others):
        each.reset(seed=1)
    play_alike(RANDOM[1:20], games, others)


def test_no_game_begins_with_no_ops_whose_draw_was_interrupted(monkeypatch) -> None:
    monkeypatch.setattr(vector_env, "DRAWS", 8)
    games, others = begun(), begun()
    for number in range(1, 20):  # the 9th and 17th reset draw
        for seed in (100, None) * (number in (8, 16)):
            second = Mock(**{"randint.side_effect": KeyboardInterrupt})
            randoms = Mock(side_effect=[np.random.RandomState(0), second, second, second])
            with monkeypatch.context() as patch:
                patch.setattr(np.random, "RandomState", randoms)
                with pytest.raises(KeyboardInterrupt):
                    games.reset(seed=seed)
        compare_results(f"reset {number}", games.reset(), others.reset())


@pytest.mark.parametrize("count", [1, 3])
def test_threads_end_with_their_games(count: int) -> None:
    before, games = {*threading.enumerate()}, begun(threads=count)
    games.step([0] * 4)
    games.send([0] * 4)
    theirs = {*threading.enumerate()} - before
    games.close()
    assert bool(theirs) == (count > 1), "one thread is the caller's"
    assert not any(thread.is_alive() for thread in theirs)


@pytest.mark.parametrize("count", [1, 3])
def test_reset_follows_pictures_that_changed_too_often(count, monkeypatch) -> None:
    games, others = envs(threads=count), envs()
    with monkeypatch.context() as patch:
        patch.setattr(vector_env, "LOG_SIZE", 20)
        with pytest.raises(EmulatorError, match=r"\d times, more than 20 are kept") as told:
            games.reset(seed=0)
        patch.setattr(vector_env, "LOG_SIZE", int(re.search(r"\d+", str(told.value))[0]))
        games.reset(seed=0)  # as many are kept
    for play in (lambda: games.step([0] * 4), lambda: games.send([0] * 4) or games.recv()):
        games.reset(seed=7)
        with monkeypatch.context() as patch:
            patch.setattr(vector_env, "LOG_SIZE", -1)
            with pytest.raises(EmulatorError, match="a picture changed"):
                play()
        with pytest.raises(errors.ResetNeeded):
            games.step([0] * 4)
    for each in (games, others):
        each.reset(seed=7)
    play_alike(RANDOM[:50], games, others)


def test_gymnasium_makes_it_and_shows_what_is_played() -> None:
    with pytest.raises(errors.Error, match="make_vec"):
        gymnasium.make("pong_emulator/Pong-v0")
    settings = {"seed": 7, "stack": 2, "frame_skip": 3}
    games = gymnasium.make_vec("pong_emulator/Pong-v0", 2, render_mode="rgb_array", **settings)
    assert games.render_mode in games.metadata["render_modes"]
    assert games.metadata["render_fps"] == 20
    assert games.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert games.single_action_space.n == 6
    other = envs(2, **settings)
    seen, _ = games.reset()
    assert seen in games.observation_space
    assert np.array_equal(seen, other.reset()[0])
    pictures = [games.render()]
    for actions in RANDOM[:10, :2]:
        assert actions in games.action_space
        seen, *results, _ = games.step(actions)
        assert np.array_equal(seen, other.step(actions)[0])
        assert [a.dtype for a in (seen, *results)] == [np.uint8, np.int32, bool, bool]
        pictures.append(games.render())
    assert other.render() is None
    # What gymnasium's RecordVideo expects: one picture of each game, new after each step.
    for both in pictures:
        assert [(p.shape, p.dtype) for p in both] == [((210, 160, 3), np.uint8)] * 2
    assert not np.array_equal(pictures[0][0], pictures[-1][0])
    for number in (-1, 2, 1_000):
        with pytest.raises(IndexError, match=f"there is no game {number}, there are 0 to 1"):
            games.screen(number)
    with pytest.raises(IndexError):
        begun(1).screen(1)
    with pytest.raises(ValueError, match="reset knows no options"):
        games.reset(options={"reset_mask": np.ones(2, bool)})
    games.close()
    games.close()


def test_nobody_else_has_the_arrays_of_the_games() -> None:
    games, others = envs(threads=1), envs(threads=2)
    seen, last = games.reset()[0], list(others.reset())
    for actions in RANDOM[:20].copy():
        before, kept = last, deepcopy(last)
        seen[:] = 0
        games.send(actions)
        others.send(actions.copy())
        actions[:] = 0
        (seen, *_), last = games.recv(), list(others.recv())
        assert np.array_equal(seen, last[0])
        for one, other in zip(tree_leaves(before), tree_leaves(kept), strict=True):
            assert np.array_equal(one, other), "a step leaves the arrays of the last one alone"


@pytest.mark.parametrize("copy", [deepcopy, lambda games: pickle.loads(pickle.dumps(games))])
def test_a_copy_of_games_goes_on_as_they_do(copy: Callable) -> None:
    games = begun(seed=2**31 - 4)
    games.step(RANDOM[0])
    other = copy(games)
    play_alike(RANDOM[:300], games, other)
    games.send(RANDOM[0])
    with pytest.raises(errors.AlreadyPendingCallError, match="call recv first"):
        copy(games)
    games.recv()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_games_go_on_in_a_fork() -> None:
    games, (ours, theirs) = begun(), multiprocessing.Pipe()
    games.step([0] * 4)  # the threads have begun
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=lambda: theirs.send(games.step([2] * 4)[0]), daemon=True)
    process.start()
    assert ours.poll(60)
    assert np.array_equal(ours.recv(), games.step([2] * 4)[0])
    process.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_fork_during_a_step_begins_anew(before_a_share) -> None:
    games, goes_on, (ours, theirs) = begun(threads=2), threading.Event(), multiprocessing.Pipe()

    def child() -> None:
        with suppress(errors.NoAsyncCallError):
            theirs.send(games.recv())
        with suppress(errors.ResetNeeded):
            theirs.send(games.step([2] * 4))
        goes_on.set()
        games.reset()
        theirs.send(games.step([2] * 4)[0])

    before_a_share(lambda: goes_on.wait(timeout=60) and 0)
    games.send([0] * 4)
    process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
    process.start()
    assert ours.poll(60)
    goes_on.set()
    games.recv()
    games.reset()
    assert np.array_equal(ours.recv(), games.step([2] * 4)[0])
    process.join()


@pytest.mark.parametrize(
    "actions",
    [[0, 0, 0], [0, 0, 0, 6], [0, 0, 0, -1], np.zeros(4), None, np.zeros((4, 1), int), ["a"] * 4],
)
def test_what_is_no_action_is_refused_in_one_line(actions: object) -> None:
    games = begun()
    with pytest.raises(ValueError, match=r"\Aactions are integers from 0 to 5 of shape \(4,\).*\Z"):
        games.send(actions)
    games.step([0, 0, 0, 5])  # and the games go on


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 0) for name in ("num_envs", "frame_skip", "stack", "max_num_frames_per_episode")),
        *(("threads", -1), ("noop_max", -1), ("max_num_frames_per_episode", 2**31)),
        *(("num_envs", 2.0), ("frame_skip", 4.0), ("frame_skip", True)),
        *(("seed", seed) for seed in ([1, 2], 1.7, True, 2**63, [0, 1, 2, -1])),
        *(("seed", seed) for seed in (2**31 - 3, [0, 1, 2, 2**31])),  # ALE refuses them, too
        *(("render_mode", "human"), ("device", "mps"), ("device", "cudax")),
        *(("rows", rows) for rows in ((5, 5), (0, 85), (-1, 3), (0.5, 3), (1, 2, 3), 5)),
        ("rows", (0, 84.5)),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"\A{name} (is|has) "):
        envs(**{name: value})


CALLS = {  # error -> calls, of which the last one raises it
    errors.ResetNeeded: ["step", "render"],
    errors.NoAsyncCallError: ["reset recv", "reset send close recv"],
    errors.AlreadyPendingCallError: [f"reset send {call}" for call in ("send", "screen", "ram")],
    errors.ClosedEnvironmentError: ["reset close send", "reset close screen", "close reset"],
}


@pytest.mark.parametrize(("error", "calls"), [(e, call) for e in CALLS for call in CALLS[e]])
def test_calls_out_of_order_are_refused(error: type[Exception], calls: str) -> None:
    games, arguments = envs(render_mode="rgb_array"), {"screen": [0]}
    arguments["step"] = arguments["send"] = [[0] * 4]
    *before, last = calls.split()
    for call in before:
        getattr(games, call)(*arguments.get(call, []))
    with pytest.raises(error, match=f"^{last}: "):
        getattr(games, last)(*arguments.get(last, []))
