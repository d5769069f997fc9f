"""Parts of the project on a fake GPU: captures, copies for a player, resuming, and its errors."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import NAME, gpu, in_place_of_cuda
from ignite.engine import Engine
from test_fake_gpu import UPDATES, load, train  # skips this, too, where there is a real GPU
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad_and_value

from lib.games.experience import Transition
from lib.learning.compiled_update import MixedWeights, captured
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.rollout import Rollout
from lib.players import player
from lib.running.checkpoints import find_checkpoint, read_checkpoint
from lib.running.machine import describe_machine, prepare_torch
from lib.running.run import describe_device_error
from lib.running.saving import Progress


def test_the_copy_for_the_player_follows_the_network():
    with in_place_of_cuda(), torch.no_grad():
        network = DQN((2, 84, 84), 3).to(NAME)
        mirror = player.Mirror(network)
        weights, copies = list(network.parameters()), list(mirror.network.parameters())
        for number in (1.0, 2.0, 3.0):
            for weight in weights:
                weight.fill_(number)
            weights[0][0, 0, 0, 1] = 7
            gpu.waits.clear()
            for _ in range(4):  # asked for, not there yet, there
                mirror.refresh()
                assert all(copy.isfinite().all() for copy in copies)
            assert gpu.waits == []
            for weight, copy in zip(weights, copies, strict=True):
                assert copy.stride() == weight.stride()
                assert torch.equal(weight.cpu(), copy)


def make_update(network: DQN, source: Any, gamma: Any = 0.9) -> Callable[[], torch.Tensor]:
    """The update of 06, or that of 07 if the source is a rollout."""
    net = MixedWeights(network, torch.float32, 1e-3)

    def loss_of(weights: Any, batch: Any) -> torch.Tensor:
        q = net(weights, batch.states)
        if isinstance(source, Rollout):
            return (q.gather(1, batch.actions.unsqueeze(1))[:, 0] - batch.returns).square().mean()
        return bellman_loss(q, net(weights, batch.next_states), batch, gamma)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, source.sample(4))
        net.adam(gradients)
        return loss

    return update


def filled_buffer() -> DeviceReplayBuffer:
    """With a game of noise."""
    buffer = DeviceReplayBuffer(99, (2, 84, 84), NAME)
    frames = np.random.default_rng(0).integers(256, size=(50, 1, 84, 84), dtype=np.uint8)
    firsts = [frames[0], *[None] * 49]
    game = [Transition(0, i % 3, i % 2, False, frames[i], firsts[i], None) for i in range(50)]
    buffer.extend(game)
    return buffer


def test_a_captured_update_is_the_plain_one_and_draws_anew():
    losses = []
    for captures in (True, False):
        with in_place_of_cuda():
            torch.manual_seed(0)
            update = make_update(DQN((2, 84, 84), 3).to(NAME), filled_buffer())
            if captures:
                update = captured(update)
            else:  # as warming up does, and the capture, which computes nothing on a real GPU
                for _ in range(4):
                    update()
            losses.append([update().item() for _ in range(5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(set(losses[0])) == 5


@pytest.mark.parametrize("source", ["buffer", "rollout", "buffer, and a number of the CPU"])
def test_every_node_of_a_compiled_update_is_on_the_gpu(source):
    """As the compiler sees it, after it has taken the update apart."""
    devices: dict[str, str] = {}

    def inspect(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        tensors = ((n, n.meta.get("val")) for n in module.graph.nodes)
        devices.update({n.name: v.device.type for n, v in tensors if isinstance(v, torch.Tensor)})
        return module.forward

    network = DQN((2, 84, 84), 3)
    gamma = torch.tensor(0.9) if "number" in source else 0.9
    with FakeTensorMode(allow_non_fake_inputs=True):  # no numbers, only shapes and devices
        network._apply(lambda w: torch.empty_strided(w.shape, w.stride(), device=NAME))
        shape = (2, 84, 84)
        if source == "rollout":
            update = make_update(network, Rollout(4, (8, *shape), 0.9, 0.9, NAME))
        else:
            update = make_update(network, DeviceReplayBuffer(99, shape, NAME), gamma)
        torch.compile(update, fullgraph=True, backend=aot_autograd(fw_compiler=inspect))()
    assert len(devices) > 200
    assert set(devices.values()) == ({NAME, "cpu"} if "number" in source else {NAME})


def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path):
    """The GPU's generator is kept, too: 06 samples with it."""
    with in_place_of_cuda():
        train(load("06_compiled_update"), tmp_path, NAME, checkpoint_every=UPDATES)
        kept = gpu.get_rng_state()
        torch.manual_seed(7)
        checkpoint = read_checkpoint(find_checkpoint(tmp_path, "latest"))
        engine, run = Engine(lambda *_: None), types.SimpleNamespace(device=torch.device(NAME))
        Progress(engine, run).load_state_dict(checkpoint["progress"])
        assert torch.equal(gpu.get_rng_state(), kept)


def test_a_full_gpu_is_one_line(tmp_path):
    with in_place_of_cuda():
        gpu.memory = 10**6
        with pytest.raises(torch.OutOfMemoryError) as error:
            train(load("06_compiled_update"), tmp_path, NAME)
    told = describe_device_error(error.value)
    assert told.startswith("CUDA out of memory. Tried to allocate")
    assert "--replay-size" in told
    assert "\n" not in told
    assert "try setting" not in told


def test_float32_is_tf32_in_all_of_a_gpu_and_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        prepare_torch(0)
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32
        assert torch.backends.mkldnn.matmul.fp32_precision == "none"  # the CPU stays exact
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    for capability, name in {
        (7, 5): "NVIDIA H200",
        (9, 0): "NVIDIA H200 (float32 is TF32)",
    }.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, told=capability: told)
        assert describe_machine(torch.device("cuda"))["gpu"] == name
