"""A replay buffer of whole messages of transitions.

One learner serves hundreds of players, so messages are copied as arrays, not frame by frame.
"""

from lib.devices import Device
from lib.learning.replay_buffer import ReplayRings, Shape
from lib.parallel.n_step import Message

import numpy as np


class MessageReplayBuffer(ReplayRings):
    """The newest transitions of any number of players, sampled uniformly.

    Args:
        capacity: transitions to hold, with room for ``capacity // 4`` more frames, because messages
            repeat some. If messages are too short for that, transitions are dropped earlier.
        observation_shape, device, seed: as for ``ReplayRings``.
    """

    def __init__(
        self, capacity: int, observation_shape: Shape, device: Device = "cpu", seed: int = 0
    ) -> None:
        n_frames, window = capacity + capacity // 4, 2 * observation_shape[0]
        super().__init__(capacity, n_frames, window, observation_shape, device, seed)

    def extend(self, new: Message) -> None:
        # The frame numbers of a message are int32, but the buffer's outgrow that.
        windows = np.add(new.windows, self._frames_written, dtype=np.int64)
        columns = (new.actions, new.rewards, new.terminated)
        self._store(new.frames, windows, *map(np.array, columns))  # Ray's are read-only
