"""Everything with a state: once loaded it continues alike, and a trial call leaves no trace."""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

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
from ignite.engine import Engine
from torch.utils._pytree import tree_leaves

CPU, EPSILON = torch.device("cpu"), LinearSchedule(0.0, 1.0, 100)


@cache
def experience(kind: type) -> list[Any]:
    """What to store, the same for two buffers."""
    if kind is MessageReplayBuffer:
        return play_messages(messages=9, steps=20)[1]
    return list(islice(VectorExperienceSource(Games(3), lambda states: np.arange(3)), 1, 9))


def use_buffer(buffer: Any, n: int) -> Any:
    buffer.extend(experience(type(buffer))[n])
    torch.manual_seed(n)
    return buffer.sample(20)


def make_weights(kind: type) -> Any:
    torch.manual_seed(0)
    net = kind(small(), torch.bfloat16, 1e-2, float32_layers=("fc.2",))
    if kind is AveragedWeights:
        net.ema_step.fill_(0.3)
    return net


def use_weights(net: Any, n: int) -> Any:
    torch.manual_seed(n)
    net.adam({name: torch.randn(copy.shape) for name, copy in net.compute.items()})
    return [net.compute, net.weights, getattr(net, "ema_compute", ())]


def make_source() -> ExperienceSource:
    """Two games of Pong, whose steps are drawn one by one."""
    envs = [wrap_deepmind(make_atari("PongNoFrameskip-v4")) for _ in range(2)]
    source = ExperienceSource(envs, lambda states: [2, 3])
    source.drawn = iter(source)
    return source


ENGINE = Engine(Mock())


def use_loss(loss: AverageLoss, n: int) -> dict[str, float]:
    ENGINE.state.output = torch.tensor(float(n))
    loss.add()
    if n == 4:
        return {}
    loss.compute()
    return {**ENGINE.state.metrics}


def make_envs() -> TensorVectorEnv:
    """What a step of its games gives follows from the actions alone."""

    def step(actions):
        frames = np.full((6, 1, 84, 84), actions.sum(), np.uint8)
        return frames, (actions - 2).astype(np.int32), actions == 4, actions == 5, {}

    envs, first = TensorVectorEnv(6, Preprocessing("Pong"), 0, rollout=2), step(np.zeros(6))[0]
    envs.reset(SimpleNamespace(reset=lambda seed: (first, {}), step=step))
    return envs


def use_envs(envs: TensorVectorEnv, n: int) -> Any:
    step = envs.step((torch.arange(6) * n + 1) % 6)
    return step, envs.states.clone(), () if n in (3, 4, 5) else envs.report()


def use_rollout(rollout: Rollout, n: int) -> Any:
    states, actions = torch.full((6, 1, 1, 1), n, dtype=torch.uint8), torch.arange(6) + n
    torch.manual_seed(n)
    rollout.record_choice(states, actions.float(), actions)
    rollout.record_outcome(actions % 3 - 1.0, actions == 4)
    if n % 2:
        rollout.finish(actions.float() / 2)
    return rollout.sample(5)


STATES = np.eye(4, dtype=np.uint8)[:, None, None]
# For each class, what makes an object, and what uses it for the n-th time.
PARTS: dict[type, tuple[Callable[[], Any], Callable[[Any, int], Any]]] = {
    ReplayBuffer: (lambda: ReplayBuffer(18, (STACK, *SIZE)), use_buffer),
    DeviceReplayBuffer: (lambda: DeviceReplayBuffer(18, (STACK, *SIZE)), use_buffer),
    MessageReplayBuffer: (lambda: MessageReplayBuffer(90, (STACK, *SIZE)), use_buffer),
    MixedWeights: (lambda: make_weights(MixedWeights), use_weights),
    AveragedWeights: (lambda: make_weights(AveragedWeights), use_weights),
    EpsilonGreedyAgent: (
        lambda: EpsilonGreedyAgent(lambda states: states[:, 0, 0], 4, EPSILON),
        lambda agent, n: agent(STATES),
    ),
    Exploration: (lambda: Exploration(4, EPSILON), lambda part, n: part(torch.zeros(9), 50)),
    WinRate: (WinRate, lambda share, n: (share.add(n, 1), share(0))),
    ExperienceSource: (make_source, lambda source, n: next(source.drawn)),
    AverageLoss: (lambda: AverageLoss(ENGINE), use_loss),
    TensorVectorEnv: (make_envs, use_envs),
    Rollout: (lambda: Rollout(2, (6, 1, 1, 1), 0.9, 0.5), use_rollout),
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
    array = lambda leaf: leaf.float() if isinstance(leaf, torch.Tensor) else leaf  # noqa: E731
    for left, right in zip(tree_leaves(one), tree_leaves(other), strict=True):
        np.testing.assert_array_equal(array(left), array(right))


@pytest.mark.parametrize("kind", kinds_with("load_state_dict"))
def test_what_is_saved_and_loaded_goes_on_as_what_was_there(kind: type, tmp_path) -> None:
    make, play = PARTS[kind]
    part, other = make(), make()
    for n in range(5):
        play(part, n)
    state = part.state_dict()
    torch.save(state, tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for n in range(5, 8):
        assert_same(play(part, n), play(other, n))
    if not issubclass(kind, MixedWeights):  # whose state is made of views
        assert_same(state, torch.load(tmp_path / "state.pt", weights_only=True))


@pytest.mark.parametrize("kind", kinds_with("changing"))
def test_what_was_only_tried_changes_nothing(kind: type) -> None:
    """As before a CUDA graph is captured: ``changing`` has all that later calls depend on."""
    make, play = PARTS[kind]
    part, other = make(), make()
    for n in (1, 2):
        assert_same(play(part, n), play(other, n))
    with unchanged(CPU, part.changing):
        for n in (3, 4, 5):
            play(part, n)
    for n in (6, 7, 8):
        assert_same(play(part, n), play(other, n))
