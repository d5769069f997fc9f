"""A replay buffer that takes in whole messages of transitions.

One learner takes in the experience of hundreds of players. So nothing here works frame by frame:
the arrays of a message are copied into rings as they are.
"""

import numpy as np

from lib.devices import Device
from lib.learning.replay_buffer import ReplayRings, Shape
from lib.parallel.n_step import Message


class MessageReplayBuffer(ReplayRings):
    """The newest transitions of any number of players, sampled uniformly.

    Args:
        capacity: transitions to hold. There is extra room for ``capacity // 4`` frames, because a
            message repeats the last frames of the message before. If messages are so short that
            this is not enough, the oldest transitions are dropped earlier.
        observation_shape, device, seed: as of ``ReplayRings``.
    """

    def __init__(
        self, capacity: int, observation_shape: Shape, device: Device = "cpu", seed: int = 0
    ) -> None:
        n_frames, window = capacity + capacity // 4, 2 * observation_shape[0]
        super().__init__(capacity, n_frames, window, observation_shape, device, seed)

    def extend(self, new: Message) -> None:
        # The numbers of a message are int32, which is too short for those of the buffer.
        windows = np.add(new.windows, self._frames_written, dtype=np.int64)
        columns = (new.actions, new.rewards, new.terminated)
        self._store(new.frames, windows, *map(np.array, columns))  # Ray's own are read-only
