"""A replay buffer that stores every frame once.

Neighbouring stacked states share all frames but one. Stored as two stacks, a transition of 84x84
pixels and four frames would take 2 * 4 * 84 * 84 = 56 KB; stored as the one frame that is new, it
takes 7 KB.

State and next state are the first and the last ``stack`` frames of a *window* of stack + 1 frames.
At the start of an episode, a window repeats the first frame. The buffer stores the frame numbers of
each window, from which sampling gathers the frames.
"""

import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from lib.devices import Device
from lib.envs.experience import Transitions
from lib.seeds import REPLAY, stream
from lib.transfer import gather, upload

import numpy as np
import torch

Shape = tuple[int, int, int]  # (stack, height, width)
DTYPES = torch.int64, torch.float32, torch.bool  # of actions, rewards, terminated
CHUNK = 1_000  # frames that are compressed together


class Batch(NamedTuple):
    """A minibatch on the training device; states and next states are views of one window."""

    states: torch.Tensor  # uint8, (batch, stack, height, width)
    actions: torch.Tensor  # int64, (batch,)
    rewards: torch.Tensor  # float32, (batch,)
    terminated: torch.Tensor  # bool, (batch,): do not bootstrap
    next_states: torch.Tensor  # uint8, (batch, stack, height, width)


