"""The replay buffer against a naive model that keeps whole stacks in a list."""

from collections import deque
from collections.abc import Iterator
from itertools import count

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ignite.engine import Engine
from test_rungs import options_of
from torch.overrides import TorchFunctionMode

from lib.games.atari_wrappers import make_atari, wrap_deepmind
from lib.games.experience import ExperienceSource, Transition
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.replay_buffer import ReplayBuffer
from lib.running.events import COUNTERS, PlayEvents, play

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
        self.transitions.append(
            (
                np.concatenate(state).tobytes(),
                transition.action,
                transition.reward,
                transition.terminated,
                np.concatenate(next_state).tobytes(),
            )
        )


def unpack(batch) -> set[tuple]:
    """A batch as a set of what the naive model holds."""
    return {
        (
            state.numpy().tobytes(),
            int(action),
            float(reward),
            bool(end),
            following.numpy().tobytes(),
        )
        for state, action, reward, end, following in zip(*batch, strict=True)
    }


@st.composite
def streams(draw) -> list[Transition]:
    """Transitions of interleaved environments with ends at any place, each frame unique."""
    n_envs = draw(st.integers(1, 4))
    length = draw(st.integers(1, 120))
    turns = draw(st.lists(st.integers(0, n_envs - 1), min_size=length, max_size=length))
    ends = draw(st.lists(st.sampled_from("....TC"), min_size=length, max_size=length))
    numbers = iter(range(1_000_000))

    def frame() -> np.ndarray:
        return np.frombuffer(next(numbers).to_bytes(4, "big"), np.uint8).reshape(1, SIZE, SIZE)

    begins = [True] * n_envs
    transitions = []
    for number, (env, end) in enumerate(zip(turns, ends, strict=True)):
        first = frame() if begins[env] else None
        begins[env] = end != "."  # T: terminated, C: cut short
        transitions.append(
            Transition(env, number % 6, float(number % 3 - 1), end == "T", frame(), first, None)
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


class Recorder(gym.Wrapper):
    """Keeps a copy of every pair of states that the environment returned one after the other."""

    def __init__(self, env: gym.Env, pairs: set[tuple[bytes, int, bytes]]) -> None:
        super().__init__(env)
        self.pairs = pairs

    def reset(self, **kwargs):
        state, info = super().reset(**kwargs)
        self.state = np.array(state).tobytes()
        return state, info

    def step(self, action):
        state, *rest = super().step(action)
        following = np.array(state).tobytes()
        self.pairs.add((self.state, action, following))
        self.state = following
        return state, *rest


def test_samples_are_bit_equal_to_what_the_wrappers_return():
    pairs: set[tuple[bytes, int, bytes]] = set()
    envs = [Recorder(wrap_deepmind(make_atari("PongNoFrameskip-v4")), pairs) for _ in range(2)]
    rng = np.random.default_rng(0)
    source = iter(ExperienceSource(envs, lambda states: rng.integers(6, size=len(states)), seed=3))
    buffer = ReplayBuffer(3_000, (4, 84, 84))
    for _ in range(1_100):
        buffer.extend(next(source))
    batch = buffer.sample(2_000)
    assert batch.terminated.any(), "no game ended, so the test says nothing about episode ends"
    for state, action, following in zip(
        batch.states, batch.actions, batch.next_states, strict=True
    ):
        assert (state.numpy().tobytes(), int(action), following.numpy().tobytes()) in pairs


def test_batches_are_cut_from_one_window_and_repeat_with_the_seed():
    picture = np.zeros((1, 84, 84), np.uint8)
    batches = []
    for _ in range(2):
        buffer = ReplayBuffer(100, (4, 84, 84), seed=7)
        for number in range(60):
            first = picture if number == 0 else None
            buffer.append(Transition(0, number % 6, number, False, picture, first, None))
        batches.append(buffer.sample(32))
    assert torch.equal(batches[0].states[:, 1:], batches[0].next_states[:, :-1])
    storages = {batches[0][i].untyped_storage().data_ptr() for i in (0, 4)}
    assert len(storages) == 1
    assert batches[0].states.shape == batches[0].next_states.shape == (32, 4, 84, 84)
    assert batches[0].states.dtype == torch.uint8
    kept = [x.nbytes for x in buffer.state_dict().values() if isinstance(x, torch.Tensor)]
    assert sum(kept) / len(buffer) < 1.2 * 84 * 84  # a frame is stored once
    assert all(torch.equal(one, two) for one, two in zip(*batches, strict=True))


def one_game(frames: int) -> Iterator[Transition]:
    """A game whose frames show their numbers."""
    shown = [np.frombuffer(n.to_bytes(4, "big"), np.uint8) for n in range(frames)]
    for number in range(1, frames):
        first = shown[0].reshape(1, SIZE, SIZE) if number == 1 else None
        yield Transition(0, 0, 0.0, False, shown[number].reshape(1, SIZE, SIZE), first, None)


@pytest.mark.parametrize(
    ("kind", "growing"),  # what in its state grows for ever; all else are places in its rings
    [(ReplayBuffer, {"windows"}), (DeviceReplayBuffer, {"first_intact", "first_numbers"})],
)
def test_a_buffer_goes_on_after_2_to_the_31_frames(kind, growing):
    shape = (4, SIZE, SIZE)
    buffer, game = kind(8, shape), list(one_game(200))
    for transition in game[:50]:
        buffer.extend([transition])
    state = buffer.state_dict()
    rings = len(state["frames"]) * len(state["actions"])
    passed = (2**31 - 80) // rings * rings  # whole rounds of both rings, so places stay the same
    for name in growing | {"frames_written", "transitions_written"}:
        state[name] = state[name] + passed
    state["state_windows"] = {0: [n + passed for n in state["state_windows"][0]]}
    later, model = kind(8, shape), NaiveModel(8, 4)
    later.load_state_dict(state)
    for number, transition in enumerate(game):
        model.append(transition)
        if number >= 50:
            later.extend([transition])
            assert unpack(later.sample(100)) == set(model.transitions)
    assert state["frames_written"] < 2**31 < later.state_dict()["frames_written"]
    assert state["transitions_written"] < 2**31 < later.added


def test_errors():
    buffer = ReplayBuffer(10, (4, 2, 2))
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)
    frame = np.zeros((1, 2, 2), np.uint8)
    with pytest.raises(ValueError, match="first frame"):
        buffer.append(Transition(0, 0, 0.0, False, frame, None, None))


