"""The vector environment and the buffer on the device against the ladder's plain parts."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from ale_py import AtariVectorEnv

import pong_emulator
from lib.envs.experience import Episode, Transitions
from lib.envs.preprocessing import PONG_ROWS, Preprocessing
from lib.envs.vector_env import (
    StackedVectorEnv,
    VectorExperienceSource,
    ale_games,
    fast_games,
)
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.replay_buffer import ReplayBuffer
from pong_emulator.threads import ThreadedPongVectorEnv

pytestmark = pytest.mark.usefixtures("console")
N, STACK = 2, 4
PONG = Preprocessing("PongNoFrameskip-v4", stack=STACK)


Played = tuple[np.ndarray, list[Transitions]]


def play(games: AtariVectorEnv, steps: int) -> Played:
    """What a random agent saw, uint8 (steps, games, stack, 84, 84), and its transitions.

    Their actions are numbers from 0 on.
    """
    states: list[np.ndarray] = []
    rng = np.random.default_rng(0)

    def agent(seen: np.ndarray) -> np.ndarray:
        states.append(seen.copy())
        return rng.integers(int(games.single_action_space.n), size=len(seen))

    source = VectorExperienceSource(StackedVectorEnv(games, PONG, seed=7), agent)
    n = len(source.envs.states)
    transitions = [
        step._replace(frames=step.frames.copy(), actions=n * number + np.arange(n))
        for number, (step,) in enumerate(islice(source, 1, steps + 1))
    ]
    return np.stack(states[:steps]), transitions


def column(steps: list[Transitions], name: str, env: int = 0) -> list:
    """What every step tells of one game."""
    return [getattr(step, name)[env] for step in steps]


@pytest.fixture(scope="module")
def played() -> Played:
    return play(ale_games("PongNoFrameskip-v4", N), 1_400)


def test_whole_games_are_reported_and_begin_anew(played: Played) -> None:
    _, steps = played
    for env in range(N):
        episodes = column(steps, "episodes", env)
        ends = [i for i, episode in enumerate(episodes) if episode]
        assert ends, "a random player loses a game within 1,400 steps"
        assert np.flatnonzero(column(steps, "terminated", env)).tolist() == ends
        begins = np.flatnonzero(column(steps, "begins", env)).tolist()
        assert begins == [i for i in (0, *(end + 1 for end in ends)) if i < len(steps)]
        rewards = column(steps, "rewards", env)[: ends[0] + 1]  # Pong scores by ones
        assert episodes[ends[0]] == Episode(sum(rewards), len(rewards))


def test_outside_of_the_playing_field_nothing_moves_but_the_score(played: Played) -> None:
    seen = played[0][::10]
    for wall in (slice(9, 13), slice(78, 84)):  # the score is above them
        # Nothing in front of it: a row has one colour, another in the first frame.
        assert (seen[..., wall, :] == seen[..., wall, :1]).all()
    whole, field = (
        StackedVectorEnv(ale_games("PongNoFrameskip-v4", N), preprocessing, seed=7)
        for preprocessing in (PONG, replace(PONG, rows=PONG_ROWS))
    )
    for action in (0, 2, 3, 2):
        assert np.array_equal(field.states, whole.states[:, :, slice(*PONG_ROWS)])
        for envs in (whole, field):
            envs.send(np.full(N, action))
        step, cut = whole.recv(), field.recv()
        assert np.array_equal(cut.frames, step.frames[:, :, slice(*PONG_ROWS)])


def test_half_the_resolution_is_means_of_2x2_pixels(played: Played) -> None:
    frames = played[0][-1]
    half = replace(PONG, rows=PONG_ROWS, half=True).seen(frames)
    assert (half.shape, half.dtype) == ((N, STACK, 30, 42), np.uint8)
    field = frames[:, :, slice(*PONG_ROWS)].astype(int).reshape(N, STACK, 30, 2, 42, 2)
    darker = field.mean(axis=(3, 5)) - half
    assert darker.min() >= 0
    assert darker.max() <= 3


def test_players_with_and_without_the_emulator_play_the_same_pong(monkeypatch) -> None:
    console = fast_games("PongNoFrameskip-v4", N, max_pool=False, threads=1)
    assert isinstance(fast_games("BreakoutNoFrameskip-v4", N, False), AtariVectorEnv)
    monkeypatch.setattr(pong_emulator, "missing", lambda: "Numba is missing")
    ale = fast_games("PongNoFrameskip-v4", N, max_pool=False, threads=1)
    assert isinstance(console, ThreadedPongVectorEnv)
    assert isinstance(ale, AtariVectorEnv)
    both = [StackedVectorEnv(games, replace(PONG, stack=2), seed=7) for games in (console, ale)]
    rng, ended = np.random.default_rng(0), False
    for _ in range(900):
        actions = rng.integers(6, size=N)
        for envs in both:
            envs.send(actions)
        mine, theirs = (envs.recv() for envs in both)
        ended |= mine.ended.any()
        assert np.array_equal(both[0].states, both[1].states)
        assert mine.episodes == theirs.episodes
        for one, other in zip(mine[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
    assert ended


def test_a_lost_life_ends_an_episode_and_the_game_goes_on() -> None:
    states, steps = play(ale_games("BreakoutNoFrameskip-v4", 1), 400)
    game = steps[: 1 + [bool(step.episodes[0]) for step in steps].index(True)]
    lives = np.flatnonzero(column(game, "terminated")).tolist()
    assert len(lives) == 5
    assert lives[-1] == len(game) - 1
    begins = np.flatnonzero(column(game, "begins")).tolist()
    assert begins == [0, *(i + 1 for i in lives[:-1])]
    rewards = column(game, "rewards")  # each by one
    assert game[-1].episodes == [Episode(sum(rewards), len(rewards))]
    first = states[begins, 0]
    assert (first == first[:, -1:]).all(), "nothing of the last life"


@pytest.mark.parametrize("capacity", [200, 10_000])
def test_both_replay_buffers_return_what_the_agent_saw(played: Played, capacity: int) -> None:
    states, steps = played
    shape = (STACK, 84, 84)
    plain, device = ReplayBuffer(capacity, shape), DeviceReplayBuffer(capacity, shape)
    for step in steps:
        plain.extend([step])
        device.extend([step])
    assert len(plain) == len(device) == min(capacity, N * len(steps))
    batch = plain.sample(2_000)
    assert torch.equal(batch.states, torch.from_numpy(states.reshape(-1, *shape))[batch.actions])
    for one, other in zip(batch, device.gather(batch.actions % capacity), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [ReplayBuffer, DeviceReplayBuffer])
def test_only_whole_transitions_are_drawn(kind: type[ReplayBuffer]) -> None:
    """With episodes of one step every transition takes two frames; there is room for 38."""
    buffer, yes = kind(33, (2, 1, 1)), np.ones(1, bool)
    for i in range(200):
        frame, first = (np.full((1, 1, 1), shown % 200, np.uint8) for shown in (i, i + 100))
        action, reward = np.array([i]), np.array([i], np.float32)
        buffer.extend([Transitions(action, reward, yes, frame, yes, first, [None])])
    assert len(buffer) == 19
    batch = buffer.sample(1_000)
    assert torch.equal(batch.next_states[:, 1, 0, 0].long(), batch.actions % 200)
    assert torch.equal(batch.states[:, 0, 0, 0].long(), (batch.actions + 100) % 200)
    assert set(batch.actions.tolist()) == set(range(200 - len(buffer), 200))
