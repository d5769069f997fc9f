"""The wrappers, against hand-made environments and against gymnasium's own."""

import re
import runpy
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

from lib.envs.atari_wrappers import (
    RESIZERS,
    ClipReward,
    EpisodicLife,
    FireReset,
    FrameStack,
    ImageToPyTorch,
    LazyFrames,
    NoopReset,
    Skip,
    WarpFrame,
    make_atari,
    wrap_deepmind,
)
from lib.envs.experience import RESET, Episode, ExperienceSource, Transitions
from lib.envs.preprocessing import Preprocessing
from lib.training.evaluation import make_env

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

PONG = "PongNoFrameskip-v4"


class Scripted(gym.Env):
    """Shows pictures of one colour, with a reward each, until the last one; keeps the actions."""

    observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self, *colours, lives=(), reward=1.0, meanings=("NOOP", "FIRE", "UP")) -> None:
        self.colours, self.left, self.reward = colours, lives or [0] * len(colours), reward
        self.get_action_meanings = lambda: list(meanings)
        self.ale, self.resets, self.actions = self, 0, []

    def lives(self) -> int:
        return self.left[self.position]

    def clone_state(self, include_rng: bool) -> Any:
        return SimpleNamespace(serialize=bytes)

    def picture(self) -> np.ndarray:
        return np.full(self.observation_space.shape, self.colours[self.position], np.uint8)

    def reset(self, *, seed=None, options=None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.position = 0
        self.resets += 1
        return self.picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.position += 1
        self.actions.append(action)
        ended = self.position == len(self.colours) - 1
        return self.picture(), self.reward, ended, False, {}


def test_noop_reset_plays_one_to_noop_max_noops_and_follows_the_seed():
    counts = []
    for seed in [*range(40), 0]:
        inner = Scripted(*range(20))
        NoopReset(inner, noop_max=5).reset(seed=seed)
        assert set(inner.actions) == {0}
        counts.append(len(inner.actions))
    assert set(counts) == {1, 2, 3, 4, 5}
    assert counts[0] == counts[-1]
    inner = Scripted(7, 8)  # over after one step: begins again
    assert NoopReset(inner, noop_max=3).reset(seed=0)[0].max() == 7


@pytest.mark.parametrize(("max_pool", "seen"), [(False, 4), (True, 30)])
def test_actions_are_repeated_and_rewards_summed(max_pool, seen):
    """It returns the last frame, or the maximum of the last two."""
    inner = Scripted(0, 200, 9, 30, 4, 5)
    env = Skip(inner, 4, max_pool)
    env.reset()
    observation, reward, terminated, _, _ = env.step(2)
    assert (observation.max(), reward, terminated) == (seen, 4.0, False)
    observation, reward, terminated, _, _ = env.step(1)  # one frame left: no stale one gets in
    assert (observation.max(), reward, terminated) == (5, 1.0, True)
    assert inner.actions == [2, 2, 2, 2, 1]


def test_whole_games_survive_lives_and_clipping():
    inner = Scripted(*range(6), lives=[3, 3, 2, 2, 1, 1], reward=5.0)
    env = gym.wrappers.RecordEpisodeStatistics(inner)
    env = FrameStack(ImageToPyTorch(WarpFrame(ClipReward(EpisodicLife(env)))), 2)
    source = iter(ExperienceSource([env], lambda states: np.full(1, 2)))
    steps = [next(source)[0] for _ in range(6)]
    assert [step.rewards.item() for step in steps] == [1.0] * 6
    assert [step.terminated.item() for step in steps] == [False, True, True] * 2
    # Five steps of 5 points; two of them, no-ops after a lost life, are not the agent's.
    assert [step.episodes[0] for step in steps] == [None, None, Episode(25.0, 3)] * 2
    assert (inner.actions, inner.resets) == ([2, 2, 0, 2, 0] * 2, 3)
    assert [frame.max() for step in steps for frame in step.first_frames] == [0, 3, 0, 3]
    assert [step.frames.max() for step in steps] == [1, 2, 4] * 2


def test_a_game_cut_short_shows_nothing_in_the_next_one():
    env = gym.wrappers.TimeLimit(Scripted(*range(1, 9)), 3)
    env = FrameStack(ImageToPyTorch(WarpFrame(gym.wrappers.RecordEpisodeStatistics(env))), 2)
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


def test_fire_reset_presses_fire():
    inner = Scripted(1, 2, 3)
    observation, _ = FireReset(inner).reset()
    assert (observation.max(), inner.actions) == (2, [1])
    with pytest.raises(ValueError, match="FIRE"):
        FireReset(Scripted(1, 2, meanings=("NOOP", "UP")))


def test_every_resizer_makes_a_small_grey_picture():
    screen, _ = gym.make(PONG).reset(seed=0)
    area = WarpFrame(gym.make(PONG)).observation(screen).astype(int)
    for name in RESIZERS:
        warp = WarpFrame(gym.make(PONG), resize=name)
        observation = warp.observation(screen)
        assert warp.observation_space.contains(observation)
        assert observation.shape == (84, 84, 1)
        # the same screen, up to how edges are smoothed
        assert np.abs(observation - area).mean() < 6
        wide = WarpFrame(gym.make(PONG), name, size=96)
        assert wide.observation_space.shape == wide.observation(screen).shape == (96, 96, 1)
    assert wrap_deepmind(make_atari(PONG), size=42).reset()[0].shape == (4, 42, 42)
    dot = np.zeros((3 * 84, 3 * 84), np.uint8)
    dot[99, 99] = 255  # the first of nine pixels, which become one
    seen = {n: int(WarpFrame(gym.make(PONG), n).observation(dot)[33, 33, 0]) for n in RESIZERS}
    means = {"opencv-area": 28, "pillow-box": 28, "pillow-bilinear": 13}
    assert seen == {"opencv-linear": 0, "opencv-nearest": 255, **means}


def test_pictures_equal_gymnasiums_pixel_for_pixel():
    """Where agents of vector environments are played; wrappers take the maximum of colours."""
    # no-ops off: the two draw their number differently from the same seed
    reference = AtariPreprocessing(gym.make(PONG), noop_max=0, frame_skip=4, screen_size=84)
    reference = FrameStackObservation(reference, 4, padding_type="reset")
    played = Preprocessing(PONG, vector_env=True, noop_max=0, fire_reset=False)
    ours, coloured = make_env(played), make_env(replace(played, vector_env=False))
    coloured.reset(seed=1)
    expected, _ = reference.reset(seed=1)
    observation, _ = ours.reset(seed=1)
    assert np.array_equal(observation, expected)
    actions = np.random.default_rng(0).integers(6, size=1_000)
    over, edges = 0, 0
    for action in actions:
        coloured_now = coloured.step(action)[0]
        expected, *expected_rest = reference.step(action)
        observation, *rest = ours.step(action)
        assert rest[:3] == expected_rest[:3]
        edges = max(edges, np.abs(coloured_now - observation.astype(int)).max())
        if rest[1]:  # a game over within the skip: gymnasium shows frames of the step before
            over += 1
            expected, observation = reference.reset()[0], ours.reset()[0]
            coloured.reset()
        assert np.array_equal(observation, expected)
    assert over
    assert 0 < edges <= 16


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
    assert np.array_equal(np.array(state, dtype=np.float32, copy=True), pixels)
    with pytest.raises(ValueError, match="always a copy"):
        np.asarray(state, copy=False)
    assert state == env.reset(seed=0)[0] != LazyFrames([255 - frame for frame in state.frames])
    check_env(env, skip_render_check=True, skip_close_check=True)


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
    for state, steps in (
        (source.state_dict(), expected[150:]),
        (play(0)[0].state_dict(), expected),
    ):
        _, resumed = play(len(steps), state)
        for step, same in zip(resumed, steps, strict=True):
            assert np.array_equal(step.frames, same.frames)
            assert step.episodes == same.episodes


@pytest.mark.parametrize("script", ["04_new_wrappers_n_env", "04_new_wrappers_parallel"])
def test_every_choice_of_04_is_a_flag(script):
    rung = runpy.run_path(str(ROOT / f"{script}.py"), run_name=script)
    make_env, options = rung["make_env"], rung["Options"]
    usual = "<FrameStack<ClipReward<ImageToPyTorch<WarpFrame<FireReset<EpisodicLife<RecordEpis"
    env = make_env(options())
    assert str(env).startswith(usual)
    assert not env.get_wrapper_attr("max_pool")
    switched = dict.fromkeys(("episodic_life", "fire_reset", "clip_reward"), False)
    switched |= {"noop_max": 5, "max_pool": True, "stack": 3, "resize": "opencv-nearest", "skip": 2}
    env = make_env(options(**switched))
    kinds = "<FrameStack<ImageToPyTorch<WarpFrame<RecordEpisodeStatistics<Skip<NoopReset<"
    assert str(env).startswith(kinds)
    seen = [env.get_wrapper_attr(name) for name in ("noop_max", "max_pool", "skip")]
    assert seen == [5, True, 2]
    with pytest.raises(ValueError, match="give skip instead"):  # it would be 16 frames
        make_atari(PONG, frameskip=4)
    assert env.get_wrapper_attr("resize") is RESIZERS["opencv-nearest"]
    assert env.observation_space.shape == (3, 84, 84)
