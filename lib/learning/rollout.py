"""Rollouts of all environments, and their Q(lambda) returns."""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from lib.learning.compiled_update import graph_or_eager
from lib.learning.loss import lambda_returns
from lib.transfer import take_rows, upload

import numpy as np
import torch


class Targets(NamedTuple):
    """Transitions with their returns, on the training device."""

    states: torch.Tensor  # uint8, (frames, stack, height, width)
    actions: torch.Tensor  # int64, (frames,)
    returns: torch.Tensor  # float32, (frames,)


class Rollout:
    """Record a rollout of all environments, compute its returns, and record the next one.

    The finished rollout stays in place, where a compiled or captured update finds it. Checkpoints
    do not store it, so a resumed run plays a new one first.

    ``states_shape`` is (environments, stack, height, width); each environment plays ``length``
    steps.
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
        self._values = torch.zeros((length + 1, n), device=device)
        self._actions = torch.zeros((length, n), dtype=torch.int64, device=device)
        self._rewards, self._dones = torch.zeros((2, length, n), device=device)
        # Actions, rewards and dones of ``record_step``, sent to the device at the end.
        kinds = np.int64, np.float32, np.float32
        self._outcomes = [np.zeros((length, n), kind) for kind in kinds]
        # A random order of the frames, and the position of the next sample in it.
        self._order = torch.arange(length * n, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self._step = 0
        self._place = torch.zeros(1, dtype=torch.int64, device=device)  # ``_step`` for CUDA graphs
        self.ready = False  # a finished rollout exists
        tables = (self._states, self._actions, self._rewards)  # all zeros
        self.targets = Targets(*(table.flatten(0, 1).clone() for table in tables))

    def __len__(self) -> int:  # frames of all environments
        return len(self.targets.actions)

    def record_values(self, states: torch.Tensor, values: torch.Tensor) -> None:
        """Record states and greedy values; after the last step, also complete the rollout."""
        self._values[self._step] = values
        if self._step == self._length:
            tables = (self._actions, self._rewards, self._dones)
            for table, new in zip(tables, upload(values.device, *self._outcomes), strict=True):
                table.copy_(new)
            self._compute_returns()
            self._step = 0
            self.ready = True
        self._states[self._step] = states

    def record_step(self, actions: np.ndarray, rewards: np.ndarray, dones: np.ndarray) -> None:
        """Record actions, rewards and dones: int64, float32 and bool, (environments,)."""
        for table, column in zip(self._outcomes, (actions, rewards, dones), strict=True):
            table[self._step] = column
        self._step += 1

    # As above, but for a CUDA graph: it needs the number of the step as a tensor, ``_place``.

    def record_choice(
        self, states: torch.Tensor, values: torch.Tensor, actions: torch.Tensor
    ) -> None:
        self._states.index_copy_(0, self._place, states.unsqueeze(0))
        self._values.index_copy_(0, self._place, values.unsqueeze(0))
        self._actions.index_copy_(0, self._place, actions.unsqueeze(0))

    def record_outcome(self, rewards: torch.Tensor, dones: torch.Tensor) -> None:
        """Record rewards and dones of a step: float32 and bool, (environments,)."""
        self._rewards.index_copy_(0, self._place, rewards.unsqueeze(0))
        self._dones.index_copy_(0, self._place, dones.float().unsqueeze(0))
        self._place.add_(1).remainder_(self._length)

    def finish(self, values: torch.Tensor) -> None:
        """Complete the rollout with the values of the states after the last step."""
        self._values[-1] = values
        self._returns()

    @property
    def changing(self) -> list[torch.Tensor]:
        played = [self._states, self._values, self._actions, self._rewards, self._dones]
        return [*played, *self.targets, self._place, self._order, self.position]

    @cached_property
    def _compute_returns(self) -> Callable[[], None]:
        return graph_or_eager("the returns", self._returns, self._order.device, self.changing)

    def _returns(self) -> None:
        played = (self._rewards, self._dones, self._values)
        returns = lambda_returns(*played, self.gamma, self.q_lambda)
        for target, new in zip(self.targets, (self._states, self._actions, returns), strict=True):
            target.copy_(new.flatten(0, 1))
        torch.randperm(len(self), out=self._order)
        self.position.zero_()

    def sample(self, batch_size: int) -> Targets:
        """Return the next frames, in a random order that is drawn once per rollout."""
        places = self.position + torch.arange(batch_size, device=self.position.device)
        self.position.add_(batch_size)
        drawn = self._order[places % len(self)]
        return Targets(*(take_rows(tensor, drawn) for tensor in self.targets))
