"""The replay buffer against a naive model that keeps whole stacks in a list."""

from collections import deque
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rungs import options_of

from lib.envs.atari_wrappers import make_atari, wrap_deepmind
from lib.envs.experience import ExperienceSource, Transitions
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.replay_buffer import ReplayBuffer

SIZE = 2  # pixels squared are enough to tell frames apart


class NaiveModel:
    """What the buffer must hold: copies of the stacks, as the wrappers would have made them."""

    def __init__(self, capacity: int, stack: int) -> None:
        self.transitions: deque[tuple] = deque(maxlen=capacity)
        self.stack = stack
        self.states: dict[int, list[np.ndarray]] = {}

    def append(self, new: Transitions) -> None:
        first_frames = iter(new.first_frames)
        for env, frame in enumerate(new.frames):
            if new.begins[env]:
                self.states[env] = [next(first_frames)] * self.stack
            state = self.states[env]
            self.states[env] = [*state[1:], frame]
            one, other = (np.stack(frames).tobytes() for frames in (state, self.states[env]))
            reward, end = float(new.rewards[env]), bool(new.terminated[env])
            self.transitions.append((one, int(new.actions[env]), reward, end, other))


def unpack(batch) -> set[tuple]:
    """A batch as a set of what the naive model holds."""
    return {
        (one.numpy().tobytes(), int(action), float(reward), bool(end), other.numpy().tobytes())
        for one, action, reward, end, other in zip(*batch, strict=True)
    }


class Stream:
    """Makes steps of so many environments; every frame shows a number of its own."""

    def __init__(self, envs: int) -> None:
        self.frames, self.begins = count(), np.ones(envs, dtype=bool)

    def step(self, ended: np.ndarray, terminated: np.ndarray, number: int = 0) -> Transitions:
        begins, self.begins = self.begins, ended
        envs = len(begins)
        first_frames, frames = self._next(begins.sum()), self._next(envs)
        actions = (number + np.arange(envs)) % 6
        rewards = (actions % 3 - 1).astype(np.float32)
        return Transitions(
            actions, rewards, terminated, frames, begins, first_frames, [None] * envs
        )

    def _next(self, n: int) -> np.ndarray:
        frames = b"".join(next(self.frames).to_bytes(4, "big") for _ in range(n))
        return np.frombuffer(frames, np.uint8).reshape(n, SIZE, SIZE)


@st.composite
def streams(draw) -> list[Transitions]:
    """Steps of some environments with ends at any place."""
    n_envs = draw(st.integers(1, 4))
    stream, ends = Stream(n_envs), st.sampled_from("....TC")  # T: terminated, C: cut short
    steps = draw(st.lists(st.lists(ends, min_size=n_envs, max_size=n_envs), max_size=60))
    rows = [np.array(row) for row in steps]
    return [stream.step(row != ".", row == "T", number) for number, row in enumerate(rows)]


@pytest.mark.parametrize("kind", [ReplayBuffer, DeviceReplayBuffer])
@settings(deadline=None, max_examples=75)
@given(streams(), st.sampled_from([*range(1, 41), *[400] * 10]), st.integers(1, 4))
def test_samples_are_what_a_list_of_stacks_would_hold(kind, steps, capacity, stack):
    buffer, model = kind(capacity, (stack, SIZE, SIZE)), NaiveModel(capacity, stack)
    for step in steps:
        model.append(step)
        try:
            buffer.extend([step])
        except ValueError:  # so small a ring may have lost the frames of all it holds
            assert capacity < 2 * (stack + 1) * 4
            continue
        assert unpack(buffer.sample(16)) <= set(model.transitions)
    if steps and capacity == 400:  # room for all frames of the stream
        assert unpack(buffer.sample(5_000)) == set(model.transitions)
        assert len(buffer) == len(model.transitions)


