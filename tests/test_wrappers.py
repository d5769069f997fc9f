"""The wrappers, against hand-made environments and against gymnasium's own."""

import importlib
import re
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

from lib.envs import atari_wrappers as wrappers
from lib.envs.atari_wrappers import RESIZERS, make_atari, wrap_deepmind
from lib.envs.experience import RESET, Episode, ExperienceSource, Transitions
from lib.envs.preprocessing import PONG_ROWS, Preprocessing
from lib.training.evaluation import make_env

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

PONG = "PongNoFrameskip-v4"


def stacked(env: gym.Env) -> wrappers.FrameStack:
    return wrappers.FrameStack(wrappers.ImageToPyTorch(wrappers.WarpFrame(env)), 2)


class Scripted(gym.Env):
    """Shows pictures of one colour, with a reward each, until the last one; keeps the actions."""

    observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self, *colours, lives=(), reward=1.0, cut=False) -> None:
        self.colours, self.left, self.reward = colours, lives or [0] * len(colours), reward
        self.get_action_meanings = lambda: ["NOOP", "FIRE", "UP"]
        self.ale, self.cut, self.begun, self.actions = self, cut, [], []

    def lives(self) -> int:
        return self.left[self.position]

    def clone_state(self, include_rng: bool) -> Any:
        return SimpleNamespace(serialize=bytes)

    def picture(self) -> np.ndarray:
        return np.full(self.observation_space.shape, self.colours[self.position], np.uint8)

    def reset(self, *, seed=None, options=None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.position = 0
        self.begun.append((seed, options))
        return self.picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.position += 1
        self.actions.append(action)
        ended = self.position == len(self.colours) - 1
        return self.picture(), self.reward, ended and not self.cut, ended and self.cut, {}


def test_noop_reset_plays_one_to_noop_max_noops():
    played = set()
    for seed in range(40):
        wrappers.NoopReset(inner := Scripted(*range(20)), noop_max=5).reset(seed=seed)
        played.add((*inner.actions,))
    assert played == {(0,) * count for count in range(1, 6)}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("wrapper", [wrappers.NoopReset, wrappers.FireReset])
def test_a_game_that_is_over_at_once_begins_again(wrapper, cut):
    env = wrapper(gym.wrappers.RecordEpisodeStatistics(inner := Scripted(7, 8, cut=cut)))
    env = stacked(wrappers.EpisodicLife(env))
    state, info = env.reset(seed=0, options={"of": "ours"})
    assert np.asarray(state).max() == 7
    assert inner.begun[:2] == [(0, {"of": "ours"}), (None, {"of": "ours"})]
    assert wrapper is wrappers.NoopReset or info["episode"]["l"] == 1


@pytest.mark.parametrize("cut", [False, True])
def test_a_life_is_lost_when_there_are_fewer_but_some_left(cut):
    """A life may be won; where none is left, the game says that it is over, now or later."""
    inner = Scripted(*range(5), lives=[1, 2, 1, 0, 0], cut=cut)
    env = wrappers.LifeStack(stacked(inner).env, 2)
    env.reset()
    first, second = zip(*(env.step(2)[0].frames for _ in range(4)), strict=True)
    assert [frame.max() for frame in first] == [0, 2, 2, 3], "the second life begins with 2"
    assert [frame.max() for frame in second] == [1, 2, 3, 4]
    inner.begun, inner.actions = [], []
    env = wrappers.EpisodicLife(inner)
    env.reset()
    ends = [env.step(2)[2:4] for _ in range(4)]
    assert ends == [(False, False), (True, False), (False, False), (not cut, cut)]
    env.reset()
    assert (inner.position, inner.actions, len(inner.begun)) == (0, [2] * 4, 2)


@pytest.mark.parametrize(("max_pool", "seen"), [(False, 4), (True, 30)])
def test_actions_are_repeated_and_rewards_summed(max_pool, seen):
    """It returns the last frame, or the maximum of the last two."""
    inner = Scripted(0, 200, 9, 30, 4, 5, cut=max_pool)
    env = wrappers.Skip(inner, 4, max_pool)
    env.reset()
    for action, *expected in ((2, seen, 4.0, False, False), (1, 5, 1.0, not max_pool, max_pool)):
        observation, *others, _ = env.step(action)  # the second has one frame, and no stale one
        assert [observation.max(), *others] == expected
    assert inner.actions == [2, 2, 2, 2, 1]


@pytest.mark.parametrize("cut", [False, True])
def test_whole_games_survive_lives_and_clipping(cut):
    inner = Scripted(*range(8), lives=[3, 3, 3, 2, 2, 2, 1, 1], reward=-5.0, cut=cut)
    env = wrappers.FireReset(wrappers.EpisodicLife(gym.wrappers.RecordEpisodeStatistics(inner)))
    env = stacked(wrappers.ClipReward(env))
    steps = [step for (step,) in islice(ExperienceSource([env], lambda states: [2]), 6)]
    assert [step.rewards.item() for step in steps] == [-1.0] * 6
    assert [step.terminated.item() for step in steps] == [False, True, True] * 2
    # Seven steps of -5 points; four of them, after a reset or a lost life, are not the agent's.
    assert [step.episodes[0] for step in steps] == [None, None, Episode(-35.0, 3)] * 2
    assert (inner.actions, len(inner.begun)) == ([1, 2, 2, 0, 1, 2, 0] * 2 + [1], 3)
    assert [frame.max() for step in steps for frame in step.first_frames] == [1, 5, 1, 5]
    assert [step.frames.max() for step in steps] == [2, 3, 6] * 2


def test_a_game_cut_short_shows_nothing_in_the_next_one():
    env = stacked(gym.wrappers.RecordEpisodeStatistics(Scripted(*range(1, 5), cut=True)))
    steps = [step for (step,) in islice(ExperienceSource([env], lambda states: [2]), 6)]
    assert not any(step.terminated for step in steps)
    assert [step.episode_starts.item() for step in steps] == [True, False, False] * 2
    assert [step.first_frames.max(initial=0) for step in steps] == [1, 0, 0] * 2
    assert [step.frames.max() for step in steps] == [2, 3, 4] * 2
    assert [step.episodes[0] for step in steps] == [None, None, Episode(3.0, 3)] * 2


def test_any_game_is_played_and_what_is_none_is_refused_in_one_line():
    env = wrap_deepmind(make_atari("MsPacmanNoFrameskip-v4"))  # which has no FIRE
    env.reset(seed=0)
    env.step(0)
    hint = r"\Aunknown environment .* for example (\w+)NoFrameskip-v4\Z"
    for name in ("PnogNoFrameskip-v4", "Pong-v4", "ALE/Pong-v5", "PongNoFrameskip-v0", "", "Cart"):
        with pytest.raises(ValueError, match=hint) as error:
            make_atari(name)
        assert re.search(hint, str(error.value))[1] == "Pong" or "n" not in name


def test_every_resizer_makes_a_small_grey_picture():
    screen, _ = gym.make(PONG).reset(seed=0)
    dot = np.zeros((3 * 84, 3 * 84), np.uint8)
    dot[99, 33] = 255  # the first of nine pixels, which become one
    seen = {}
    for name in RESIZERS:
        seen[name] = wrappers.WarpFrame(gym.make(PONG), name).observation(dot)[33, 11, 0]
        wide = wrappers.WarpFrame(gym.make(PONG), name, size=96)
        assert wide.observation_space.shape == (96, 96, 1)
        assert wide.observation_space.contains(wide.observation(screen))
    means = {"opencv-area": 28, "pillow-box": 28, "pillow-bilinear": 13}
    assert seen == {"opencv-linear": 0, "opencv-nearest": 255, **means}
    assert wrap_deepmind(make_atari(PONG), size=42).reset()[0].shape == (4, 42, 42)


def test_pictures_equal_gymnasiums_pixel_for_pixel():
    """Where agents of vector environments are played; wrappers take the maximum of colours."""
    # no-ops off: the two draw their number differently from the same seed
    reference = AtariPreprocessing(gym.make(PONG), noop_max=0, frame_skip=4, screen_size=84)
    reference = FrameStackObservation(reference, 4, padding_type="reset")
    played = Preprocessing(PONG, vector_env=True, noop_max=0, fire_reset=False)
    ours, coloured = make_env(played), make_env(replace(played, vector_env=False))
    coloured.reset(seed=1)
    expected, observation = reference.reset(seed=1)[0], ours.reset(seed=1)[0]
    over, edges, moving = 0, 0, np.zeros(84, bool)
    for action in np.random.default_rng(0).integers(6, size=1_000):
        assert np.array_equal(observation, expected)
        coloured_now = coloured.step(action)[0]
        expected, *expected_rest = reference.step(action)
        observation, *rest = ours.step(action)
        assert rest[:3] == expected_rest[:3]
        moving |= np.ptp(observation, axis=2).any(axis=0)
        edges = max(edges, np.abs(coloured_now - observation.astype(int)).max())
        if rest[1]:  # a game over within the skip: gymnasium shows frames of the step before
            over += 1
            expected, observation = reference.reset()[0], ours.reset()[0]
            coloured.reset()
    assert over
    assert 0 < edges <= 16
    first, after = PONG_ROWS
    assert moving[first:after].all()
    assert not moving[first - 4 : first].any(), "the wall above"
    assert not moving[78:].any(), "the wall below"


@pytest.mark.filterwarnings("ignore::UserWarning")  # what is slow, and that it is no array
def test_a_stack_shares_its_frames_and_is_used_as_an_array():
    env = wrap_deepmind(make_atari(PONG))
    state, _ = env.reset(seed=0)
    following = env.step(0)[0]
    assert all(one is two for one, two in zip(state.frames[1:], following.frames[:3], strict=True))
    pixels = np.asarray(state)
    assert (state.shape, state.dtype, len(state)) == ((4, 84, 84), np.uint8, 4)
    assert env.observation_space.contains(pixels)
    assert np.array_equal(torch.tensor(state), pixels)
    assert np.array_equal(np.array(state, dtype=bool, copy=True), pixels > 0)
    with pytest.raises(ValueError, match="always a copy"):
        np.asarray(state, copy=False)
    inverted = wrappers.LazyFrames([255 - frame for frame in state.frames])
    assert state == env.reset(seed=0)[0] != inverted
    check_env(env, skip_render_check=True, skip_close_check=True)
    env = wrappers.FrameStack(wrappers.ImageToPyTorch(Scripted(1)), 2)
    state, _ = env.reset()
    assert state.shape == np.asarray(state).shape == env.observation_space.shape == (6, 210, 160)


@pytest.mark.parametrize("game", ["YarsRevenge", "Tennis", "Breakout"])
def test_a_later_game_is_played_again_as_it_was(game):
    """The first game leaves its RAM, drawn by ALE, to the second; in Breakout lives are lost."""

    def play(frames: int, *saved: dict) -> tuple[ExperienceSource, list[Transitions]]:
        env = make_atari(f"{game}NoFrameskip-v4", max_num_frames_per_episode=400)
        agent = lambda states: [np.asarray(states[0]).sum() % env.action_space.n]  # noqa: E731
        source = ExperienceSource([wrap_deepmind(env)], agent, seed=1)
        for state in saved:
            source.load_state_dict(state)
        return source, [step for (step,) in islice(source, frames)]

    source, played = play(150)
    assert any(step.episodes[0] for step in played)
    assert (RESET in source.state_dict()["games"][0]["actions"]) == (game == "Breakout")
    expected = play(210)[1]
    assert any(step.episodes[0] for step in expected[150:])
    for start, steps in ((source, expected[150:]), (play(0)[0], expected)):
        _, resumed = play(len(steps), start.state_dict())
        for step, same in zip(resumed, steps, strict=True):
            assert np.array_equal(step.frames, same.frames)
            assert step.episodes == same.episodes


@pytest.mark.parametrize("script", ["04_new_wrappers_n_env", "04_new_wrappers_parallel"])
def test_every_choice_of_04_is_a_flag(script):
    rung = importlib.import_module(script)
    usual = "<FrameStack<ClipReward<ImageToPyTorch<WarpFrame<FireReset<EpisodicLife<RecordEpis"
    env = rung.make_env(rung.Options())
    assert str(env).startswith(usual)
    assert not env.get_wrapper_attr("max_pool")
    switched = dict.fromkeys(("episodic_life", "fire_reset", "clip_reward"), False)
    switched |= {"noop_max": 5, "max_pool": True, "stack": 3, "resize": "opencv-nearest", "skip": 2}
    env = rung.make_env(rung.Options(**switched))
    kinds = "<FrameStack<ImageToPyTorch<WarpFrame<RecordEpisodeStatistics<Skip<NoopReset<"
    assert str(env).startswith(kinds)
    seen = [env.get_wrapper_attr(name) for name in ("noop_max", "max_pool", "skip", "resize")]
    assert seen == [5, True, 2, RESIZERS["opencv-nearest"]]
    with pytest.raises(ValueError, match="pass skip, not frameskip"):  # it would be 16 frames
        make_atari(PONG, frameskip=4)
    assert env.observation_space.shape == (3, 84, 84)
