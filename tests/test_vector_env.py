"""The vector environments: ALE's games and our emulator's, and games as a device's tensors."""

import threading
from dataclasses import replace
from itertools import chain, islice
from unittest.mock import Mock

import pong_emulator
from lib.envs.experience import Episode, Transitions
from lib.envs.gpu_vector_env import TensorVectorEnv, emulated_games
from lib.envs.preprocessing import PONG_ACTIONS, PONG_ROWS, Preprocessing
from lib.envs.vector_env import StackedVectorEnv, VectorExperienceSource, ale_games, fast_games
from lib.parallel.worker import ClusterOptions
from pong_emulator import PongVectorEnv
from pong_emulator.threads import ThreadedPongVectorEnv

import numpy as np
import pytest
import torch
from ale_py import AtariVectorEnv
from gymnasium import spaces

pytestmark = pytest.mark.usefixtures("console")
N, STACK = 2, 4
PONG = Preprocessing("PongNoFrameskip-v4", stack=STACK)


def play(games: AtariVectorEnv, steps: int) -> tuple[np.ndarray, list[Transitions]]:
    """What a random agent saw, uint8 (steps, games, stack, 84, 84), and its transitions."""
    states: list[np.ndarray] = []
    rng = np.random.default_rng(0)

    def agent(seen: np.ndarray) -> np.ndarray:
        states.append(seen.copy())
        return rng.integers(int(games.single_action_space.n), size=len(seen))

    source = VectorExperienceSource(StackedVectorEnv(games, PONG, seed=7), agent)
    transitions = [step for (step,) in islice(source, 1, steps + 1)]
    return np.stack(states[:steps]), transitions


def test_a_speedrun_sees_its_rows_at_half_the_resolution() -> None:
    frames = np.random.default_rng(0).integers(256, size=(N, STACK, 84, 84), dtype=np.uint8)
    half = replace(PONG, rows=PONG_ROWS, half=True).transform(frames)
    assert (half.shape, half.dtype) == ((N, STACK, 30, 42), np.uint8)
    field = frames[:, :, slice(*PONG_ROWS)].astype(int).reshape(N, STACK, 30, 2, 42, 2)
    darker = field.mean(axis=(3, 5)) - half
    assert darker.min() >= 0
    assert darker.max() <= 3


def test_players_with_and_without_the_emulator_play_the_same_pong(monkeypatch) -> None:
    limit = {"max_num_frames_per_episode": 1_200}
    console = fast_games("PongNoFrameskip-v4", N, max_pool=False, threads=1, **limit)
    assert isinstance(fast_games("BreakoutNoFrameskip-v4", N, False), AtariVectorEnv)
    monkeypatch.setattr(pong_emulator, "missing", lambda: "Numba is missing")
    ale = fast_games("PongNoFrameskip-v4", N, max_pool=False, threads=1, **limit)
    assert isinstance(console, ThreadedPongVectorEnv)
    assert isinstance(ale, AtariVectorEnv)
    (mine, mine_steps), (theirs, their_steps) = (play(games, 320) for games in (console, ale))
    assert np.array_equal(mine, theirs)
    assert any(step.episodes[0] for step in mine_steps)
    for one, other in zip(mine_steps, their_steps, strict=True):
        assert one.episodes == other.episodes
        for array, its in zip(one[:6], other[:6], strict=True):
            np.testing.assert_array_equal(array, its, strict=True)


def test_players_of_a_cluster_have_games_of_one_thread_with_their_settings() -> None:
    before = {*threading.enumerate()}
    mine = ClusterOptions(max_pool=True, stack=STACK).make_envs(N, seed=7)
    other = StackedVectorEnv(PongVectorEnv(N, **SETTINGS), PONG, seed=7)
    for actions in np.random.default_rng(0).integers(6, size=(20, N)):
        for games in (mine, other):
            games.send(actions)  # the first one begins the games
            games.recv()
        assert np.array_equal(mine.states, other.states)
    assert {*threading.enumerate()} == before


def test_games_without_a_gpu_have_as_many_threads_as_torch(monkeypatch) -> None:
    monkeypatch.setattr("lib.envs.gpu_vector_env.cores", lambda: 2)
    before = {*threading.enumerate()}
    games = emulated_games(N, torch.device("cpu"), PONG, games_per_warp=0)
    games.reset(seed=0)
    games.step(np.zeros(N, np.int64))
    assert {*threading.enumerate()} == before  # torch has one here


def test_a_lost_life_in_ale_ends_an_episode_and_the_game_goes_on() -> None:
    _, steps = play(ale_games("BreakoutNoFrameskip-v4", 1), 400)
    ends = [bool(step.episodes[0]) for step in steps]
    assert sum(step.terminated[0] for step in steps[: 1 + ends.index(True)]) == 5


