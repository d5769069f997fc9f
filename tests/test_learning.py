"""Model, losses, returns, epsilon, agent, and all together on a game with a known optimum."""

import copy
import importlib
import sys
from collections.abc import Callable

from lib.envs.experience import Transitions
from lib.gpu_checks import fallbacks
from lib.learning import agents
from lib.learning.compiled_update import CapturedForward, try_compile
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.dqn_model import DQN, BlockConv2d, DuelingDQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch
from lib.learning.rollout import Rollout
from lib.learning.schedules import LinearSchedule, ProgressSchedule, WinRate, maximum
from lib.learning.weights import AveragedWeights
from lib.training.machine import prepare_torch
from lib.training.run import Run

import numpy as np
import pytest
import torch
from helpers import SHAPE, Catch
from ignite.handlers import TensorboardLogger
from torch import nn


def test_model_is_natures():
    net, other = DQN((4, 84, 84), 6), DuelingDQN((2, 30, 42), 3)
    shapes = [tuple(p.shape) for p in net.parameters() if p.dim() > 1]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136), (6, 512)]
    assert net.conv[0].weight.is_contiguous(memory_format=torch.channels_last)
    shapes = [tuple(p.shape) for p in other.parameters() if p.dim() > 1]
    assert shapes == [(16, 2, 4, 4), (16, 16, 4, 4), (16, 16, 3, 3), (256, 448), (4, 256)]
    assert [type(layer) for layer in other.fc[:3]] == [nn.Linear, nn.LayerNorm, nn.ReLU]
    assert other.fc[0].weight.std().item() == pytest.approx((2 / 448) ** 0.5, rel=0.05)  # He's
    assert not other.fc[0].bias.any()
    assert net.temperature == other.temperature == 0, "greedy"


@pytest.mark.parametrize("size", [(14, 20), (15, 21)])
def test_a_convolution_over_blocks_is_the_same(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    found, expected = BlockConv2d(3, 5, kernel_size=4, stride=2), nn.Conv2d(3, 5, 4, stride=2)
    expected.load_state_dict(found.state_dict())
    both = []
    for convolution in (found, expected):
        frames = torch.arange(6.0 * size[0] * size[1]).sin().view(2, 3, *size).requires_grad_()
        values = convolution(frames)
        values.square().sum().backward()
        both.append([values, frames.grad, convolution.weight.grad, convolution.bias.grad])
    torch.testing.assert_close(*both)


def test_near_ties_are_broken_at_random_and_clear_choices_stay():
    torch.manual_seed(0)
    values = torch.tensor([*[1.0] * 4, 1.02, 0.85])
    random = np.random.default_rng(0)
    games = values.expand(4_000, 6)
    played = agents.sample_actions(games.numpy(), 0.0, 0.01, [random] * 4_000)
    for actions in (agents.sample_softmax(games, 0.01), torch.from_numpy(played)):
        shares = torch.bincount(actions, minlength=6) / 4_000
        torch.testing.assert_close(shares, (values / 0.01).softmax(0), rtol=0, atol=0.03)
        assert shares[5] == 0  # hardly ever
    assert agents.sample_softmax(values.expand(100, 6), 0.0).eq(4).all()
    assert agents.sample_actions(values[None].numpy(), 0.0, 0.0, [random]) == [4]


@pytest.mark.parametrize(
    ("network", "size"), [(DQN, ((3, 4, 5), 7, 4)), (DuelingDQN, (0.1,))], ids=["DQN", "DuelingDQN"]
)
def test_a_network_is_its_plain_layers_and_sees_each_state_less_its_brightness(network, size):
    torch.manual_seed(0)
    net = network((2, 36, 42), 6, *size)
    frames = torch.randint(0, 128, (8, 2, 36, 42), dtype=torch.uint8)
    pixels = frames.float()
    plain = copy.deepcopy(net.conv[:-1]).to(memory_format=torch.contiguous_format)
    planes = plain((pixels - pixels.mean((1, 2, 3), keepdim=True)) / 255)
    values = net.fc(planes.flatten(1))
    if network is DuelingDQN:
        heads = net.fc(planes.permute(0, 2, 3, 1).flatten(1))
        values = heads[:, :1] + heads[:, 1:] - heads[:, 1:].mean(1, keepdim=True)
    assert values.shape == (8, 6)
    again = network(**net.arguments)  # as from a checkpoint
    again.load_state_dict(net.state_dict())
    assert again.temperature == net.temperature
    alone = torch.cat([net(frames[i : i + 1]) for i in range(8)])
    with torch.no_grad():  # it acts as it learns
        without_gradients = net(frames)
    assert torch.equal(again(frames), net(frames))
    for found in (net(frames), alone, without_gradients, net(frames + 100)):
        torch.testing.assert_close(found, values)
    pixels = pixels.to(memory_format=torch.channels_last)
    given = pixels.clone().requires_grad_()
    net(given).sum().backward()
    assert given.grad.any()
    assert torch.equal(given, pixels), "its input stays"
    frames[:, :, 10:12, 20:22] += 50
    assert not torch.allclose(net(frames), values, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("network", "least"), [(DQN, 36), (DuelingDQN, 18)])
def test_a_picture_that_is_too_small_is_refused(network, least):
    assert network((1, least, least), 3)(torch.zeros(1, 1, least, least)).shape == (1, 3)
    with pytest.raises(ValueError, match=rf"{least - 1}x99 pixels .* needs {least}x{least} or"):
        network((1, least - 1, 99), 3)


def test_bellman_loss_by_hand():
    q = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.5, 0.0]], requires_grad=True)
    next_q = torch.tensor([[10.0, 20.0], [30.0, 40.0], [-1.0, -2.0]])
    terminated, rewards = torch.tensor([False, True, False]), torch.tensor([1.0, -1.0, 0.5])
    batch = Batch(q, torch.tensor([1, 0, 0]), rewards, terminated, q)
    loss = bellman_loss(q, next_q, batch, gamma=0.9)
    errors = [2.0 - (1.0 + 0.9 * 20.0), 3.0 - (-1.0), 0.5 - (0.5 + 0.9 * -1.0)]
    assert loss.item() == pytest.approx(sum(e * e for e in errors) / 3)
    loss.backward()
    expected = [[0.0, 2 / 3 * errors[0]], [2 / 3 * errors[1], 0.0], [2 / 3 * errors[2], 0.0]]
    torch.testing.assert_close(q.grad, torch.tensor(expected))


