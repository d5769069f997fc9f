"""A replay buffer that stores every frame once.

Neighbouring stacked states share all frames but one. Kept as a pair of stacks, a transition of
84x84 pixels and four stacked frames would take 2 * 4 * 84 * 84 = 56 KB; kept as its one new frame
it takes 7 KB.

State and next state together are a *window* of stack + 1 frames: the state is its first ``stack``
frames, and the next state is its last ``stack`` frames. A new episode starts with its first frame
repeated, as in FrameStack. So a transition is stored as the numbers of its window's frames. To
sample is to look up windows and to gather their frames.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lib.devices import Device
from lib.envs.experience import Transition
from lib.seeds import REPLAY, stream
from lib.transfer import gather

Shape = tuple[int, int, int]  # (stack, height, width)


class Batch(NamedTuple):
    """A minibatch on the training device; states and next states are views of one window."""

    states: torch.Tensor  # uint8, (batch, stack, height, width)
    actions: torch.Tensor  # int64, (batch,)
    rewards: torch.Tensor  # float32, (batch,)
    terminated: torch.Tensor  # bool, (batch,): no value follows
    next_states: torch.Tensor  # uint8, (batch, stack, height, width)


class ReplayRings:
    """Frames and transitions in rings: what this buffer and ``lib.parallel.message_buffer`` share.

    Transition i is at i % capacity, and frame n at n % n_frames. Windows hold the numbers n, which
    never wrap, so a frame that was overwritten is recognised. If many were, before the transitions
    that show them, these transitions are not drawn.

    Args:
        capacity: transitions to hold.
        n_frames: frames to hold.
        window: frames of a transition; it begins with the state, of which the first frame is the
            oldest, and ends with the next state.
        observation_shape: of the stacked observation.
        device: where sampled batches go.
        seed: of the run.
    """

    def __init__(
        self,
        capacity: int,
        n_frames: int,
        window: int,
        observation_shape: Shape,
        device: Device,
        seed: int,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self.device = torch.device(device)
        self._stack, *frame_shape = observation_shape
        # The system gives us this memory only when the rings reach it.
        self._frames = np.empty((n_frames, *frame_shape), dtype=np.uint8)
        self._windows = np.empty((capacity, window), dtype=np.int64)
        self._actions = np.empty(capacity, dtype=np.int64)
        self._rewards = np.empty(capacity, dtype=np.float32)
        self._terminated = np.empty(capacity, dtype=np.bool_)
        self._frames_written = self._transitions_written = 0
        self._rng = stream(seed, REPLAY)

    def __len__(self) -> int:
        """Transitions in the buffer, at most ``capacity``."""
        return min(self._transitions_written, self.capacity)

    @property
    def added(self) -> int:
        """Transitions stored so far, with those that are gone; it never falls."""
        return self._transitions_written

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions uniformly and with replacement.

        Raises:
            ValueError: if there is nothing to sample.
        """
        if not len(self):
            raise ValueError("cannot sample from an empty replay buffer")
        indices = self._draw(batch_size)
        stacks, actions, rewards, terminated = gather(
            self.device,
            (self._frames, self._windows[indices] % len(self._frames)),
            (self._actions, indices),
            (self._rewards, indices),
            (self._terminated, indices),
        )
        states, next_states = stacks[:, : self._stack], stacks[:, -self._stack :]
        return Batch(states, actions, rewards, terminated, next_states)

    def _draw(self, count: int) -> np.ndarray:
        """The places of random transitions that have all their frames, int64 (count,)."""
        indices = self._rng.integers(len(self), size=count)
        oldest_frame = self._frames_written - len(self._frames)
        lost = self._windows[indices, 0] < oldest_frame
        if lost.any():
            whole = np.flatnonzero(self._windows[: len(self), 0] >= oldest_frame)
            if not len(whole):
                raise ValueError("every transition has lost frames: the capacity is too small")
            indices[lost] = self._rng.choice(whole, size=np.count_nonzero(lost))
        return indices

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: everything, the frames without a copy."""
        return {
            "frames_written": self._frames_written,
            "transitions_written": self._transitions_written,
            "random": self._rng.bit_generator.state,
            **{name: torch.from_numpy(array) for name, array in self._written().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where ``state_dict`` was taken; the buffer must have the same size."""
        self._frames_written = state["frames_written"]
        self._transitions_written = state["transitions_written"]
        self._rng.bit_generator.state = state["random"]
        for name, array in self._written().items():
            array[:] = state[name].numpy()

    def _written(self) -> dict[str, np.ndarray]:
        """The written part of every array."""
        n = len(self)
        return {
            "frames": self._frames[: self._frames_written],
            "windows": self._windows[:n],
            "actions": self._actions[:n],
            "rewards": self._rewards[:n],
            "terminated": self._terminated[:n],
        }


class ReplayBuffer(ReplayRings):
    """The newest transitions of any number of environments, sampled uniformly.

    Source: Lin, Machine Learning 8 (1992); Mnih et al., Nature 518 (2015).

    Args:
        capacity: transitions to hold. There is extra room for ``capacity // 16`` frames that
            begin an episode. If episodes are so short that this is not enough, the oldest
            transitions are dropped earlier.
        observation_shape, device, seed: as of ``ReplayRings``.
    """

    def __init__(
        self, capacity: int, observation_shape: Shape, device: Device = "cpu", seed: int = 0
    ) -> None:
        window = observation_shape[0] + 1
        n_frames = capacity + capacity // 16 + window
        super().__init__(capacity, n_frames, window, observation_shape, device, seed)
        self._state_windows: dict[int, list[int]] = {}  # the current state of each environment

    def append(self, transition: Transition) -> None:
        """Store a transition; transitions of one environment must come in order."""
        if transition.first_frame is not None:
            first = self._store(transition.first_frame)
            self._state_windows[transition.env] = [first] * self._stack
        elif transition.env not in self._state_windows:
            raise ValueError(f"environment {transition.env} starts without a first frame")
        window = [*self._state_windows[transition.env], self._store(transition.frame)]
        self._state_windows[transition.env] = window[1:]

        index = self._transitions_written % self.capacity
        self._windows[index] = window
        self._actions[index] = transition.action
        self._rewards[index] = transition.reward
        self._terminated[index] = transition.terminated
        self._transitions_written += 1

    def extend(self, transitions: Sequence[Transition]) -> None:
        """Store several transitions."""
        for transition in transitions:
            self.append(transition)

    def state_dict(self) -> dict[str, Any]:
        """As ``ReplayRings.state_dict``."""
        return super().state_dict() | {"state_windows": self._state_windows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As ``ReplayRings.load_state_dict``."""
        super().load_state_dict(state)
        self._state_windows = dict(state["state_windows"])

    def _store(self, frame: np.ndarray) -> int:
        """Write a frame of shape (1, height, width) into the ring and return its number."""
        number = self._frames_written
        self._frames[number % len(self._frames)] = frame[0]
        self._frames_written += 1
        return number
