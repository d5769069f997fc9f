"""What only a real GPU can show; skipped where there is none.

``test_fake_gpu`` looks at the logic everywhere; here are the kernels, the compiled code, captures,
memory shared between processes, and how processes end that hold a CUDA context.
"""

import copy
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BEYOND, PARALLEL, ROOT, SERIAL, read_events, run_rung
from test_compiled_update import ACTIONS, GAMMA, SHAPE, make_batch
from test_rungs import QUICK, children, is_player, start, wait_until_gone
from torch.func import grad_and_value

from lib.games.experience import Transition
from lib.gpu_checks import left_out
from lib.learning.compiled_update import CapturedForward, CompiledUpdate, MixedWeights, captured
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.dqn_model import DQN, adam
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch, ReplayBuffer
from lib.players.player import Mirror
from lib.running.checkpoints import find_checkpoint, read_checkpoint
from lib.running.machine import prepare_torch
from lib.transfer import upload

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


def test_what_is_uploaded_arrives():
    arrays = [np.arange(7), np.full((3, 5), 0.5, np.float32), np.array([True, False])]
    for sent, array in zip(upload(CUDA, *arrays), arrays, strict=True):
        assert sent.device.type == "cuda"
        assert np.array_equal(sent.cpu().numpy(), array)


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
    network, batch, losses = DQN(SHAPE, ACTIONS), make_batch(), []
    for device in ("cpu", CUDA):
        net = copy.deepcopy(network).to(device)
        there, optimizer = Batch(*(tensor.to(device) for tensor in batch)), adam(net, 1e-4)
        for _ in range(5):
            optimizer.zero_grad()
            loss = bellman_loss(net(there.states), net(there.next_states).detach(), there, GAMMA)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:5] == pytest.approx(losses[5:], rel=2e-2)  # TF32 rounds to 10 bits


def make_update(dtype: torch.dtype) -> tuple[Any, DeviceReplayBuffer, MixedWeights]:
    """The update of 06, the buffer that it samples from, and what it learns."""
    torch.manual_seed(0)
    net = MixedWeights(DQN(SHAPE, ACTIONS).to(CUDA), dtype, 1e-4)
    target = copy.deepcopy(net.network).to(dtype)
    buffer = DeviceReplayBuffer(400, SHAPE, CUDA)
    buffer.extend(transitions(300))

    def loss_of(weights: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            next_q = target(batch.next_states)
        return bellman_loss(net(weights, batch.states), next_q, batch, GAMMA)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, buffer.sample(32))
        net.adam(gradients)
        return loss

    return update, buffer, net


def ready(update: Any, net: MixedWeights) -> CompiledUpdate:
    """The update, compiled and captured, and nothing of that left out."""
    left_out.clear()
    learn = CompiledUpdate(update, CUDA, net)
    next(learn.ready_for(iter([None])))
    assert left_out == []
    return learn


def test_replays_of_a_captured_update_draw_different_rows():
    _, buffer, _ = make_update(torch.float32)
    drawn = torch.zeros(32, dtype=torch.int64, device=CUDA)

    def sampling() -> torch.Tensor:
        batch = buffer.sample(32)
        drawn.copy_(batch.states[:, -1].flatten(1).long().sum(1))
        return batch.rewards.sum()

    replay, seen = captured(torch.compile(sampling, fullgraph=True)), set()
    for _ in range(5):
        replay()
        seen.add(tuple(drawn.tolist()))
    assert len(seen) == 5


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-2), (torch.bfloat16, 0.1)])
def test_a_captured_update_learns_what_the_eager_one_learns(dtype, error):
    """On the same rows: all of the buffer's, so the draws do not matter."""
    losses = []
    for captures in (False, True):
        update, buffer, net = make_update(dtype)
        rows = torch.arange(32, device=CUDA)
        buffer.sample = lambda _, buffer=buffer, rows=rows: buffer.gather(rows)
        before = [tensor.detach().clone() for tensor in net.changing]
        call = ready(update, net) if captures else update
        for tensor, kept in zip(net.changing, before, strict=True):
            assert torch.equal(tensor.detach(), kept)
        losses.append([call().item() for _ in range(5)])
    assert losses[0] == pytest.approx(losses[1], rel=error)
    assert losses[0][0] > losses[0][-1]


