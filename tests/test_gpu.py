"""Tests that need a real GPU, and are skipped without one.

``test_fake_gpu`` tests the logic everywhere; this module tests the kernels, the compiled code,
captures, and memory shared between processes.
"""

import os
import re
from pathlib import Path

from lib.gpu_checks import fallbacks
from lib.learning.compiled_update import CapturedForward, graph_or_eager
from lib.learning.dqn_model import DQN
from lib.training.machine import prepare_torch

import pytest
import torch
from conftest import read_events, run_rung
from helpers import ACTIONS, QUICK, SHAPE, make_batch, rung_beside_plain_dqn

CUDA = torch.device("cuda")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.fixture(autouse=True)
def nothing_is_left_out():
    prepare_torch(0)
    fallbacks.clear()
    yield
    assert fallbacks == []


def orphans() -> set[str]:
    """Files of torch in shared memory that belong to a process that has ended."""
    owners = ((name, re.match(r"torch_(\d+)_", name)) for name in os.listdir("/dev/shm"))
    return {name for name, owner in owners if owner and not Path(f"/proc/{owner[1]}").exists()}


# TF32 rounds to 11 bits, bfloat16 to 8.
@pytest.mark.parametrize(("precision", "error"), [("float32", 2e-2), ("bfloat16", 0.1)])
def test_a_compiled_and_captured_update_learns_what_the_cpu_learns(precision, error, tmp_path):
    settings = {"envs": 2, "precision": precision}
    losses, expected = rung_beside_plain_dqn("06_compiled_update", tmp_path, "cuda", **settings)
    assert losses == pytest.approx(expected, rel=error)


def test_a_captured_choice_has_its_newest_states_and_weights_and_outlives_its_network():
    """In the network's memory there are other tensors by then, unless the graph keeps it."""
    net, states = DQN(SHAPE, ACTIONS).to(CUDA), make_batch(8).states.to(CUDA)
    forward = CapturedForward(torch.no_grad()(net), tuple(states.shape), CUDA)
    for _ in range(2):
        for part in (states[:3].flip(0), states[5:6], states):
            expected = net(part).detach().clone()
            torch.testing.assert_close(forward(part), expected, rtol=2e-2, atol=2e-3)
        with torch.no_grad():
            net.fc[-1].weight.mul_(2)
    expected = net(states).detach().clone()
    del net
    torch.cuda.empty_cache()
    others = [torch.full((256 * size,), 1e9, device=CUDA) for size in range(1, 1_025) for _ in "ab"]
    torch.testing.assert_close(forward(states), expected, rtol=2e-2, atol=2e-3)
    assert all(bool((other == 1e9).all()) for other in others)


def test_after_a_failed_capture_there_are_others():
    numbers = torch.ones(3, device=CUDA)

    def asks() -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            numbers[0].item()
        return numbers + torch.rand(3, device=CUDA)

    assert graph_or_eager("a question", asks, CUDA) is asks
    assert "a question" in fallbacks.pop()
    assert asks().min() >= 1
    draw = graph_or_eager("a draw", lambda: numbers + torch.rand(3, device=CUDA), CUDA)
    assert not torch.equal(draw().clone(), draw())


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("01_baseline", QUICK),
        ("03_parallel", QUICK),
        ("03_parallel", (*QUICK, "--play-device", "cpu")),
        ("06_compiled_update", QUICK),
        ("08_recompiled_pong", ()),
        ("10_thousands_of_games", ("--envs", "64")),
    ],
)
def test_rungs_train_and_are_resumed(script, flags, tmp_path):
    before = orphans()
    first = run_rung(script, tmp_path, "--cuda", *flags, "--max-frames", "2500")
    (run,) = tmp_path.iterdir()
    more = ("--resume", str(run), "--max-frames", "4000")
    for result in (first, run_rung(script, tmp_path, *more)):
        assert (result.returncode, result.stderr) == (0, "")
        assert " device cuda" in result.stdout
        assert "left out" not in result.stdout
    assert read_events(*tmp_path.iterdir()).Scalars("outcome/frames")[-1].value >= 4_000
    assert orphans() <= before
