"""The vector environments: ALE's games and our emulator's, and games as a device's tensors."""

import threading
from dataclasses import replace
from itertools import chain, islice

import pong_emulator
from lib.envs.experience import Episode, Transitions
from lib.envs.gpu_vector_env import TensorVectorEnv
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


def test_a_speedrun_sees_where_something_moves_at_half_the_resolution() -> None:
    seen, _ = play(ale_games("PongNoFrameskip-v4", N), 1_400)
    for wall in (slice(9, 13), slice(78, 84)):  # the score is above them
        # Nothing in front of it: a row has one colour, another in the first frame.
        assert (seen[::10, ..., wall, :] == seen[::10, ..., wall, :1]).all()
    frames = seen[-1]
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


def test_a_lost_life_ends_an_episode_and_the_game_goes_on() -> None:
    states, steps = play(ale_games("BreakoutNoFrameskip-v4", 1), 400)
    game = steps[: 1 + [bool(step.episodes[0]) for step in steps].index(True)]
    lives = np.flatnonzero([step.terminated[0] for step in game]).tolist()
    assert len(lives) == 5
    assert lives[-1] == len(game) - 1
    begins = np.flatnonzero([step.episode_starts[0] for step in game]).tolist()
    assert begins == [0, *(i + 1 for i in lives[:-1])]
    rewards = [step.rewards[0] for step in game]  # each by one
    assert game[-1].episodes == [Episode(sum(rewards), len(rewards))]
    first = states[begins, 0]
    assert (first == first[:, -1:]).all(), "nothing of the last life"


class Scripted:
    """Games of some steps of 5 points, which are cut short; each picture has its own colour."""

    num_envs, single_action_space, shown = N, spaces.Discrete(3), 0
    single_observation_space = spaces.Box(0, 255, (1, 84, 84), np.uint8)

    def picture(self) -> np.ndarray:
        self.shown += 1
        return np.full((N, 1, 84, 84), self.shown, np.uint8)

    def reset(self, *, seed):
        return self.picture(), {}

    def send(self, actions):
        pass

    def recv(self):
        last, cut = self.picture(), self.shown % 4 == 3
        frames = self.picture() if cut else last
        return frames, np.full(N, 5), np.zeros(N, bool), np.full(N, cut), {"final_obs": last}


def test_a_game_that_is_cut_short_keeps_its_last_frame_and_its_reward() -> None:
    _, steps = play(Scripted(), 5)
    assert [step.frames.max() for step in steps] == [2, 3, 5, 6, 7]
    assert [step.first_frames.max(initial=0) for step in steps] == [1, 0, 4, 0, 0]
    games = [step.episodes[0] for step in steps]
    assert games == [None, Episode(10.0, 2), None, None, Episode(15.0, 3)]
    assert {(step.rewards[0], step.terminated[0]) for step in steps} == {(1.0, False)}


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
