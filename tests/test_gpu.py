"""What only a real GPU can show; skipped where there is none.

``test_fake_gpu`` looks at the logic everywhere; here are the kernels, the compiled code, captures,
memory shared between processes, and how processes end that hold a CUDA context.
"""

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BEYOND, PARALLEL, SERIAL, read_events, run_rung
from test_compiled_update import ACTIONS, GAMMA, SHAPE, make_batch, plain_updates
from test_rungs import QUICK, children, is_player, start, wait_until_gone
from torch.func import grad_and_value

from lib.games.experience import Transition
from lib.gpu_checks import left_out
from lib.learning.compiled_update import CapturedForward, CompiledUpdate, MixedWeights
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch, ReplayBuffer
from lib.players.player import CopyOnCpu
from lib.running.checkpoints import find_checkpoint, read_checkpoint
from lib.running.machine import prepare_torch

CUDA = torch.device("cuda")
FLAG = ("--cuda",)
NO_BUFFER = ("07", "08")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def orphans() -> set[str]:
    """Files of torch in shared memory that belong to a process that has ended."""
    owners = ((name, re.match(r"torch_(\d+)_", name)) for name in os.listdir("/dev/shm"))
    return {name for name, owner in owners if owner and not Path(f"/proc/{owner[1]}").exists()}


def transitions(count: int) -> list[Transition]:
    """A game of noise."""
    frames = np.random.default_rng(0).integers(256, size=(count, 1, 84, 84), dtype=np.uint8)
    firsts = [frames[0], *[None] * (count - 1)]
    pairs = enumerate(zip(frames, firsts, strict=True))
    return [
        Transition(0, i % 6, float(i % 3 - 1), False, f, first, None) for i, (f, first) in pairs
    ]


def test_samples_are_those_of_the_cpu():
    buffers = [ReplayBuffer(400, SHAPE, device, seed=3) for device in ("cpu", CUDA)]
    for buffer in buffers:
        buffer.extend(transitions(300))
    for _ in range(50):  # without waiting: pinned memory must not be used again too soon
        batches = [[buffer.sample(64) for _ in range(4)] for buffer in buffers]
        for one, other in zip(*batches, strict=True):
            assert all(torch.equal(a, b.cpu()) for a, b in zip(one, other, strict=True))


def test_an_update_is_that_of_the_cpu():
    prepare_torch(0)
    network, batch = DQN(SHAPE, ACTIONS), make_batch()
    there = Batch(*(tensor.to(CUDA) for tensor in batch))
    network_there = DQN(SHAPE, ACTIONS).to(CUDA)
    network_there.load_state_dict(network.state_dict())
    losses = plain_updates(network, batch, 5), plain_updates(network_there, there, 5)
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)  # TF32 rounds to 10 bits


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-2), (torch.bfloat16, 0.1)])
def test_a_captured_update_learns_what_the_eager_one_learns(dtype, error):
    """On the same rows: all of the buffer's, so the draws do not matter."""
    losses: list[list[float]] = []
    for faster in (False, True):
        torch.manual_seed(0)
        net = MixedWeights(DQN(SHAPE, ACTIONS).to(CUDA), dtype, 1e-4)
        batch = Batch(*(tensor.to(CUDA) for tensor in make_batch(32)))

        def loss_of(weights: dict[str, torch.Tensor], net=net, batch=batch) -> torch.Tensor:
            return bellman_loss(net(weights, batch.states), batch.rewards[:, None], batch, GAMMA)

        def update(net=net, loss_of=loss_of) -> torch.Tensor:
            gradients, loss = grad_and_value(loss_of)(net.compute)
            net.adam(gradients)
            return loss

        learn = CompiledUpdate(update, CUDA, net)
        before = [tensor.detach().clone() for tensor in net.changing]
        if faster:
            left_out.clear()
            learn.compile()
            assert left_out == []
        pairs = zip(net.changing, before, strict=True)
        assert all(torch.equal(tensor.detach(), kept) for tensor, kept in pairs)
        losses.append([learn().item() for _ in range(5)])
    assert losses[0] == pytest.approx(losses[1], rel=error)
    assert losses[0][0] > losses[0][-1]


