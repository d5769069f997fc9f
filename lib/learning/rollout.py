"""The frames of the last rollout, and their returns."""

from typing import NamedTuple

import numpy as np
import torch

from lib.learning.loss import lambda_returns
from lib.transfer import rows, upload


class Targets(NamedTuple):
    """Frames to learn from, on the training device."""

    states: torch.Tensor  # uint8, (frames, stack, height, width)
    actions: torch.Tensor  # int64, (frames,)
    returns: torch.Tensor  # float32, (frames,)


class Rollout:
    """Records a rollout of all environments; then computes its returns, and records the next one.

    The finished rollout stays in its place, where a compiled or captured update finds it. No
    checkpoint has it: a resumed run plays a new one, and learns from that.

    Args:
        length: steps of each environment in a rollout.
        states_shape: (environments, stack, height, width).
        gamma: discount per agent step.
        q_lambda: lambda of the returns.
        device: holds everything.
    """

    def __init__(
        self,
        length: int,
        states_shape: tuple[int, ...],
        gamma: float,
        q_lambda: float,
        device: torch.device | str = "cpu",
    ) -> None:
        self.gamma, self.q_lambda = gamma, q_lambda
        self._length, n = length, states_shape[0]
        self._states = torch.zeros((length, *states_shape), dtype=torch.uint8, device=device)
        self._actions = torch.zeros((length, n), dtype=torch.int64, device=device)
        self._rewards = torch.zeros((length, n), device=device)
        self._ended = torch.zeros((length, n), device=device)
        self._values = torch.zeros((length + 1, n), device=device)
        # A random order of the frames, and the place in it of the next sample. Sampling moves it.
        self._order = torch.arange(length * n, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self._step = 0
        self.complete = False  # a finished rollout exists
        tables = (self._states, self._actions, self._rewards)  # all zeros
        self.past = Targets(*(table.flatten(0, 1).clone() for table in tables))

    def __len__(self) -> int:
        """Number of frames of a rollout."""
        return len(self.past.actions)

    def state_values(self, states: torch.Tensor, values: torch.Tensor) -> None:
        """Record all states, and the values of their greedy actions; the last ones complete it."""
        self._values[self._step] = values
        if self._step == self._length:
            played = (self._rewards, self._ended, self._values)
            returns = lambda_returns(*played, self.gamma, self.q_lambda)
            for past, new in zip(self.past, (self._states, self._actions, returns), strict=True):
                past.copy_(new.flatten(0, 1))
            torch.randperm(len(self), out=self._order)
            self.position.zero_()
            self._values[0] = values
            self._step = 0
            self.complete = True
        self._states[self._step] = states

    def outcome(self, actions: np.ndarray, rewards: np.ndarray, ended: np.ndarray) -> None:
        """Record actions, rewards and ends: int64, float32 and bool, (environments,)."""
        tables = (self._actions, self._rewards, self._ended)
        columns = upload(self._actions.device, actions, rewards, ended)
        for table, column in zip(tables, columns, strict=True):
            table[self._step].copy_(column)
        self._step += 1

    def sample(self, batch_size: int) -> Targets:
        """The next frames of the finished rollout, in a random order that repeats at its end."""
        places = self.position + torch.arange(batch_size, device=self.position.device)
        self.position.add_(batch_size)
        drawn = self._order[places % len(self)]
        return Targets(*(rows(tensor, drawn) for tensor in self.past))
