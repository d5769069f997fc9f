"""Games that run on the training device: the CPU only launches their steps.

The counterpart of ``StackedVectorEnv`` in ``lib.envs.vector_env``, for games whose actions, frames
and rewards are tensors on that device.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

import pong_emulator
from lib.envs.experience import Episode
from lib.envs.preprocessing import Preprocessing
from lib.gpu_checks import faster_way
from lib.printing import waiting
from lib.seeds import game_seeds
from lib.transfer import Download, is_asynchronous


def plays_games(device: torch.device) -> bool:
    """Whether ``pong_emulator`` plays on this device, and plays the CPU's games there."""
    if not is_asynchronous(device):
        return False
    here = first_games(torch.device("cpu"))

    def tried() -> bool:
        there = first_games(device)
        if differing := [name for name in here if not torch.equal(here[name], there[name])]:
            raise RuntimeError(f"{', '.join(differing)} are not those of the CPU")
        return True

    with waiting("trying games on the GPU"):
        return faster_way("games on the GPU", False, tried)


def first_games(device: torch.device) -> dict[str, torch.Tensor]:
    """What 48 steps of four games give on this device; games are short, so that new ones begin."""
    random, steps = np.random.default_rng(0), []
    make: Any = pong_emulator.PongVectorEnv
    envs = make(4, device=device, stack=1, max_num_frames_per_episode=100)
    envs.reset(seed=0)
    for _ in range(48):
        envs.send(torch.from_numpy(random.integers(6, size=4)).to(device))
        steps.append([torch.as_tensor(new).cpu() for new in (*envs.recv()[:4], envs.ram)])
    names, kinds = ("pixels", "rewards", "ends", "cuts", "RAM"), zip(*steps, strict=True)
    return {name: torch.stack(kind) for name, kind in zip(names, kinds, strict=True)}


class GpuVectorStep(NamedTuple):
    """The outcome of a step of all games; tensors on the device, of length n."""

    rewards: torch.Tensor  # float32, clipped to their sign
    terminated: torch.Tensor  # bool: no value follows
    ended: torch.Tensor  # bool: terminated or truncated; the state is already the next game's
    episodes: list[Episode]  # games whose end has become known
    points: tuple[int, int]  # how many won and lost ones have become known


class GpuStackedVectorEnv:
    """Several games and their stacked states on a device, as ``StackedVectorEnv`` on the CPU.

    Finished games are reported together, every so many steps, and read when the next report is
    requested. So the CPU may be two reports ahead of the device; then it waits.

    Args:
        envs: the games, as those of ``pong_emulator.cuda``, one frame to an observation.
        preprocessing: how many frames make a state, what it shows of them, and its actions.
        seed: of the run, see ``lib.seeds``.
        every: steps from one report to the next.
    """

    def __init__(
        self, envs: Any, preprocessing: Preprocessing, seed: int = 0, every: int = 32
    ) -> None:
        self._envs, self._preprocessing = envs, preprocessing
        frames, _ = envs.reset(seed=game_seeds(seed, envs.num_envs))
        device, n = frames.device, len(frames)
        played = preprocessing.actions or range(int(envs.single_action_space.n))
        self.n_actions = len(played)
        self._actions = torch.from_numpy(np.array(played)).to(device)
        # uint8, (n, stack, height, width)
        self.states = preprocessing.seen(frames).repeat(1, preprocessing.stack, 1, 1)
        self.shape = tuple(self.states.shape)
        # Of every step since the last report, and of every game: points and steps if it ended, and
        # whether a point was won, or lost.
        self._ends = torch.zeros((every, 4, n), device=device)
        self._game = torch.zeros((2, n), device=device)  # points and steps so far
        self._step = 0
        self._report: Download | None = None

    def send(self, actions: torch.Tensor) -> None:
        """Hand over actions: int64 (n,), indices into ``actions``."""
        self._envs.send(self._actions[actions])

    def recv(self) -> GpuVectorStep:
        """The outcome; afterwards ``states`` is a new tensor with the new states."""
        frames, rewards, terminated, truncated, _ = self._envs.recv()
        ended = terminated | truncated
        frames = self._preprocessing.seen(frames)
        # A new game begins with its first frame repeated.
        older = torch.where(ended.view(-1, 1, 1, 1), frames, self.states[:, 1:])
        self.states = torch.cat([older, frames], dim=1)
        self._game[0] += rewards
        self._game[1] += 1
        self._ends[self._step, :2] = self._game * ended
        self._ends[self._step, 2:] = torch.stack([rewards > 0, rewards < 0])
        self._game *= ~ended
        self._step += 1
        clipped = rewards.sign().float()
        return GpuVectorStep(clipped, terminated, ended, *self._known_now())

    def _known_now(self) -> tuple[list[Episode], tuple[int, int]]:
        """Games and points of the last report, if it is time for the next one."""
        if self._step < len(self._ends):
            return [], (0, 0)
        report, self._report, self._step = self._report, Download(self._ends), 0
        if report is None:
            return [], (0, 0)
        points, steps, won, lost = report.read().swapaxes(0, 1)
        ends = zip(points[steps > 0], steps[steps > 0], strict=True)
        episodes = [Episode(float(reward), int(length)) for reward, length in ends]
        return episodes, (int(won.sum()), int(lost.sum()))