def test_replays_of_a_captured_update_draw_different_rows():
    buffer = DeviceReplayBuffer(400, SHAPE, CUDA)
    buffer.extend(transitions(300))
    net = MixedWeights(DQN(SHAPE, ACTIONS).to(CUDA), torch.float32, 0.0)

    def loss_of(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        batch = buffer.sample(32)
        return bellman_loss(net(weights, batch.states), batch.rewards[:, None], batch, GAMMA)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute)
        net.adam(gradients)
        return loss

    learn = CompiledUpdate(update, CUDA, net)
    left_out.clear()
    learn.compile()
    assert left_out == []
    assert len({learn().item() for _ in range(5)}) == 5


def test_a_captured_forward_pass_has_its_newest_states_and_weights():
    net = DQN(SHAPE, ACTIONS).to(CUDA)
    states = make_batch(8).states.to(CUDA)
    left_out.clear()
    forward = CapturedForward(torch.no_grad()(net), tuple(states.shape), CUDA)
    assert left_out == []
    for _ in range(2):
        for part in (states, states[:3].flip(0), states[5:6]):
            torch.testing.assert_close(forward(part), net(part).detach(), rtol=2e-2, atol=2e-3)
        with torch.no_grad():
            net.fc[-1].weight.mul_(2)


def test_the_copy_for_a_player_on_the_cpu_follows():
    network = DQN(SHAPE, ACTIONS).to(CUDA)
    followed = CopyOnCpu(network)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(1)
    followed.refresh()
    followed.refresh()
    pairs = zip(network.parameters(), followed.network.parameters(), strict=True)
    assert all(torch.equal(weight.cpu(), there) for weight, there in pairs)


@pytest.mark.parametrize("script", [*SERIAL, *PARALLEL, *BEYOND])
def test_every_rung_trains(script, tmp_path):
    flags = [*FLAG, "--max-frames", "3000"] + ([] if script.startswith(NO_BUFFER) else [*QUICK])
    result = run_rung(script, tmp_path, *flags, timeout=400)
    assert result.returncode == 0, result.stderr
    assert " device cuda" in result.stdout
    assert "left out" not in result.stdout
    assert read_events(tmp_path).Scalars("outcome/frames")[0].value >= 3_000


@pytest.mark.parametrize("flags", [("--play-device", "cpu"), ("--play-device", "cuda:0"), ()])
def test_players_of_all_kinds_leave_nothing(flags, tmp_path):
    before = orphans()
    run = ("03_parallel", tmp_path, *QUICK, *FLAG, *flags, "--max-frames", "1500")
    result = run_rung(*run, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert orphans() <= before


@pytest.mark.parametrize("victim", ["both, by Ctrl-C", "player, killed", "trainer, killed"])
def test_ends_leave_no_process_and_one_line(victim, tmp_path):
    process = start("03_parallel", tmp_path, *FLAG)
    below = children(process)
    (player,) = filter(is_player, below)
    if victim.startswith("both"):
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(player if victim.startswith("player") else process.pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert wait_until_gone(below) == []
    if victim.startswith("player"):
        assert errors.strip() == "03_parallel: failed: the player was killed by SIGKILL"
    else:  # a trainer that is killed says nothing; its player is silent, too
        assert errors == ""


@pytest.mark.parametrize("script", ["01_baseline", "06_compiled_update", "08_recompiled_pong"])
def test_a_run_is_resumed_there_and_on_a_cpu(script, tmp_path):
    flags = [] if script.startswith(NO_BUFFER) else [*QUICK]
    first = run_rung(script, tmp_path, *FLAG, *flags, "--max-frames", "2500", timeout=300)
    assert first.returncode == 0, first.stderr
    (run,) = tmp_path.iterdir()
    before: dict[str, Any] = read_checkpoint(find_checkpoint(run, "latest"))["progress"]
    assert before["device_random"] is not None
    for device, frames in (("cuda", "4000"), ("cpu", "5000")):
        more = ("--resume", str(run), "--device", device, "--max-frames", frames)
        result = run_rung(script, tmp_path, *more, timeout=300)
        assert result.returncode == 0, result.stderr
    after = read_checkpoint(find_checkpoint(run, "latest"))["progress"]
    assert after["iteration"] > before["iteration"]


def test_a_buffer_that_does_not_fit_is_one_line(tmp_path):
    free, _ = torch.cuda.mem_get_info()
    size = int(1.2 * free / 7_056)
    result = run_rung("06_compiled_update", tmp_path, *FLAG, "--replay-size", str(size))
    if result.returncode == 2:
        pytest.skip(f"the computer has less memory than its GPU: {result.stderr.strip()}")
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert re.search("out of memory.*--replay-size", result.stderr)
