"""The replay buffer on the training device, so that sampling is part of the update."""

from lib.devices import Device
from lib.learning.replay_buffer import Batch, ReplayBuffer, Shape
from lib.transfer import take_rows

import torch


class DeviceReplayBuffer(ReplayBuffer):
    """A ``ReplayBuffer`` on the device, which also draws the rows; the CPU waits for nothing."""

    on_device = True

    def __init__(self, capacity: int, observation_shape: Shape, device: Device = "cpu") -> None:
        super().__init__(capacity, observation_shape, device)
        # The oldest transition, and the number of transitions. Both tensors stay in place, so that
        # compiled or captured updates find the newest values. With mps, which lacks the float64
        # that 10**8 rows need, the CPU draws the rows.
        drawing = torch.device("cpu") if self.device.type == "mps" else self.device
        self._begin = torch.zeros((), dtype=torch.int64, device=drawing)
        self._count = torch.zeros((), dtype=torch.int64, device=drawing)

    def sample(self, batch_size: int) -> Batch:
        draws = torch.rand(batch_size, dtype=torch.float64, device=self._count.device)
        drawn = (draws * self._count).long() + self._begin
        rows = (drawn % self.capacity).to(self.device)
        windows, actions, rewards, terminated = (column[rows] for column in self._columns)
        stacks = take_rows(self._frames, windows % len(self._frames))
        states, next_states = stacks[:, : self._stack], stacks[:, -self._stack :]
        return Batch(states, actions, rewards, terminated, next_states)

    def _drop(self) -> None:
        super()._drop()
        self._begin.fill_(self._oldest)
        self._count.fill_(len(self))
