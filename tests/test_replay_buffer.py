"""The replay buffer against a naive model that keeps whole stacks in a list."""

import operator
import zlib
from collections import deque
from itertools import chain, count, islice

from lib.envs.atari_wrappers import make_atari, wrap_deepmind
from lib.envs.experience import ExperienceSource, Transitions
from lib.envs.preprocessing import Preprocessing
from lib.envs.vector_env import StackedVectorEnv, VectorExperienceSource, ale_games
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.replay_buffer import ReplayBuffer
from lib.parallel.message_buffer import MessageReplayBuffer
from lib.parallel.worker import ClusterOptions
from lib.training.options import ReplayOptions

import numpy as np
import pytest
import torch
from conftest import options_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

PONG = "PongNoFrameskip-v4"
SIZE = 2  # pixels squared are enough to tell frames apart


class NaiveModel:
    """What the buffer must hold: copies of the stacks, as the wrappers would have made them."""

    def __init__(self, capacity: int, stack: int) -> None:
        self.transitions, self.stack = deque(maxlen=capacity), stack
        self.states: dict[int, list[np.ndarray]] = {}  # by environment

    def append(self, new: Transitions) -> None:
        first_frames = iter(new.first_frames)
        for env, frame in enumerate(new.frames):
            if new.episode_starts[env]:
                self.states[env] = [next(first_frames)] * self.stack
            state = self.states[env]
            self.states[env] = [*state[1:], frame]
            one, other = (np.stack(frames).tobytes() for frames in (state, self.states[env]))
            new_one = (column[env].item() for column in (new.actions, new.rewards, new.terminated))
            self.transitions.append((one, *new_one, other))


def unpack(batch) -> set[tuple]:
    """A batch as a set of what the naive model holds."""
    return {
        (one.numpy().tobytes(), *map(torch.Tensor.item, values), other.numpy().tobytes())
        for one, *values, other in zip(*batch, strict=True)
    }


class Stream:
    """Makes steps of so many environments; every frame shows a number of its own."""

    def __init__(self, envs: int) -> None:
        self.frames, self.episode_starts = count(), np.ones(envs, dtype=bool)

    def step(self, ended: np.ndarray, terminated: np.ndarray, number: int = 0) -> Transitions:
        begins, self.episode_starts = self.episode_starts, ended
        envs = len(begins)
        first, frames = self._next(begins.sum()), self._next(envs)
        actions = (number + np.arange(envs)) % 6
        rewards = (actions % 3 - 1).astype(np.float32)
        return Transitions(actions, rewards, terminated, frames, begins, first, [None] * envs)

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


@pytest.mark.parametrize("vector", [False, True], ids=["environments", "vector environment"])
def test_samples_are_bit_equal_to_what_the_agent_saw(vector):
    random, seen, acted = np.random.default_rng(0), [], []

    def agent(states):
        seen.extend(map(np.array, states))
        acted.extend(actions := random.integers(6, size=2))
        return actions

    if vector:
        games = StackedVectorEnv(ale_games(PONG, 2), Preprocessing(PONG), seed=3)
        source = VectorExperienceSource(games, agent)
    else:
        source = ExperienceSource([wrap_deepmind(make_atari(PONG)) for _ in "ab"], agent, seed=3)
    buffer, steps = ReplayBuffer(3_000, (4, 84, 84)), chain.from_iterable(source)
    for number, step in enumerate(islice(steps, 1_400)):
        numbers = np.float32([2 * number, 2 * number + 1])
        buffer.extend([step._replace(rewards=numbers)])
    next(steps)  # the agent has seen the last states, too
    states, actions, numbers, terminated, next_states = buffer.sample(2_000)
    places, goes_on, shown = numbers.long(), ~terminated, torch.from_numpy(np.stack(seen))
    assert torch.equal(states, shown[places])
    assert torch.equal(actions, torch.tensor(acted)[places])
    assert torch.equal(next_states[goes_on], shown[places + 2 * goes_on][goes_on])
    assert not goes_on.all(), "no game ended"


