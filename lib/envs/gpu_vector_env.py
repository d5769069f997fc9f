"""A vector environment whose tensors stay in place on the device, so CUDA graphs can step it.

``lib.envs.vector_env.StackedVectorEnv`` makes the same states in new arrays.
"""

from typing import Any

import pong_emulator
from lib.devices import cores
from lib.envs.experience import Episode
from lib.envs.preprocessing import Preprocessing
from lib.gpu_checks import try_optimised
from lib.printing import show_elapsed
from lib.seeds import game_seeds
from lib.transfer import Download, is_asynchronous, upload

import numpy as np
import torch


def plays_games(device: torch.device) -> bool:
    """Return whether ``pong_emulator`` plays the same games on this GPU as on the CPU."""
    if not is_asynchronous(device):
        return False
    here = first_games(torch.device("cpu"))

    def tried() -> bool:
        there = first_games(device)
        if differing := [name for name in here if not torch.equal(here[name], there[name])]:
            raise RuntimeError(f"{', '.join(differing)} are not those of the CPU")
        return True

    with show_elapsed("trying games on the GPU"):
        return try_optimised("games on the GPU", False, tried)


def first_games(device: torch.device) -> dict[str, torch.Tensor]:
    """Play 48 steps of four games, and truncate them so early that new ones begin."""
    random, steps = np.random.default_rng(0), []
    make: Any = pong_emulator.PongVectorEnv
    envs = make(4, device=device, stack=1, max_num_frames_per_episode=100)
    envs.reset(seed=0)
    for _ in range(48):
        envs.send(torch.from_numpy(random.integers(6, size=4)).to(device))
        steps.append([torch.as_tensor(new).cpu() for new in (*envs.recv()[:4], envs.ram)])
    names, kinds = ("pixels", "rewards", "ends", "cuts", "RAM"), zip(*steps, strict=True)
    return {name: torch.stack(kind) for name, kind in zip(names, kinds, strict=True)}


def emulated_games(
    num_envs: int, device: torch.device, preprocessing: Preprocessing, games_per_warp: int
) -> Any:
    """Make games of ``pong_emulator`` on this device if they work there, otherwise on the CPU."""
    return pong_emulator.PongVectorEnv(
        num_envs,
        device=device if plays_games(device) else "cpu",
        threads=torch.get_num_threads() if device.type == "cpu" else cores(),
        games_per_warp=games_per_warp,
        stack=1,
        reward_clipping=False,
        rows=preprocessing.rows,
    )


class TensorVectorEnv:
    """Several games and their stacked states on a device.

    Points and ends of games stay on the device, too; ``report`` fetches them once per rollout.

    Args:
        seed: seed of the run, see ``lib.seeds``.
        rollout: steps between two calls of ``report``.

    Attributes:
        states: uint8, (n, stack, height, width).
        captures: whether a CUDA graph can capture ``step``, set by ``reset``.
    """

    def __init__(
        self,
        num_envs: int,
        preprocessing: Preprocessing,
        seed: int,
        rollout: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self._preprocessing = preprocessing
        device, n = torch.device(device), num_envs
        self._seeds = game_seeds(seed, n)
        frames = torch.zeros((n, 1, 84, 84), dtype=torch.uint8, device=device)
        played = preprocessing.actions or range(6)
        self.n_actions = len(played)
        self._actions = torch.tensor(played).to(device)
        self._chosen = torch.zeros(n, dtype=torch.int64, device=device)
        self.states = preprocessing.transform(frames).repeat(1, preprocessing.stack, 1, 1)
        self.shape = tuple(self.states.shape)
        rewards = torch.zeros(n, dtype=torch.int32, device=device)
        terminated, truncated = (torch.zeros(n, dtype=torch.bool, device=device) for _ in range(2))
        self._outcome = frames, rewards, terminated, truncated
        self._game = torch.zeros((2, n), dtype=torch.int32, device=device)  # points and steps
        # Per rollout: points and steps of games that ended, and numbers of points won and lost.
        self._ends = torch.zeros((rollout, 2, n), dtype=torch.int32, device=device)
        self._points = torch.zeros(2, dtype=torch.int32, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)  # the step in the rollout
        self._asked: Download | None = None

    @property
    def changing(self) -> list[torch.Tensor]:
        kept = [self.states, *self._outcome, self._game, self._ends, self._points, self._place]
        return [*kept, self._envs.changing] if self.captures else kept

    def reset(self, envs: Any) -> None:
        """Begin these games, with one frame per observation; they may be on the CPU."""
        self._envs, self._play = envs, self._play_on_cpu
        self.captures = is_asynchronous(self.states.device) and hasattr(envs, "stepper")
        if hasattr(envs, "stepper"):
            self._play = envs.stepper(self._chosen, *self._outcome)
        frames = self._outcome[0]
        frames.copy_(torch.as_tensor(self._envs.reset(seed=self._seeds)[0]))
        self.states.copy_(self._preprocessing.transform(frames).expand_as(self.states))

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Step all games with actions, int64 (n,): indices into ``Preprocessing.actions``.

        Returns:
            Rewards clipped to their sign, float32 (n,), and whether games ended, bool (n,). The
            state of an ended game is already the next game's.
        """
        self._chosen.copy_(self._actions[actions])
        self._play()
        frames, rewards, terminated, truncated = self._outcome
        done = terminated | truncated
        frames = self._preprocessing.transform(frames)
        # A new game begins with its first frame repeated.
        older = torch.where(done.view(-1, 1, 1, 1), frames, self.states[:, 1:])
        self.states.copy_(torch.cat([older, frames], dim=1))
        self._game.add_(torch.stack([rewards, torch.ones_like(rewards)]))
        self._ends.index_copy_(0, self._place, (self._game * done).unsqueeze(0))
        self._game.mul_(~done)
        won, lost = (rewards > 0).sum(), (rewards < 0).sum()
        self._points.add_(torch.stack([won, lost]))
        self._place.add_(1).remainder_(len(self._ends))
        return rewards.sign().float(), done

    def _play_on_cpu(self) -> None:
        *outcome, _ = self._envs.step(self._chosen.cpu().numpy())
        for place, new in zip(self._outcome, upload(self.states.device, *outcome), strict=True):
            place.copy_(new)

    def report(self) -> tuple[list[Episode], tuple[int, int]]:
        """Return the episodes of the previous rollout, in order, and its points won and lost.

        The device may still be computing the present rollout.
        """
        counts = [self._envs.counts()] if hasattr(self._envs, "stepper") else []
        numbers = torch.cat([self._points, self._ends.flatten(), *counts])
        asked, self._asked = self._asked, Download(numbers)
        self._points.zero_()
        if asked is None:
            return [], (0, 0)
        known = asked.read()
        won, lost = known[:2].tolist()
        if counts:
            self._envs.check(known[2 + self._ends.numel() :])
        points, steps = known[2 : 2 + self._ends.numel()].reshape(self._ends.shape).swapaxes(0, 1)
        ends = zip(points[steps > 0].tolist(), steps[steps > 0].tolist(), strict=True)
        return [Episode(float(reward), length) for reward, length in ends], (won, lost)
