"""What is compiled, and the weights that it learns."""

import copy
import sys
from collections.abc import Callable

import numpy as np
import torch
from helpers import ACTIONS, SHAPE

from lib.envs.experience import Transitions
from lib.gpu_checks import fallbacks
from lib.learning.compiled_update import CapturedForward, try_compile
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.dqn_model import DQN
from lib.learning.weights import AveragedWeights


def test_a_compiled_sample_has_the_rows_of_the_plain_one() -> None:
    """With float32 numbers of its own it could not draw each of 2**25 rows."""
    n, buffer = 1_000, DeviceReplayBuffer(2_000, (1, 1, 1))
    frames, yes = np.zeros((n, 1, 1), np.uint8), np.ones(n, bool)
    actions, rewards = np.arange(n), np.zeros(n, np.float32)
    buffer.extend([Transitions(actions, rewards, yes, frames, yes, frames, [None] * n)])

    def plain() -> torch.Tensor:
        return buffer.sample(500).actions

    def rows(way: Callable[[], torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(0)
        return way()

    compiled = try_compile("sample", plain, buffer.device)
    assert compiled is not plain, fallbacks
    assert torch.equal(drawn := rows(compiled), rows(plain))
    assert len(drawn.unique()) > 300
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


def test_the_average_of_the_weights_follows_them_and_plays():
    torch.manual_seed(0)
    small = (SHAPE, ACTIONS, (4, 4, 4), 8)
    net = AveragedWeights(DQN(*small), torch.bfloat16, 1e-2)
    gradients = {name: torch.randn_like(copy) for name, copy in net.compute.items()}
    expected = {name: weight.detach().clone() for name, weight in net.weights.items()}
    for share in (1.0, 0.5, 0.1):
        net.ema_step.fill_(share)
        net.adam(gradients)
        for name, weight in net.weights.items():
            expected[name] += share * (weight.detach() - expected[name])
            torch.testing.assert_close(net.ema[name], expected[name])
    resumed = AveragedWeights(DQN(*small), torch.bfloat16, 1e-2)
    resumed.load_state_dict(copy.deepcopy(net.state_dict()))
    ema, acting = net.named(net.ema), net.named(net.ema_compute)
    for name, weight in net.agent().state_dict().items():
        assert torch.equal(weight, ema[name])
        assert torch.equal(acting[name], weight.bfloat16())
    assert torch.equal(resumed.ema_compute["low"], net.ema_compute["low"])
    assert torch.equal(resumed.compute["low"], net.compute["low"])


def test_without_a_compiler_it_runs_uncompiled_and_says_so(tmp_path, monkeypatch, program):
    flags = ["--batch-size", "4", "--replay-initial", "20", "--max-frames", "60"]
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    result = program("06_compiled_update", "--run-dir", tmp_path / "runs", *flags)
    assert (result.code, result.error) == (0, "")
    found = [line for line in result.out.splitlines() if line.startswith("left out: ")]
    assert len(found) == 1
    assert "the compiled update (compiling needs g++" in found[0]
