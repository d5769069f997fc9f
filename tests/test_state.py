"""Everything with a state: once loaded it continues alike, and a trial call leaves no trace."""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import lib
from lib.envs.atari_wrappers import make_atari, wrap_deepmind
from lib.envs.experience import ExperienceSource
from lib.envs.gpu_vector_env import TensorVectorEnv
from lib.envs.preprocessing import Preprocessing
from lib.envs.vector_env import VectorExperienceSource
from lib.learning.agents import EpsilonGreedy, EpsilonGreedyAgent, Exploration
from lib.learning.compiled_update import unchanged
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.replay_buffer import ReplayBuffer, ReplayRings
from lib.learning.rollout import Rollout
from lib.learning.schedules import LinearSchedule, WinRate
from lib.learning.weights import AveragedWeights, MixedWeights
from lib.parallel.message_buffer import MessageReplayBuffer
from lib.training.checkpoints import RunProgress
from lib.training.handlers import AverageLoss, Speed

import numpy as np
import pytest
import torch
from helpers import SIZE, STACK, Games, play_messages, small
from torch.utils._pytree import tree_leaves

Part = tuple[Any, Callable[[int], Any]]  # an object, and what uses it for the n-th time
CPU, EPSILON = torch.device("cpu"), LinearSchedule(0.0, 1.0, 100)


def agent() -> Part:
    agent = EpsilonGreedyAgent(lambda states: states[:, 0, 0], 4, EPSILON)
    return agent, lambda n: agent(np.eye(4, dtype=np.uint8)[:, None, None])


def exploration() -> Part:
    explore = Exploration(4, EPSILON)
    return explore, lambda n: explore(torch.zeros(9), 50)


def win_rate() -> Part:
    share = WinRate()
    return share, lambda n: (share.add(n, 1), share(0))


@cache
def experience(kind: type) -> list[Any]:
    """What to store, the same for two buffers."""
    if kind is MessageReplayBuffer:
        return play_messages(messages=9, steps=20)[1]
    return list(islice(VectorExperienceSource(Games(3), lambda states: np.arange(3)), 1, 9))


def buffer(kind: type) -> Part:
    buffer = (
        kind(18, (STACK, *SIZE)) if kind is not MessageReplayBuffer else kind(90, (STACK, *SIZE))
    )

    def play(n: int) -> Any:
        buffer.extend(experience(kind)[n])
        torch.manual_seed(n)
        return buffer.sample(20)

    return buffer, play


def weights(kind: type) -> Part:
    torch.manual_seed(0)
    net = kind(small(), torch.bfloat16, 1e-2, float32_layers=("fc.2",))
    if kind is AveragedWeights:
        net.ema_step.fill_(0.3)

    def play(n: int) -> Any:
        torch.manual_seed(n)
        net.adam({name: torch.randn(copy.shape) for name, copy in net.compute.items()})
        return [net.compute, net.weights, getattr(net, "ema_compute", ())]

    return net, play


def experience_source() -> Part:
    envs = [wrap_deepmind(make_atari("PongNoFrameskip-v4")) for _ in range(2)]
    steps = iter(source := ExperienceSource(envs, lambda states: [2, 3]))
    return source, lambda n: next(steps)


def average_loss() -> Part:
    engine, loss = SimpleNamespace(state=SimpleNamespace()), AverageLoss()

    def play(n: int) -> float:
        engine.state.output = torch.tensor(float(n))
        loss.add(engine)
        return loss.compute() if n != 4 else 0.0

    return loss, play


class SixGames:
    """What a step gives follows from the actions alone."""

    def reset(self, *, seed):
        return np.zeros((6, 1, 84, 84), np.uint8), {}

    def step(self, actions):
        frames = np.full((6, 1, 84, 84), actions.sum(), np.uint8)
        return frames, (actions - 2).astype(np.int32), actions == 4, actions == 5, {}


def tensor_env() -> Part:
    envs = TensorVectorEnv(6, Preprocessing("Pong"), 0, rollout=2)
    envs.reset(SixGames())

    def play(n: int) -> Any:
        step = envs.step((torch.arange(6) * n + 1) % 6)
        return step, envs.states.clone(), () if n in (3, 4, 5) else envs.report()

    return envs, play


def rollout() -> Part:
    rollout = Rollout(2, (6, 1, 1, 1), 0.9, 0.5)

    def play(n: int) -> Any:
        states, actions = torch.full((6, 1, 1, 1), n, dtype=torch.uint8), torch.arange(6) + n
        torch.manual_seed(n)
        rollout.record_choice(states, actions.float(), actions)
        rollout.record_outcome(actions % 3 - 1.0, actions == 4)
        if n % 2:
            rollout.finish(actions.float() / 2)
        return rollout.sample(5)

    return rollout, play


BUFFERS = ReplayBuffer, DeviceReplayBuffer, MessageReplayBuffer
MAKE: dict[type, Callable[[], Part]] = {
    **{kind: partial(buffer, kind) for kind in BUFFERS},
    **{kind: partial(weights, kind) for kind in (MixedWeights, AveragedWeights)},
    **{EpsilonGreedyAgent: agent, Exploration: exploration, WinRate: win_rate},
    **{ExperienceSource: experience_source, AverageLoss: average_loss},
    **{TensorVectorEnv: tensor_env, Rollout: rollout},
}


# Bases, and what keeps the numbers of an engine.
OTHERS = EpsilonGreedy, ReplayRings, Speed, RunProgress


def kinds_with(name: str) -> list[type]:
    """The classes of lib that have this."""
    modules = [importlib.import_module(m.name) for m in pkgutil.walk_packages(lib.__path__, "lib.")]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    ours = [kind for kind in kinds if kind.__module__.startswith("lib.") and hasattr(kind, name)]
    networks = {kind for kind in ours if issubclass(kind, torch.nn.Module)}
    return sorted({*ours} - {*OTHERS} - networks, key=str)


def assert_same(one: Any, other: Any) -> None:
    for both in zip(tree_leaves(one), tree_leaves(other), strict=True):
        np.testing.assert_array_equal(
            *(part.float() if isinstance(part, torch.Tensor) else part for part in both)
        )


@pytest.mark.parametrize("kind", kinds_with("load_state_dict"))
def test_what_is_saved_and_loaded_goes_on_as_what_was_there(kind: type, tmp_path) -> None:
    (part, play), (other, play_other) = MAKE[kind](), MAKE[kind]()
    for n in range(5):
        play(n)
    state = part.state_dict()
    torch.save(state, tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for n in range(5, 8):
        assert_same(play(n), play_other(n))
    if not issubclass(kind, MixedWeights):  # whose state is made of views
        assert_same(state, torch.load(tmp_path / "state.pt", weights_only=True))


@pytest.mark.parametrize("kind", kinds_with("changing"))
def test_what_was_only_tried_changes_nothing(kind: type) -> None:
    """As before a CUDA graph is captured: ``changing`` has all that later calls depend on."""
    (part, play), (_, play_other) = MAKE[kind](), MAKE[kind]()
    for n in (1, 2):
        assert_same(play(n), play_other(n))
    with unchanged(CPU, part.changing):
        for n in (3, 4, 5):
            play(n)
    for n in (6, 7, 8):
        assert_same(play(n), play_other(n))