def test_a_schedule_follows_the_share_of_points_won() -> None:
    win_rate = WinRate(points=100)
    rate = ProgressSchedule(4e-4, 1e-4, win_rate)
    win_rate.add(0, 10)
    win_rate.add(1, 0)
    assert rate(10**6) == 4e-4
    assert win_rate.value == pytest.approx(0.01)
    win_rate.value = 0.0
    win_rate.add(3, 3)
    assert win_rate.value == pytest.approx((1 - 0.99**6) / 2)
    win_rate.value = 0.6  # half way
    assert rate(0) == pytest.approx(2e-4)
    for _ in range(20):
        win_rate.add(50, 0)
    assert rate(0) == pytest.approx(1e-4)
    for most, value in ((0.7, 0.7), (0.8, 0.7)):  # the second trial was lost sooner
        win_rate.cap(most)
        assert win_rate.value == value

    by_frame = ProgressSchedule(4e-4, 1e-4, LinearSchedule(0, 1, 1_000))
    values = [by_frame(frame) for frame in (0, 300, 600, 900, 10**9)]
    assert values == pytest.approx([4e-4, 4e-4, 2e-4, 1e-4, 1e-4])


def test_a_schedule_falls_linearly_from_its_begin_and_the_highest_of_two_counts():
    epsilon, frames = LinearSchedule(1.0, 0.0, 100, begin=50), (0, 50, 75, 150, 10**9)
    assert [epsilon(frame) for frame in frames] == [1, 1, 0.75, 0, 0]
    highest = maximum(epsilon, LinearSchedule(0.2, 0.1, 1_000))
    assert [highest(frame) for frame in frames] == pytest.approx([1, 1, 0.75, 0.185, 0.1])


def test_exploration_replaces_greedy_actions():
    greedy, falling = torch.full((10_000,), 2), LinearSchedule(0.0, 0.6, 10)
    explore = agents.Exploration(3, falling, seed=1)
    assert (explore(greedy, 0) == 2).all()
    actions = explore(greedy, 10)
    assert (greedy == 2).all()
    torch.manual_seed(0)
    on_device = agents.epsilon_greedy(greedy, torch.tensor(0.6), 3)  # as in 10
    values = np.eye(3, dtype=np.float32)[greedy]
    in_trials = agents.sample_actions(values, 0.6, 0.0, [np.random.default_rng(0)] * 10_000)
    for played in (actions, on_device.numpy(), in_trials):
        assert np.allclose(np.bincount(played) / 10_000, [0.2, 0.2, 0.6], atol=0.02)


