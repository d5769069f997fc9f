"""The DeepMind preprocessing of Atari games, in PyTorch's layout (channels first).

Source: Mnih et al., Nature 518 (2015), methods; Machado et al., arXiv:1709.06009, for the effect of
each choice. ``make_atari`` and ``wrap_deepmind`` combine the wrappers.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import ale_py
import cv2
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics
from PIL import Image

gym.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner per environment
cv2.setNumThreads(1)  # a frame is too small for several threads

StepResult = tuple[Any, float, bool, bool, dict[str, Any]]
ResetResult = tuple[Any, dict[str, Any]]
ResetOptions = dict[str, Any] | None


class NoopReset(gym.Wrapper):
    """Begin every episode with 1 to ``noop_max`` no-ops, so that games differ.

    >>> env = NoopReset(gym.make("PongNoFrameskip-v4"), noop_max=30)
    """

    def __init__(self, env: gym.Env, noop_max: int = 30) -> None:
        super().__init__(env)
        self.noop_max = noop_max

    def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        observation, info = self.env.reset(seed=seed, options=options)
        for _ in range(self.unwrapped.np_random.integers(1, self.noop_max + 1)):
            observation, _, terminated, truncated, info = self.env.step(0)  # a no-op
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        return observation, info


class Skip(gym.Wrapper):
    """Repeat every action ``skip`` times, sum the rewards and return the last frame.

    With ``max_pool``, return the pixelwise maximum of the last two frames, because the Atari 2600
    draws some objects only in every other frame. The Nature paper, ptan and Stable-Baselines3 take
    the maximum in colour. With ``obs_type="grayscale"`` it is the maximum in grey, as in ALE's
    vector environment and gymnasium's ``AtariPreprocessing``. The results differ by up to 16 grey
    levels.

    >>> env = Skip(gym.make("PongNoFrameskip-v4"), skip=4, max_pool=True)
    """

    def __init__(self, env: gym.Env, skip: int = 4, max_pool: bool = True) -> None:
        super().__init__(env)
        self.skip, self.max_pool = skip, max_pool

    def step(self, action: Any) -> StepResult:
        total = 0.0
        last_two: deque[np.ndarray] = deque(maxlen=2)
        for _ in range(self.skip):
            observation, reward, terminated, truncated, info = self.env.step(action)
            last_two.append(observation)
            total += float(reward)
            if terminated or truncated:
                break
        if self.max_pool:
            observation = np.maximum(last_two[0], observation)
        return observation, total, terminated, truncated, info


class EpisodicLife(gym.Wrapper):
    """End the episode with every lost life, but reset the game only when it is over.

    To the learner a lost life is the end, but the agent plays whole games.

    >>> env = EpisodicLife(gym.make("BreakoutNoFrameskip-v4"))
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._lives = 0
        self._game_over = True

    def step(self, action: Any) -> StepResult:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._game_over = terminated or truncated
        lives = self.unwrapped.ale.lives()  # type: ignore[attr-defined]
        life_lost = 0 < lives < self._lives  # at 0 lives the game itself reports its end
        self._lives = lives
        return observation, float(reward), terminated or life_lost, truncated, info

    def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        if self._game_over or seed is not None:
            observation, info = self.env.reset(seed=seed, options=options)
        else:  # continue with the next life, after a no-op
            observation, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                observation, new_info = self.env.reset(options=options)
                info = info | new_info  # with the statistics of the game that ended here
        self._lives = self.unwrapped.ale.lives()  # type: ignore[attr-defined]
        return observation, info