def arrivals(envs: int, steps: int, count: int) -> Iterator[list[Transition]]:
    """What rungs store at once: so many steps of each game. All games but the first are short."""
    rng, numbers = np.random.default_rng(0), iter(range(1_000_000))

    def frame() -> np.ndarray:
        return np.frombuffer(next(numbers).to_bytes(4, "big"), np.uint8).reshape(1, SIZE, SIZE)

    begins = [True] * envs
    for _ in range(count):
        arrived = []
        for env in list(range(envs)) * steps:
            first = frame() if begins[env] else None
            begins[env] = env > 0 and rng.random() < 0.7
            arrived.append(Transition(env, 0, 0.0, begins[env], frame(), first, None))
        yield arrived


@pytest.mark.parametrize(
    ("script", "settings"),
    [
        ("01_baseline", {}),
        ("02_n_envs", {"envs": 5, "steps": 3}),
        ("04_new_wrappers_n_env", {"envs": 3, "stack": 7}),
        ("06_compiled_update", {"envs": 8, "stack": 3}),
    ],
)
def test_the_smallest_buffer_that_a_rung_accepts_has_all_that_just_arrived(script, settings):
    rung = options_of(script)
    sizes = (rung(replay_size=size, replay_initial=1, **settings) for size in count(1))
    options = next(options for options in sizes if options.problem() is None)
    kind = DeviceReplayBuffer if script == "06_compiled_update" else ReplayBuffer
    stack = options.recipe.stack
    buffer, model = (
        kind(options.replay_size, (stack, SIZE, SIZE)),
        NaiveModel(options.replay_size, stack),
    )
    torch.manual_seed(0)
    for arrived in arrivals(settings.get("envs", 1), settings.get("steps", 1), 30):
        buffer.extend(arrived)
        for transition in arrived:
            model.append(transition)
        sampled = unpack(buffer.sample(1_000))
        assert set(list(model.transitions)[-len(arrived) :]) <= sampled <= set(model.transitions)


@pytest.mark.parametrize(
    ("steps", "message"), [(1, "the capacity is too small"), (2, "16 transitions do not fit")]
)
def test_a_buffer_on_the_device_that_is_too_small_says_so(steps, message):
    buffer = DeviceReplayBuffer(12, (4, SIZE, SIZE))

    def store() -> None:
        for arrived in arrivals(8, steps, 10):
            buffer.extend(arrived)

    with pytest.raises(ValueError, match=message):
        store()


def test_training_that_has_begun_goes_on_when_transitions_are_lost():
    """Short games, with two frames for each transition, leave room for fewer transitions."""
    engine, shape = Engine(lambda *_: None), (2, SIZE, SIZE)
    engine.register_events(*PlayEvents, event_to_attr=COUNTERS)
    engine.state.update_due = False
    buffer, resumed = DeviceReplayBuffer(32, shape), DeviceReplayBuffer(32, shape)
    long = list(one_game(41))
    short = [t._replace(first_frame=t.frame, terminated=True) for t in long]
    updates = list(play(engine, [[t] for t in long + short], buffer, 32))
    assert len(buffer) < 32
    assert len(updates) == 80 - 31
    resumed.load_state_dict(buffer.state_dict())
    assert len(list(play(engine, [], resumed, 32))) == 1  # the one that was due


class AppleGpu(TorchFunctionMode):
    """Tensors of mps are made on the CPU, with one difference: mps has no float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, mps = dict(kwargs or {}), torch.device("mps")
        if func is torch.device:
            return func(*args)
        asked = mps in [x for x in (*args, kwargs.get("device")) if isinstance(x, torch.device)]
        if "device" in kwargs and asked:
            kwargs["device"] = "cpu"
        result = func(*["cpu" if asked and x == mps else x for x in args], **kwargs)
        if asked and result.dtype == torch.float64:
            raise TypeError("the MPS framework doesn't support float64")
        return result


def test_apples_gpu_draws_the_rows_that_a_cpu_draws():
    batches = []
    for device in ("cpu", "mps"):
        with AppleGpu():
            buffer = DeviceReplayBuffer(50, (4, SIZE, SIZE), torch.device(device))
            for transition in one_game(80):
                buffer.extend([transition])
            torch.manual_seed(0)
            batches.append(buffer.sample(100))
    assert all(torch.equal(one, two) for one, two in zip(*batches, strict=True))