def test_a_captured_forward_pass_has_its_newest_states_and_weights():
    net = DQN(SHAPE, ACTIONS).to(CUDA)
    states = make_batch(8).states.to(CUDA)
    forward = CapturedForward(torch.no_grad()(net), states.shape, CUDA)
    for _ in range(2):
        for part in (states, states[:3].flip(0), states[5:6]):
            torch.testing.assert_close(forward(part), net(part).detach(), rtol=2e-2, atol=2e-3)
        with torch.no_grad():
            net.fc[-1].weight.mul_(2)


def test_the_copy_for_a_player_on_the_cpu_follows():
    network = DQN(SHAPE, ACTIONS).to(CUDA)
    mirror = Mirror(network)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(1)
    for _ in range(3):
        mirror.refresh()
        torch.cuda.synchronize()
    pairs = zip(network.parameters(), mirror.network.parameters(), strict=True)
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
@pytest.mark.parametrize("script", PARALLEL)
def test_players_of_all_kinds_leave_nothing(script, flags, tmp_path):
    before = orphans()
    result = run_rung(script, tmp_path, *QUICK, *FLAG, *flags, "--max-frames", "1500", timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert orphans() <= before


@pytest.mark.parametrize("victim", ["both, by Ctrl-C", "player, killed", "trainer, killed"])
def test_ends_leave_no_process_no_shared_memory_and_one_line(victim, tmp_path):
    before = orphans()
    process = start("03_parallel", tmp_path, *FLAG)
    below = children(process)
    (player,) = filter(is_player, below)
    if victim.startswith("both"):
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(player if victim.startswith("player") else process.pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert wait_until_gone(below) == []
    assert orphans() <= before
    if victim.startswith("player"):
        assert errors.strip() == "03_parallel: failed: the player was killed by SIGKILL"
    else:  # a trainer that is killed says nothing; its player is silent, too
        assert errors == ""


@pytest.mark.parametrize("script", ["01_baseline", "06_compiled_update", "07_speedrun"])
def test_a_run_is_resumed_and_played_on_a_cpu(script, tmp_path):
    flags = ["--checkpoint-replay"] + ([] if script.startswith(NO_BUFFER) else [*QUICK])
    first = run_rung(script, tmp_path, *FLAG, *flags, "--max-frames", "2500", timeout=300)
    assert first.returncode == 0, first.stderr
    (run,) = tmp_path.iterdir()
    before = read_checkpoint(find_checkpoint(run, "latest"))["progress"]
    assert before["device_random"] is not None
    flags = ("--resume", str(run), "--max-frames", "5000")
    result = run_rung(script, tmp_path, *flags, timeout=300)
    assert result.returncode == 0, result.stderr
    after = read_checkpoint(find_checkpoint(run, "latest"))["progress"]
    assert after["iteration"] > before["iteration"]
    assert (
        not torch.equal(after["device_random"], before["device_random"]) or script == "01_baseline"
    )

    command = [sys.executable, str(ROOT / "play.py"), str(run), "--episodes", "1", "--epsilon", "1"]
    no_gpu = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    played = subprocess.run(command, capture_output=True, text=True, env=no_gpu, timeout=120)
    assert played.returncode == 0, played.stderr
    assert "score" in played.stdout


def test_a_buffer_that_does_not_fit_is_one_line(tmp_path):
    free, _ = torch.cuda.mem_get_info()
    size = int(1.2 * free / 7_056)
    result = run_rung("06_compiled_update", tmp_path, *FLAG, "--replay-size", str(size))
    if result.returncode == 2:
        pytest.skip(f"the computer has less memory than its GPU: {result.stderr.strip()}")
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert re.search("out of memory.*--replay-size", result.stderr)


@pytest.mark.parametrize("script", ["01_baseline", "03_parallel"])
def test_the_cpu_waits_for_actions_alone(script):
    command = [sys.executable, "-m", "benchmarks", "waits", script, *FLAG]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert result.returncode == 0, result.stderr
    places = re.findall(r"^ *([\d.]+) (\S+) line", result.stdout, re.M)
    often = {file for rate, file in places if float(rate) > 0.1}  # every 100 updates are logged
    assert often == ({"experience.py"} if script == "01_baseline" else set())