def test_agent_explores_with_epsilon_and_is_greedy_otherwise():
    asked = []

    def q_function(states: torch.Tensor) -> torch.Tensor:
        asked.append(len(states))
        return torch.nn.functional.one_hot(states[:, 0, 0, 0].long(), 4).float()

    best = np.arange(1_000) % 4
    states = best.astype(np.uint8).reshape(-1, 1, 1, 1)
    agent = agents.EpsilonGreedyAgent(q_function, 4, LinearSchedule(0.0, 0.4, 1_000))
    assert np.array_equal(agent(states), best)
    assert agent.frames == 1_000
    assert 0.2 < np.mean(agent(states) != best) < 0.4  # a quarter of 0.4 draw the best action
    assert agent.frames == 2_000
    assert 500 < asked[-1] < 700  # the network is asked for the greedy ones only


def test_a_rung_learns_a_game_with_a_known_optimum(tmp_path, monkeypatch):
    rung = importlib.import_module("05_vector_env")
    monkeypatch.setattr(rung, "ale_games", lambda env, count: count)
    monkeypatch.setattr(rung, "StackedVectorEnv", Catch)
    monkeypatch.setattr(rung, "evaluate", lambda *_: None)  # which plays Pong
    settings = {"envs": 4, "stack": 2, "epsilon_final": 0.01, "epsilon_frames": 1_500}
    settings |= {"replay_size": 5_000, "replay_initial": 500, "batch_size": 8, "target_sync": 50}
    settings |= {"learning_rate": 5e-4, "gamma": 0.9, "stop_reward": 0.8, "max_frames": 10_000}
    prepare_torch(0)
    with TensorboardLogger(tmp_path) as tensorboard:
        options = rung.Options(**settings, checkpoint_every=0)
        run = Run(options, torch.device("cpu"), tmp_path, tensorboard, "05_vector_env")
        rung.train(options, run)
    assert run.solved, run.outcome


def by_definition(rewards, ended, values) -> torch.Tensor:
    """The return of the first step: the recursion, with gamma = 0.9 and lambda = 0.7."""
    if len(rewards) == 0:
        return values[0]
    mixed = 0.3 * values[1] + 0.7 * by_definition(rewards[1:], ended[1:], values[1:])
    return torch.where(ended[0], rewards[0], rewards[0] + 0.9 * mixed)


@pytest.mark.parametrize("by_tensors", [False, True], ids=["07", "10"])
def test_a_rollout_has_its_returns_and_an_order_unlike_that_of_play(by_tensors) -> None:
    torch.manual_seed(0)
    rollout, orders = Rollout(10, (4, 1, 1, 1), gamma=0.9, q_lambda=0.7), {(*range(40),)}
    places = [tensor.data_ptr() for tensor in rollout.targets]
    (rewards, values), ended = torch.randn(2, 31, 4), torch.rand(31, 4) < 0.2
    numbers = torch.arange(31 * 4).view(31, 4)  # which states show, and actions are
    for t in range(31):
        states, step = numbers[t].byte().view(4, 1, 1, 1), (numbers[t], rewards[t], ended[t])
        complete = t > 0 and t % 10 == 0
        if by_tensors:
            if complete:
                rollout.finish(values[t])
            rollout.record_choice(states, values[t], numbers[t])
            rollout.record_outcome(*step[1:])
        else:
            rollout.record_values(states, values[t])
            rollout.record_step(*(column.numpy() for column in step))
            assert rollout.ready == (t >= 10)
        if complete:
            rests = ((rewards[s:t], ended[s:t], values[s : t + 1]) for s in range(t - 10, t))
            returns = torch.cat([by_definition(*rest) for rest in rests])
            drawn = [rollout.sample(30) for _ in range(3)]  # the second begins the next round
            seen, actions, found = map(torch.cat, zip(*drawn, strict=True))
            order = actions - numbers[t - 10, 0]
            assert torch.equal(seen.flatten(), actions.byte())
            torch.testing.assert_close(found, returns[order])
            assert sorted(order[:40].tolist()) == [*range(40)]
            assert torch.equal(order[40:80], order[:40])
            orders.add((*order[:40].tolist(),))
    assert len(orders) == 4
    assert [tensor.data_ptr() for tensor in rollout.targets] == places


