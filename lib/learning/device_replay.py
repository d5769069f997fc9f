"""The replay buffer on the training device, so that sampling is part of the update.

Rows are drawn and frames are gathered there, and the CPU waits for no number of a sample. So
sampling can be compiled, and captured in a CUDA graph.
"""

import numpy as np
import torch

from lib.devices import Device
from lib.learning.replay_buffer import Batch, ReplayBuffer, Shape
from lib.transfer import take_rows, upload


class DeviceReplayBuffer(ReplayBuffer):
    """A ``ReplayBuffer`` whose rings are on the device, which also draws its random numbers."""

    def __init__(self, capacity: int, observation_shape: Shape, device: Device = "cpu") -> None:
        super().__init__(capacity, observation_shape, device)
        rings = [torch.from_numpy(ring) for ring in (self._frames, *self._columns)]
        self._frames, *self._columns = (torch.zeros_like(ring, device=device) for ring in rings)
        # Which transitions can be drawn: the first one, and their number. Both tensors stay in
        # their place, where a compiled or captured update finds the newest values. They are where
        # rows are drawn: on the device, but mps has no float64, which 10**8 rows need.
        drawing = torch.device("cpu") if self.device.type == "mps" else self.device
        self._begin = torch.zeros((), dtype=torch.int64, device=drawing)
        self._count = torch.zeros((), dtype=torch.int64, device=drawing)

    def sample(self, batch_size: int) -> Batch:
        draws = torch.rand(batch_size, dtype=torch.float64, device=self._count.device)
        drawn = (draws * self._count).long() + self._begin
        return self.gather((drawn % self.capacity).to(self.device))

    def gather(self, indices: torch.Tensor) -> Batch:
        """The transitions in these places, int64 (batch,)."""
        windows, *columns = self._columns
        stacks = take_rows(self._frames, windows[indices] % len(self._frames))
        return self._batch(stacks, *(column[indices] for column in columns))

    def _in_place(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        return upload(self.device, *arrays)

    def _drop(self) -> None:
        super()._drop()
        self._begin.fill_(self._oldest)
        self._count.fill_(len(self))