def test_samples_are_bit_equal_to_what_the_wrappers_return():
    envs = [wrap_deepmind(make_atari("PongNoFrameskip-v4")) for _ in range(2)]
    rng = np.random.default_rng(0)
    seen: set[bytes] = set()
    acted: set[tuple[bytes, int]] = set()

    def agent(states):
        actions, shown = rng.integers(6, size=2), [np.array(state).tobytes() for state in states]
        seen.update(shown)
        acted.update(zip(shown, actions.tolist(), strict=True))
        return actions

    source = iter(ExperienceSource(envs, agent, seed=3))
    buffer = ReplayBuffer(3_000, (4, 84, 84))
    for _ in range(1_400):
        buffer.extend(next(source))
    next(source)  # the agent has seen the last states, too
    sampled = unpack(buffer.sample(10_000))
    assert any(end for *_, end, _ in sampled), "no game ended"
    assert {(state, action) for state, action, *_ in sampled} <= acted
    assert {following for *_, end, following in sampled if not end} <= seen


def test_batches_are_cut_from_one_window_and_repeat_with_the_seed():
    buffer, same, restored = (ReplayBuffer(100, (4, 84, 84), seed=seed) for seed in (7, 7, 8))
    pictures, no = np.zeros((1, 84, 84), np.uint8), np.zeros(1, bool)
    for number in range(60):
        column, begins = np.array([number]), np.array([number == 0])
        for one in (buffer, same):
            new = (column, column, no, pictures, begins, pictures[begins], [None])
            one.extend([Transitions(*new)])
    restored.load_state_dict(buffer.state_dict())
    batch, *others = (one.sample(32) for one in (buffer, same, restored))
    for other in others:
        assert all(torch.equal(one, two) for one, two in zip(batch, other, strict=True))
    assert batch.states.untyped_storage().data_ptr() == batch[4].untyped_storage().data_ptr()
    assert batch.states.shape == batch.next_states.shape == (32, 4, 84, 84)
    kept = [x.nbytes for x in buffer.state_dict().values() if isinstance(x, torch.Tensor)]
    assert sum(kept) / len(buffer) < 1.2 * 84 * 84  # a frame is stored once


def arrivals(envs: int, steps: int, count: int) -> Iterator[list[Transitions]]:
    """What rungs store at once: so many steps of each game. All games but the first are short."""
    rng, stream = np.random.default_rng(0), Stream(envs)
    for _ in range(count):
        ends = (rng.random((steps, envs)) < 0.7) & (np.arange(envs) > 0)
        yield [stream.step(ended, ended) for ended in ends]


@pytest.mark.parametrize(
    ("script", "settings"),
    [
        ("01_baseline", {}),
        ("02_n_envs", {"envs": 5, "steps": 3}),
        ("06_compiled_update", {"envs": 8, "stack": 3}),
    ],
)
def test_the_smallest_buffer_that_a_rung_accepts_has_all_that_just_arrived(script, settings):
    """Also if it was restored meanwhile."""
    rung = options_of(script)
    sizes = (rung(replay_size=size, replay_initial=1, **settings) for size in count(1))
    options = next(options for options in sizes if options.why_invalid() is None)
    kind = DeviceReplayBuffer if script == "06_compiled_update" else ReplayBuffer
    size, stack = options.replay_size, options.preprocessing.stack
    buffer, model = kind(size, (stack, SIZE, SIZE)), NaiveModel(size, stack)
    stream = arrivals(settings.get("envs", 1), settings.get("steps", 1), 2 * size)
    for number, arrived in enumerate(stream):
        buffer.extend(arrived)
        for step in arrived:
            model.append(step)
        sampled = unpack(buffer.sample(1_000))
        newest = list(model.transitions)[-len(arrived) * len(arrived[0].actions) :]
        assert set(newest) <= sampled <= set(model.transitions)
        if number % 20 == 0:
            state, buffer = buffer.state_dict(), kind(size, (stack, SIZE, SIZE))
            buffer.load_state_dict(state)
    assert buffer.added > size
