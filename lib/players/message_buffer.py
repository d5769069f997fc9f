"""A replay buffer that takes in whole messages of transitions.

One learner takes in the experience of hundreds of players. So nothing here works frame by frame:
the arrays of a message are copied into rings as they are. Each message stores a frame once. A
transition is stored as the numbers of its frames, as in ``lib.learning.replay_buffer``.
"""

from collections import deque
from typing import Any

import numpy as np
import torch

from lib.learning.replay_buffer import ReplayRings
from lib.players.n_step import Transitions


class MessageReplayBuffer(ReplayRings):
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
        n_frames, window = capacity + capacity // 4, 2 * observation_shape[0]
        super().__init__(capacity, n_frames, window, observation_shape, device, seed)
        self._oldest = 0  # the first transition that has all its frames
        # The messages in the buffer: where their frames begin, and where their transitions end.
        self._messages: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        return self._transitions_written - self._oldest

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
            (self._windows, np.add(new.windows, begin, dtype=np.int64)),
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

    def _draw(self, count: int) -> np.ndarray:
        return (self._oldest + self._rng.integers(len(self), size=count)) % self.capacity

    def state_dict(self) -> dict[str, Any]:
        """As ``ReplayRings.state_dict``."""
        own = {"oldest": self._oldest, "messages": list(self._messages)}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As ``ReplayRings.load_state_dict``."""
        super().load_state_dict(state)
        self._oldest = state["oldest"]
        self._messages = deque(state["messages"])


def _write(ring: np.ndarray, position: int, values: np.ndarray) -> None:
    """Copy values into a ring from this position on, in one or two pieces."""
    begin = position % len(ring)
    first = min(len(values), len(ring) - begin)
    ring[begin : begin + first] = values[:first]
    ring[: len(values) - first] = values[first:]
