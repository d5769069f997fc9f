"""The replay buffer on the training device, so that sampling is part of the update.

The layout is that of ``lib.learning.replay_buffer``, in tensors on the training device. Rows are
drawn and frames are gathered there, and the CPU waits for no number of a sample. So sampling can be
compiled, and captured in a CUDA graph.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lib.devices import Device
from lib.envs.experience import Transition
from lib.learning.compiled_update import rows
from lib.learning.replay_buffer import Batch, Shape
from lib.transfer import upload


class DeviceReplayBuffer:
    """The newest transitions of any number of environments, sampled uniformly on the device.

    Args:
        capacity: transitions to hold; room for frames is as in ``ReplayBuffer``.
        observation_shape: of the stacked observation.
        device: holds everything; random numbers come from its generator.
    """

    def __init__(self, capacity: int, observation_shape: Shape, device: Device = "cpu") -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity, self.device = capacity, torch.device(device)
        self._stack, *frame_shape = observation_shape
        n_frames = capacity + capacity // 16 + self._stack + 1
        self._frames = torch.zeros((n_frames, *frame_shape), dtype=torch.uint8, device=device)
        self._actions = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._terminated = torch.zeros(capacity, dtype=torch.bool, device=device)
        # Made-up transitions that differ. An update that is compiled before there are others draws
        # from them, and is checked.
        pictures = self._frames[:64]
        pictures.copy_((torch.arange(pictures.numel()) % 251).view_as(pictures))
        numbers = torch.arange(capacity, device=device)
        window = torch.arange(self._stack + 1, device=device)
        self._windows = (numbers.unsqueeze(1) + window) % len(pictures)
        self._rewards = numbers % 3 - 1.0
        # Which transitions can be drawn: their number, and the first one. Both tensors stay in
        # their place, where a compiled or captured update finds the newest values. They are where
        # rows are drawn: on the device, but mps has no float64, which 10**8 rows need.
        drawing = torch.device("cpu") if self.device.type == "mps" else self.device
        self._oldest = torch.zeros((), dtype=torch.int64, device=drawing)
        self._count = torch.full((), capacity, dtype=torch.int64, device=drawing)
        # The CPU keeps the books. Frame numbers never wrap, see ReplayBuffer.
        self._frames_written = self._transitions_written = 0
        # Of each transition: the oldest frame that it or a later one shows.
        self._needed = np.empty(capacity, dtype=np.int64)
        self._first_intact = 0  # the oldest transition that has all its frames
        self._state_windows: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        return self._transitions_written - self._first_intact

    @property
    def added(self) -> int:
        """Transitions stored so far, with those that are gone; it never falls."""
        return self._transitions_written

    def extend(self, transitions: Sequence[Transition]) -> None:
        """Store transitions; transitions of one environment must come in order.

        Raises:
            ValueError: if the buffer is too small for so many at once.
        """
        frames: list[np.ndarray] = []
        windows: list[list[int]] = []
        states = self._state_windows.values()
        needed = min((window[0] for window in states), default=self._frames_written)
        for transition in transitions:
            if transition.first_frame is not None:
                frames.append(transition.first_frame)
                first = self._frames_written + len(frames) - 1
                self._state_windows[transition.env] = [first] * self._stack
            frames.append(transition.frame)
            number = self._frames_written + len(frames) - 1
            window = [*self._state_windows[transition.env], number]
            self._state_windows[transition.env] = window[1:]
            windows.append(window)
        if not transitions:
            return
        if len(frames) > len(self._frames) or len(transitions) > self.capacity:
            new = len(transitions)
            raise ValueError(f"{new} transitions do not fit into a buffer of {self.capacity}")

        rows = (self._transitions_written + np.arange(len(transitions))) % self.capacity
        slots = (self._frames_written + np.arange(len(frames))) % len(self._frames)
        actions = np.array([t.action for t in transitions])
        rewards = np.array([t.reward for t in transitions], dtype=np.float32)
        terminated = np.array([t.terminated for t in transitions])
        columns = (np.array(windows) % len(self._frames), actions, rewards, terminated)
        new_frames, slots_there, rows_there, *columns_there = upload(
            self.device, np.concatenate(frames), slots, rows, *columns
        )
        self._frames[slots_there] = new_frames
        tables = (self._windows, self._actions, self._rewards, self._terminated)
        for table, column in zip(tables, columns_there, strict=True):
            table[rows_there] = column

        self._needed[rows] = needed
        self._frames_written += len(frames)
        self._transitions_written += len(transitions)
        self._forget()
        if not len(self):
            raise ValueError("every transition has lost frames: the capacity is too small")

    def _forget(self) -> None:
        """Exclude transitions that were overwritten, or that have lost frames."""
        self._first_intact = max(self._first_intact, self._transitions_written - self.capacity)
        oldest_frame = self._frames_written - len(self._frames)
        while len(self) and self._needed[self._first_intact % self.capacity] < oldest_frame:
            self._first_intact += 1
        self._oldest.fill_(self._first_intact % self.capacity)
        self._count.fill_(len(self))

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions uniformly and with replacement; there must be some."""
        draws = torch.rand(batch_size, dtype=torch.float64, device=self._count.device)
        drawn = (draws * self._count).long() + self._oldest
        return self.gather((drawn % self.capacity).to(self.device))

    def gather(self, indices: torch.Tensor) -> Batch:
        """The transitions in these places, int64 (batch,); states are views of their windows."""
        stacks = rows(self._frames, self._windows[indices])
        columns = (self._actions, self._rewards, self._terminated)
        actions, rewards, terminated = (column[indices] for column in columns)
        return Batch(stacks[:, :-1], actions, rewards, terminated, stacks[:, 1:])

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: everything; the random state is torch's own."""
        return {
            "frames_written": self._frames_written,
            "transitions_written": self._transitions_written,
            "first_intact": self._first_intact,
            "state_windows": self._state_windows,
            **{name: tensor.clone() for name, tensor in self._written().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where ``state_dict`` was taken; the buffer must have the same size."""
        self._frames_written = state["frames_written"]
        self._transitions_written = state["transitions_written"]
        self._first_intact = state["first_intact"]
        self._state_windows = dict(state["state_windows"])
        for name, tensor in self._written().items():
            tensor.copy_(state[name])
        self._forget()

    def _written(self) -> dict[str, torch.Tensor]:
        """The written part of every tensor."""
        n = min(self._transitions_written, self.capacity)
        return {
            "frames": self._frames[: self._frames_written],
            "windows": self._windows[:n],
            "actions": self._actions[:n],
            "rewards": self._rewards[:n],
            "terminated": self._terminated[:n],
            "first_numbers": torch.from_numpy(self._needed[:n]),
        }
