"""A replay buffer that takes in whole messages of transitions.

One learner takes in the experience of hundreds of players. So nothing here works frame by frame:
the arrays of a message are copied into rings as they are. Each message stores a frame once. A
transition is stored as the places of its frames, as in ``lib.learning.replay_buffer``.
"""

from collections import deque
from typing import Any

import numpy as np
import torch

from lib.learning.replay_buffer import Batch
from lib.players.n_step import Transitions
from lib.transfer import gather


class BulkReplayBuffer:
    """The newest transitions of any number of players, sampled uniformly.

    Args:
        capacity: transitions to hold. There is extra room for ``capacity // 4`` frames, because a
            message repeats the last frames of the message before. If messages are so short that
            this is not enough, the oldest messages are dropped earlier.
        observation_shape: (stack, height, width) of the stacked observation.
        device: where sampled batches go.
        seed: of the random samples.
    """

    def __init__(
        self,
        capacity: int,
        observation_shape: tuple[int, int, int],
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self.device = torch.device(device)
        self._stack, *frame_shape = observation_shape
        # The system gives us this memory only when the rings reach it.
        n_frames = capacity + capacity // 4
        self._frames = np.empty((n_frames, *frame_shape), dtype=np.uint8)
        self._windows = np.empty((capacity, 2 * self._stack), dtype=np.int64)
        self._actions = np.empty(capacity, dtype=np.int64)
        self._rewards = np.empty(capacity, dtype=np.float32)
        self._terminated = np.empty(capacity, dtype=np.bool_)
        self._frames_written = self._transitions_written = 0
        self._oldest = 0  # the first transition that has all its frames
        # The messages in the buffer: where their frames begin, and where their transitions end.
        self._messages: deque[tuple[int, int]] = deque()
        self._rng = np.random.default_rng((seed, 2))  # a random stream of its own

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        return self._transitions_written - self._oldest

    @property
    def added(self) -> int:
        """Transitions stored so far, with those that are gone; it never falls."""
        return self._transitions_written

    def extend(self, new: Transitions) -> None:
        """Store the transitions of a message.

        Raises:
            ValueError: if the message is larger than the buffer.
        """
        frames, count = new.frames, len(new.actions)
        if len(frames) > len(self._frames) or count > self.capacity:
            raise ValueError(f"{count} transitions do not fit into a buffer of {self.capacity}")
        begin = self._frames_written
        _write(self._frames, begin, frames)
        for ring, values in (
            # The numbers of a message are int32, which is too short for those of the buffer.
            (self._windows, (new.windows.astype(np.int64) + begin) % len(self._frames)),
            (self._actions, new.actions),
            (self._rewards, new.rewards),
            (self._terminated, new.terminated),
        ):
            _write(ring, self._transitions_written, values)
        self._frames_written += len(frames)
        self._transitions_written += count
        self._messages.append((begin, self._transitions_written))

        lost = self._frames_written - len(self._frames)  # frames before this one
        while self._messages[0][0] < lost:
            self._oldest = self._messages.popleft()[1]
        self._oldest = max(self._oldest, self._transitions_written - self.capacity)

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions uniformly and with replacement.

        Raises:
            ValueError: if there is nothing to sample.
        """
        if not len(self):
            raise ValueError("cannot sample from an empty replay buffer")
        drawn = self._oldest + self._rng.integers(len(self), size=batch_size)
        indices = drawn % self.capacity
        stacks, actions, rewards, terminated = gather(
            self.device,
            (self._frames, self._windows[indices]),
            (self._actions, indices),
            (self._rewards, indices),
            (self._terminated, indices),
        )
        states, next_states = stacks[:, : self._stack], stacks[:, self._stack :]
        return Batch(states, actions, rewards, terminated, next_states)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: everything, the frames without a copy."""
        return {
            "frames_written": self._frames_written,
            "transitions_written": self._transitions_written,
            "oldest": self._oldest,
            "messages": list(self._messages),
            "random": self._rng.bit_generator.state,
            **{name: torch.from_numpy(array) for name, array in self._written().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where ``state_dict`` was taken; the buffer must have the same size."""
        self._frames_written = state["frames_written"]
        self._transitions_written = state["transitions_written"]
        self._oldest = state["oldest"]
        self._messages = deque(state["messages"])
        self._rng.bit_generator.state = state["random"]
        for name, array in self._written().items():
            array[:] = state[name].numpy()

    def _written(self) -> dict[str, np.ndarray]:
        """The written part of every array."""
        n = min(self._transitions_written, self.capacity)
        return {
            "frames": self._frames[: self._frames_written],
            "windows": self._windows[:n],
            "actions": self._actions[:n],
            "rewards": self._rewards[:n],
            "terminated": self._terminated[:n],
        }


def _write(ring: np.ndarray, position: int, values: np.ndarray) -> None:
    """Copy values into a ring from this position on, in one or two pieces."""
    begin = position % len(ring)
    first = min(len(values), len(ring) - begin)
    ring[begin : begin + first] = values[:first]
    ring[: len(values) - first] = values[first:]