def test_a_compiled_sample_has_the_rows_of_the_plain_one(monkeypatch) -> None:
    """With float32 numbers neither could draw each of 2**25 rows."""
    n, buffer = 1_000, DeviceReplayBuffer(2_000, (1, 1, 1))
    frames, yes = np.zeros((n, 1, 1), np.uint8), np.ones(n, bool)
    rewards = np.zeros(n, np.float32)
    buffer.extend([Transitions(np.arange(n), rewards, yes, frames, yes, frames, [None] * n)])

    def plain() -> torch.Tensor:
        return buffer.sample(500).actions

    def rows(way: Callable[[], torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(0)
        return way()

    with monkeypatch.context() as patch:
        last = lambda size, dtype=None, **_: torch.full((size,), 1 - 2**-40, dtype=dtype)  # noqa: E731
        patch.setattr(torch, "rand", last)
        assert (plain() == n - 1).all()
    compiled = try_compile("sample", plain, buffer.device)
    assert compiled is not plain, fallbacks
    assert torch.equal(drawn := rows(compiled), rows(plain))
    assert len(drawn.unique()) > 300
    capacity, buffer.capacity = buffer.capacity, 1  # nobody looks whether it is still the same
    assert torch.equal(rows(compiled), drawn)
    buffer.capacity = capacity
    sys.setprofile(lambda *_: None)  # then torch looks at its guards
    try:
        assert torch.equal(rows(compiled), drawn)
    finally:
        sys.setprofile(None)


def test_compiling_the_choice_of_actions_draws_no_number() -> None:
    def act(states: torch.Tensor) -> torch.Tensor:
        return states.double().sum((1, 2, 3)) + torch.rand(len(states))

    before = torch.get_rng_state()
    CapturedForward(act, (2, *SHAPE), torch.device("cpu"), compiled=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_adam_is_torchs_and_the_average_of_the_weights_follows_them_and_plays():
    torch.manual_seed(0)
    network, last = DuelingDQN((2, 36, 36), 3), ("fc.3",)
    net = AveragedWeights(network, torch.bfloat16, 1e-2, epsilon=0.1, float32_layers=last)
    plain, average = copy.deepcopy(network), copy.deepcopy(network)
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-2, eps=0.1)
    for share in (1.0, 0.5, 0.1):
        assert share < 1 or net.ema_step == 1, "at first, the average is the weights"
        net.ema_step.fill_(share)
        gradients = {name: torch.randn_like(copy) for name, copy in net.compute.items()}
        net.adam(gradients)
        for name, gradient in net.named(gradients).items():
            plain.get_parameter(name).grad = gradient.float()
        optimizer.step()
        for mean, weight in zip(average.parameters(), plain.parameters(), strict=True):
            mean.data.lerp_(weight.data, share)
    agent, state = net.agent(), net.state_dict()
    for expected, saved, copies in (
        (plain, state["weights"], net.compute),
        (average, state["ema"], net.ema_compute),
        (average, agent.state_dict(), net.ema_compute),
    ):
        torch.testing.assert_close(saved, dict(expected.named_parameters()))
        for name, copied in net.named(copies).items():
            assert copied.dtype == (torch.float32 if name.startswith(last) else torch.bfloat16)
            assert torch.equal(copied, saved[name].to(copied.dtype))
    states = torch.randint(256, (5, 2, 36, 36), dtype=torch.uint8)
    values = net(net.ema_compute, states)
    torch.testing.assert_close(values, agent(states), rtol=0.05, atol=0.05)
    resumed = AveragedWeights(DuelingDQN((2, 36, 36), 3), torch.bfloat16, 1, float32_layers=last)
    resumed.load_state_dict(state)  # it acts before it learns
    expected = [net.compute, net.ema_compute]
    torch.testing.assert_close([resumed.compute, resumed.ema_compute], expected, rtol=0, atol=0)
    state["ema"]["fc.3.bias"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match="ema have names or shapes of another network"):
        net.load_state_dict(state)


def test_without_a_compiler_it_runs_uncompiled_and_says_so(tmp_path, monkeypatch, program):
    flags = ["--batch-size", "4", "--replay-initial", "20", "--max-frames", "60"]
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    result = program("06_compiled_update", "--run-dir", tmp_path / "runs", *flags)
    assert (result.code, result.error) == (0, "")
    (found,) = [line for line in result.out.splitlines() if line.startswith("left out: ")]
    assert "the compiled update (compiling needs a C++ compiler" in found
