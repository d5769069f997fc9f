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
from lib.envs.experience import ExperienceSource, Transition
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.replay_buffer import ReplayBuffer

SIZE = 2  # pixels squared are enough to tell frames apart


class NaiveModel:
    """What the buffer must hold: copies of the stacks, as the wrappers would have made them."""

    def __init__(self, capacity: int, stack: int) -> None:
        self.transitions: deque[tuple] = deque(maxlen=capacity)
        self.stack = stack
        self.states: dict[int, list[np.ndarray]] = {}

    def append(self, transition: Transition) -> None:
        if transition.first_frame is not None:
            self.states[transition.env] = [transition.first_frame] * self.stack
        state = self.states[transition.env]
        next_state = [*state[1:], transition.frame]
        self.states[transition.env] = next_state
        one, other = (np.concatenate(frames).tobytes() for frames in (state, next_state))
        known = (one, transition.action, transition.reward, transition.terminated, other)
        self.transitions.append(known)


def unpack(batch) -> set[tuple]:
    """A batch as a set of what the naive model holds."""
    return {
        (one.numpy().tobytes(), int(action), float(reward), bool(end), other.numpy().tobytes())
        for one, action, reward, end, other in zip(*batch, strict=True)
    }


def numbered_frames() -> Iterator[np.ndarray]:
    """Frames that show their numbers."""
    for number in count():
        yield np.frombuffer(number.to_bytes(4, "big"), np.uint8).reshape(1, SIZE, SIZE)


@st.composite
def streams(draw) -> list[Transition]:
    """Transitions of interleaved environments with ends at any place, each frame unique."""
    n_envs = draw(st.integers(1, 4))
    length = draw(st.integers(1, 120))
    turns = draw(st.lists(st.integers(0, n_envs - 1), min_size=length, max_size=length))
    ends = draw(st.lists(st.sampled_from("....TC"), min_size=length, max_size=length))
    frames, begins, transitions = numbered_frames(), [True] * n_envs, []
    for number, (env, end) in enumerate(zip(turns, ends, strict=True)):
        first = next(frames) if begins[env] else None
        begins[env] = end != "."  # T: terminated, C: cut short
        transitions.append(
            Transition(
                env, number % 6, float(number % 3 - 1), end == "T", next(frames), first, None
            )
        )
    return transitions


@settings(deadline=None, max_examples=150)
@given(streams(), st.sampled_from([*range(1, 41), *[400] * 10]), st.integers(1, 4))
def test_samples_are_what_a_list_of_stacks_would_hold(transitions, capacity, stack):
    buffer = ReplayBuffer(capacity, (stack, SIZE, SIZE))
    model = NaiveModel(capacity, stack)
    for transition in transitions:
        buffer.append(transition)
        model.append(transition)
        try:
            sampled = unpack(buffer.sample(16))
        except ValueError:  # so small a ring may have lost the frames of all it holds
            assert capacity < 2 * (stack + 1) * 4
            continue
        assert sampled <= set(model.transitions)
    assert len(buffer) == len(model.transitions)
    if capacity == 400:  # room for all frames of the stream
        assert unpack(buffer.sample(5_000)) == set(model.transitions)


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
    picture = np.zeros((1, 84, 84), np.uint8)
    buffer, same, restored = (ReplayBuffer(100, (4, 84, 84), seed=seed) for seed in (7, 7, 8))
    for number in range(60):
        first = picture if number == 0 else None
        for one in (buffer, same):
            one.append(Transition(0, number % 6, number, False, picture, first, None))
    restored.load_state_dict(buffer.state_dict())
    batch, *others = (one.sample(32) for one in (buffer, same, restored))
    for other in others:
        assert all(torch.equal(one, two) for one, two in zip(batch, other, strict=True))
    assert batch.states.untyped_storage().data_ptr() == batch[4].untyped_storage().data_ptr()
    assert batch.states.shape == batch.next_states.shape == (32, 4, 84, 84)
    kept = [x.nbytes for x in buffer.state_dict().values() if isinstance(x, torch.Tensor)]
    assert sum(kept) / len(buffer) < 1.2 * 84 * 84  # a frame is stored once


def arrivals(envs: int, steps: int, count: int) -> Iterator[list[Transition]]:
    """What rungs store at once: so many steps of each game. All games but the first are short."""
    rng, frames = np.random.default_rng(0), numbered_frames()
    begins = [True] * envs
    for _ in range(count):
        arrived = []
        for env in list(range(envs)) * steps:
            first = next(frames) if begins[env] else None
            begins[env] = env > 0 and rng.random() < 0.7
            arrived.append(Transition(env, 0, 0.0, begins[env], next(frames), first, None))
        yield arrived


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
        for transition in arrived:
            model.append(transition)
        sampled = unpack(buffer.sample(1_000))
        assert set(list(model.transitions)[-len(arrived) :]) <= sampled <= set(model.transitions)
        if number % 20 == 0:
            state, buffer = buffer.state_dict(), kind(size, (stack, SIZE, SIZE))
            buffer.load_state_dict(state)
    assert buffer.added > size