class ReplayRings:
    """Ring buffers of frames and transitions: the base of all replay buffers.

    Transition i is at i % capacity, and frame n at n % n_frames. Windows hold the numbers n, which
    never wrap, so a transition whose frames are overwritten can be found and dropped.

    Args:
        capacity, n_frames: transitions and frames to hold.
        window: frames per transition, from the state's oldest to the next state's newest.
        observation_shape: shape of the stacked observation.
        device: device of sampled batches.

    Attributes:
        added: transitions stored so far, including those dropped since.
    """

    on_device = False  # whether the rings are on the batches' device; otherwise on the CPU

    def __init__(
        self,
        capacity: int,
        n_frames: int,
        window: int,
        observation_shape: Shape,
        device: Device,
        seed: int,
    ) -> None:
        self.capacity, self.device = capacity, torch.device(device)
        self._stack, *frame_shape = observation_shape
        place = self._place = self.device if self.on_device else torch.device("cpu")
        # The system provides this memory only when the ring reaches it.
        self._frames = torch.empty((n_frames, *frame_shape), dtype=torch.uint8, device=place)
        self._columns = [  # windows, actions, rewards, terminated
            torch.zeros((capacity, window), dtype=torch.int64, device=place),
            *(torch.zeros(capacity, dtype=dtype, device=place) for dtype in DTYPES),
        ]
        # For each transition, the oldest frame needed by it or by any other that was stored in the
        # same call. Once this frame is overwritten, the transition is dropped.
        self._needed = np.empty(capacity, dtype=np.int64)
        self._frames_written = self.added = 0
        self._oldest = 0  # the oldest transition in the buffer
        self._rng = stream(seed, REPLAY)
        self._packed: list[torch.Tensor] = []  # the frames, compressed at the last checkpoint
        self._frames_packed = 0  # frames written by then

    def __len__(self) -> int:
        return self.added - self._oldest

    def sample(self, batch_size: int) -> Batch:
        """Draw transitions uniformly, with replacement, from a buffer that is not empty."""
        drawn = self._oldest + self._rng.integers(len(self), size=batch_size)
        rows = drawn % self.capacity
        windows, *columns = self._columns
        tables = [(column, rows) for column in columns]
        frames = (self._frames, windows.numpy()[rows] % len(self._frames))
        stacks, actions, rewards, terminated = gather(self.device, frames, *tables)
        states, next_states = stacks[:, : self._stack], stacks[:, -self._stack :]
        return Batch(states, actions, rewards, terminated, next_states)

    def _store(self, frames: np.ndarray, windows: np.ndarray, *columns: np.ndarray) -> None:
        """Write new transitions and frames over the oldest ones.

        ``windows`` are numbers of frames, int64 (transitions, window).
        """
        slots = (self._frames_written + np.arange(len(frames))) % len(self._frames)
        rows = (self.added + np.arange(len(windows))) % self.capacity
        self._needed[rows] = windows.min()
        new = upload(self._place, slots, rows, frames, windows, *columns)
        new_slots, new_rows, new_frames, *new_columns = new
        self._frames.index_copy_(0, new_slots, new_frames)
        for ring, column in zip(self._columns, new_columns, strict=True):
            ring.index_copy_(0, new_rows, column)
        self._frames_written += len(frames)
        self.added += len(windows)
        self._drop()
        if not len(self):
            raise ValueError("every transition has lost frames: the capacity is too small")

    def _drop(self) -> None:
        self._oldest = max(self._oldest, self.added - self.capacity)
        oldest_frame = self._frames_written - len(self._frames)
        while len(self) and self._needed[self._oldest % self.capacity] < oldest_frame:
            self._oldest += 1

    def state_dict(self) -> dict[str, Any]:
        self._pack()
        # Clones, because torch saves the whole tensor behind a view.
        columns = {name: torch.as_tensor(part).cpu().clone() for name, part in self._written()}
        return columns | {
            "frames_written": self._frames_written,
            "transitions_written": self.added,
            "random": self._rng.bit_generator.state,
            "frames": list(self._packed),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict`` of a buffer of the same size."""
        self._frames_written, self.added = state["frames_written"], state["transitions_written"]
        self._rng.bit_generator.state = state["random"]
        for name, part in self._written():
            part[:] = state[name]
        self._packed, self._frames_packed = list(state["frames"]), self._frames_written
        for number, packed in enumerate(self._packed):
            pixels, chunk = bytearray(zlib.decompress(packed.numpy().data)), self._chunk(number)
            chunk.copy_(torch.frombuffer(pixels, dtype=torch.uint8).view(chunk.shape))
        self._drop()

    def _written(self) -> Iterator[tuple[str, Any]]:
        names = ("windows", "actions", "rewards", "terminated", "needed")
        rings: list[Any] = [*self._columns, self._needed]
        for name, ring in zip(names, rings, strict=True):
            yield name, ring[: self.added]

    def _chunk(self, number: int) -> torch.Tensor:
        return self._frames[: self._frames_written][CHUNK * number : CHUNK * (number + 1)]

    def _pack(self) -> None:
        first = max(self._frames_packed, self._frames_written - len(self._frames))
        slots = np.arange(first, self._frames_written) % len(self._frames)
        changed = np.unique(slots // CHUNK).tolist()
        with ThreadPoolExecutor() as threads:
            packed = threads.map(compress, map(self._chunk, changed))
            for number, chunk in zip(changed, packed, strict=True):
                self._packed[number : number + 1] = [chunk]  # replaced, or appended
        self._frames_packed = self._frames_written


def compress(frames: torch.Tensor) -> torch.Tensor:
    """Compress frames, uint8, into uint8 (bytes,) on the CPU."""
    packed = zlib.compress(frames.cpu().numpy().data, 1)  # 7,056 pixels of Pong become 107 bytes
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


class ReplayBuffer(ReplayRings):
    """The newest transitions of any number of environments, sampled uniformly.

    Source: Lin, Machine Learning 8 (1992); Mnih et al., Nature 518 (2015).

    Args:
        capacity: transitions to hold. ``capacity // 16`` extra frames hold the beginnings of
            episodes; if episodes are shorter than 16 on average, transitions are dropped earlier.
        observation_shape, device, seed: as for ``ReplayRings``.
    """

    def __init__(
        self, capacity: int, observation_shape: Shape, device: Device = "cpu", seed: int = 0
    ) -> None:
        window = observation_shape[0] + 1
        n_frames = capacity + capacity // 16 + window
        super().__init__(capacity, n_frames, window, observation_shape, device, seed)
        # Frame numbers of the current states, (environments, stack); one row of zeros until the
        # first step.
        self._states = np.zeros((1, self._stack), dtype=np.int64)

    def extend(self, steps: Sequence[Transitions]) -> None:
        """Store steps in order; the environments must be the same in all calls."""
        for new in steps:
            # Store the first frames of new episodes first. A first state repeats its frame.
            firsts = self._frames_written + np.cumsum(new.episode_starts) - 1
            states = np.where(new.episode_starts[:, None], firsts[:, None], self._states)
            numbers = self._frames_written + len(new.first_frames) + np.arange(len(new.frames))
            windows = np.column_stack([states, numbers])
            self._states = windows[:, 1:]
            frames = np.concatenate([new.first_frames, new.frames])
            self._store(frames, windows, new.actions, new.rewards, new.terminated)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"states": torch.from_numpy(self._states)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._states = state["states"].numpy()