@pytest.mark.parametrize("kind", [ReplayBuffer, DeviceReplayBuffer])
def test_no_transition_is_dropped_before_its_frames_are(kind):
    """With episodes of one step every transition takes two frames; there is room for 38."""
    buffer, model, stream = kind(33, (2, SIZE, SIZE)), NaiveModel(38 // 2, 2), Stream(1)
    for _ in range(200):
        buffer.extend([new := stream.step(np.ones(1, bool), np.ones(1, bool))])
        model.append(new)
    assert unpack(buffer.sample(1_000)) == set(model.transitions)


def test_a_frame_is_stored_once_and_a_batch_is_cut_from_one_window():
    buffer, stream, no = ReplayBuffer(100, (4, SIZE, SIZE)), Stream(1), np.zeros(1, bool)
    packed: list[torch.Tensor] = []
    for steps, most in ((3, 4), (157, 120)):  # a checkpoint has what is there, and no more
        buffer.extend([stream.step(no, no) for _ in range(steps)])
        state = buffer.state_dict()
        former, packed = packed, state["frames"]
        assert packed is not former, "a checkpoint stays as it was"
        assert sum(len(zlib.decompress(part.numpy())) for part in packed) <= most * SIZE**2
        kept = sum(part.nbytes for part in tree_leaves(state) if isinstance(part, torch.Tensor))
        assert kept < 64 * most + 200
    assert len(buffer) == 100
    other = ReplayBuffer(100, (4, SIZE, SIZE))
    other.load_state_dict(state)
    for restored in (buffer, other):  # what has not changed is not compressed again
        assert all(map(operator.is_, packed, restored.state_dict()["frames"]))
    states, *_, next_states = buffer.sample(32)
    assert states.shape == next_states.shape == (32, 4, SIZE, SIZE)
    assert states.untyped_storage().data_ptr() == next_states.untyped_storage().data_ptr()


PLAYING = {"01_baseline": {}, "02_n_envs": {"envs": 5, "steps": 3}}
PLAYING |= {"06_compiled_update": {"envs": 8, "stack": 3}}


@pytest.mark.parametrize("script", PLAYING)
def test_the_smallest_buffer_that_a_rung_accepts_has_all_that_just_arrived(script, monkeypatch):
    """Also if it was restored meanwhile, from chunks of which some have not changed."""
    monkeypatch.setattr("lib.learning.replay_buffer.CHUNK", 7)
    rung, settings = options_of(script), PLAYING[script]
    sizes = (rung(replay_size=size, replay_initial=1, **settings) for size in count(1))
    options = next(options for options in sizes if options.validation_error() is None)
    kind = DeviceReplayBuffer if script == "06_compiled_update" else ReplayBuffer
    size, shape = options.replay_size, (options.preprocessing.stack, SIZE, SIZE)
    buffer, model = kind(size, shape), NaiveModel(size, shape[0])
    steps, envs = settings.get("steps", 1), settings.get("envs", 1)
    rng, stream = np.random.default_rng(0), Stream(envs)
    for number in range(2 * size):  # all games but the first are short
        ends = (rng.random((steps, envs)) < 0.7) & (np.arange(envs) > 0)
        buffer.extend(arrived := [stream.step(ended, ended) for ended in ends])
        for step in arrived:
            model.append(step)
        held = [*model.transitions]
        assert {*held[-steps * envs :]} <= unpack(buffer.sample(1_000)) <= {*held}
        if number % 3 == 0:
            state, buffer = buffer.state_dict(), kind(size, shape)
            buffer.load_state_dict(state)
    assert buffer.added > size


@pytest.mark.parametrize(
    ("buffer", "options"), [(ReplayBuffer, ReplayOptions), (MessageReplayBuffer, ClusterOptions)]
)
def test_the_check_of_memory_counts_what_a_transition_takes(buffer, options):
    kept = tree_leaves([*vars(buffer(10_000, (4, 84, 84))).values()])
    size = sum(part.nbytes for part in kept if isinstance(part, torch.Tensor | np.ndarray))
    assert size / 10_000 == pytest.approx(options.transition_bytes, rel=0.01)