def test_lost_lives_and_cut_games_are_the_ends_of_episodes() -> None:
    """A life is lost if there are fewer, but some left; games of 5 points a step are cut short."""

    def outcome(shown: int, lives: int, following: int = 0) -> tuple:
        """A picture of one colour, and that of the next game if this one is cut short."""
        last, no = np.full((1, 1, 84, 84), shown, np.uint8), np.zeros(1, bool)
        info = {"lives": np.array([lives]), "final_obs": last}
        frames = np.full_like(last, following or shown)
        return frames, np.full(1, 5), no, no | (following > 0), info

    outcomes = [(2, 2), (3, 1), (4, 0), (5, 3), (6, 1, 7), (8, 1), (9, 1, 10)]
    games = Mock(num_envs=1, single_observation_space=spaces.Box(0, 255, (1, 84, 84), np.uint8))
    games.single_action_space, games.reset.return_value = spaces.Discrete(3), outcome(1, 1)[::4]
    games.recv.side_effect = [outcome(*numbers) for numbers in outcomes]
    states, steps = play(games, 7)
    shown = [[1] * 4, [1, 1, 1, 2], [3] * 4, [3, 3, 3, 4], [3, 3, 4, 5], [7] * 4, [7, 7, 7, 8]]
    assert states[:, 0, :, 0, 0].tolist() == shown
    assert np.flatnonzero([step.terminated for step in steps]).tolist() == [1]
    assert np.flatnonzero([step.episode_starts for step in steps]).tolist() == [0, 2, 5]
    assert [step.first_frames.max(initial=0) for step in steps] == [1, 0, 3, 0, 0, 7, 0]
    assert [step.frames.max() for step in steps] == [2, 3, 4, 5, 6, 8, 9]
    assert {step.rewards.item() for step in steps} == {1.0}
    ends = [step.episodes[0] for step in steps]
    assert ends == [None] * 4 + [Episode(25.0, 5), None, Episode(10.0, 2)]


def test_ales_games_report_unclipped_points() -> None:
    games = ale_games("SkiingNoFrameskip-v4", 1, max_num_frames_per_episode=40)
    *_, last = play(games, 10)[1]
    assert last.rewards == -1
    assert (last.episodes[0].steps, last.episodes[0].reward < -20) == (10, True)


def test_a_game_on_a_device_is_over_when_it_is_terminated_or_cut() -> None:
    frames, yes = np.zeros((2, 1, 84, 84), np.uint8), np.array([True, False])
    games = Mock(spec=["reset", "step"])
    games.reset.return_value = frames, {}
    games.step.return_value = frames, np.int32([5, -5]), yes, ~yes, {}
    envs = TensorVectorEnv(2, PONG, 0, rollout=1)
    envs.reset(games)
    rewards, done = envs.step(torch.zeros(2, dtype=torch.int64))
    assert (rewards.tolist(), done.tolist()) == ([1, -1], [True, True])
    envs.report()
    assert envs.report() == ([Episode(5.0, 1), Episode(-5.0, 1)], (1, 1))


GAMES, STEPS, EVERY = 3, 320, 8
SETTINGS = {"stack": 1, "threads": 1, "reward_clipping": False, "max_num_frames_per_episode": 400}


def test_states_rewards_ends_and_games_are_those_of_the_cpu():
    preprocessing = Preprocessing("Pong", stack=3, rows=PONG_ROWS, actions=PONG_ACTIONS, half=True)
    here = StackedVectorEnv(PongVectorEnv(GAMES, **SETTINGS), preprocessing, seed=5)
    there = TensorVectorEnv(GAMES, preprocessing, 5, EVERY)
    there.reset(PongVectorEnv(GAMES, **SETTINGS))
    assert there.n_actions == here.n_actions == 3
    assert there.shape == here.shape
    random, games, reported = np.random.default_rng(0), [], []
    points, points_reported = np.zeros((STEPS, 2)), np.zeros(2)
    for step in range(STEPS):
        assert np.array_equal(here.states, there.states.numpy())
        actions = random.integers(3, size=GAMES)
        here.send(actions)
        mine, its = here.recv(), there.step(torch.from_numpy(actions))
        for one, other in zip((mine.rewards, mine.done), its, strict=True):
            assert np.array_equal(one, other.numpy())
            assert str(one.dtype) in str(other.dtype)
        games.append([game for game in mine.episodes if game])
        points[step] = mine.points
        if (step + 1) % EVERY == 0:  # what is reported is the rollout before
            episodes, won_and_lost = there.report()
            reported += episodes
            points_reported += won_and_lost
            known = step + 1 - EVERY
            assert reported == list(chain(*games[:known]))
            assert np.array_equal(points_reported, points[:known].sum(axis=0))
    assert len(reported) > GAMES
    assert points_reported[1] > 0