class FireReset(gym.Wrapper):
    """Press FIRE after every reset, for the games that wait for it.

    >>> env = FireReset(gym.make("PongNoFrameskip-v4"))
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._fire = _action_meanings(env).index("FIRE")

    def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        _, reset_info = self.env.reset(seed=seed, options=options)
        observation, _, terminated, truncated, info = self.env.step(self._fire)
        if terminated or truncated:
            observation, new_info = self.env.reset(options=options)
            info = info | new_info
        return observation, reset_info | info


def _pillow(frame: np.ndarray, size: tuple[int, int], resampling: Image.Resampling) -> np.ndarray:
    return np.array(Image.fromarray(frame).resize(size, resampling))


# Each resizes a grey frame to (width, height). The "pillow" ones use Pillow-SIMD if that is
# installed in place of Pillow.
RESIZERS: dict[str, Callable[[np.ndarray, tuple[int, int]], np.ndarray]] = {
    "opencv-area": partial(cv2.resize, interpolation=cv2.INTER_AREA),
    "opencv-linear": partial(cv2.resize, interpolation=cv2.INTER_LINEAR),
    "opencv-nearest": partial(cv2.resize, interpolation=cv2.INTER_NEAREST),
    "pillow-box": partial(_pillow, resampling=Image.Resampling.BOX),
    "pillow-bilinear": partial(_pillow, resampling=Image.Resampling.BILINEAR),
}


class WarpFrame(gym.ObservationWrapper):
    """Turn screens, (height, width, 3) or grey (height, width), into grey uint8 (size, size, 1).

    >>> env = WarpFrame(gym.make("PongNoFrameskip-v4"), resize="opencv-area", size=84)
    """

    def __init__(self, env: gym.Env, resize: str = "opencv-area", size: int = 84) -> None:
        super().__init__(env)
        self.resize, self.size = RESIZERS[resize], (size, size)
        self.observation_space = spaces.Box(0, 255, (size, size, 1), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        # Grey first, so that one channel is resized instead of three.
        if observation.ndim == 3:
            observation = cv2.cvtColor(observation, cv2.COLOR_RGB2GRAY)
        return self.resize(observation, self.size)[:, :, np.newaxis]


class ImageToPyTorch(gym.ObservationWrapper):
    """Move the channels of a picture to the front: (height, width, c) to (c, height, width).

    >>> env = ImageToPyTorch(gym.make("PongNoFrameskip-v4"))
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        height, width, channels = env.observation_space.shape or ()
        self.observation_space = spaces.Box(0, 255, (channels, height, width), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return np.moveaxis(observation, 2, 0)


class ClipReward(gym.RewardWrapper):
    """Clip every reward to its sign, so that one learning rate suits all games.

    >>> env = ClipReward(gym.make("PongNoFrameskip-v4"))
    """

    def reward(self, reward: Any) -> float:
        return float(np.sign(reward))


class LazyFrames:
    """Stacked frames, (c, height, width) each, that are concatenated only when needed.

    Consecutive stacks share their frames, so each frame is in memory once. ``frames`` has them,
    oldest first. ``np.asarray(stack)`` is quicker than ``torch.tensor(stack)``.
    """

    def __init__(self, frames: Sequence[np.ndarray]) -> None:
        self.frames = tuple(frames)
        channels, *size = self.frames[0].shape
        self.shape = (len(self.frames) * channels, *size)
        self.dtype = self.frames[0].dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array of LazyFrames is always a copy: use np.asarray(frames)")
        return np.concatenate(self.frames, dtype=dtype, casting="unsafe")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.asarray(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyFrames) and np.array_equal(self, other)


class FrameStack(gym.Wrapper):
    """Return the last ``stack`` frames as ``LazyFrames``; a reset repeats the first frame.

    >>> env = FrameStack(ImageToPyTorch(gym.make("PongNoFrameskip-v4")), stack=4)
    """

    observation_space: Any  # a Box, (channels, height, width)
    action_space: Any  # a Discrete

    def __init__(self, env: gym.Env, stack: int = 4) -> None:
        super().__init__(env)
        channels, height, width = env.observation_space.shape or ()
        self.stack = stack
        self._frames: deque[np.ndarray] = deque(maxlen=stack)
        self.observation_space = spaces.Box(0, 255, (stack * channels, height, width), np.uint8)

    def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        frame, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([frame] * self.stack)
        return LazyFrames(self._frames), info

    def step(self, action: Any) -> StepResult:
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(frame)
        return LazyFrames(self._frames), float(reward), terminated, truncated, info


class LifeStack(FrameStack):
    """Also fill the stack with the first frame after a lost life, as vector environments do."""

    def step(self, action: Any) -> StepResult:
        ale = self.unwrapped.ale  # type: ignore[attr-defined]
        lives = ale.lives()
        state, reward, terminated, truncated, info = super().step(action)
        if 0 < ale.lives() < lives:
            self._frames.extend([self._frames[-1]] * self.stack)
            state = LazyFrames(self._frames)
        return state, reward, terminated, truncated, info


def make_atari(
    env_id: str, *, noop_max: int = 30, skip: int = 4, max_pool: bool = True, **kwargs: Any
) -> gym.Env:
    """Make an Atari game with no-op starts and frame skip.

    When a game ends, ``info["episode"]`` has its unclipped reward ``r`` and its length ``l`` in
    agent steps, including FIRE and no-ops that outer wrappers press.

    Args:
        env_id: a NoFrameskip game, such as PongNoFrameskip-v4.
        noop_max: begin with 1 to this many no-ops; 0: none.
        skip: emulated frames per agent step.
        max_pool: take the maximum of the last two skipped frames, not the last one alone.
        kwargs: passed to ``gymnasium.make``.

    Raises:
        ValueError: the game is unknown, or ``frameskip`` was given.
    """
    check_env_id(env_id)
    if "frameskip" in kwargs:
        raise ValueError("make_atari skips frames itself: pass skip, not frameskip")
    env = gym.make(env_id, **kwargs)
    if noop_max:
        env = NoopReset(env, noop_max)
    return RecordEpisodeStatistics(Skip(env, skip, max_pool))


def wrap_deepmind(
    env: gym.Env,
    *,
    episodic_life: bool = True,
    fire_reset: bool = True,
    resize: str = "opencv-area",
    clip_reward: bool = True,
    stack: int = 4,
    size: int = 84,
) -> FrameStack:
    """Wrap a game of ``make_atari`` for a DQN: observations of shape (stack, size, size).

    By default, a lost life ends the episode, FIRE is pressed after a reset if the game has it, and
    rewards are clipped to their sign. ``resize`` is a key of ``RESIZERS``.
    """
    if episodic_life:
        env = EpisodicLife(env)
    if fire_reset and "FIRE" in _action_meanings(env):
        env = FireReset(env)
    env = ImageToPyTorch(WarpFrame(env, resize, size))
    if clip_reward:
        env = ClipReward(env)
    return FrameStack(env, stack)


def check_env_id(env_id: str) -> None:
    """Raise ValueError unless this is a registered NoFrameskip-v4 game (no sticky actions)."""
    if not env_id.endswith("NoFrameskip-v4") or env_id not in gym.registry:
        games = [name for name in gym.registry if name.endswith("NoFrameskip-v4")]
        name = re.sub("^ALE/|(NoFrameskip)?(-v.)?$", "", env_id)
        near = get_close_matches(f"{name}NoFrameskip-v4", games, 1, cutoff=0)[0]
        hint = f"name an Atari game as <Game>NoFrameskip-v4, for example {near}"
        raise ValueError(f"unknown environment {env_id!r}: {hint}")


def _action_meanings(env: gym.Env) -> list[str]:
    return env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
