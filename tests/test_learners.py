"""Several learners: their arithmetic, their processes, and how they end."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
from conftest import ROOT, read_events, run_rung
from test_rungs import children, is_player, start, wait_until_gone
from torch.func import grad_and_value

from lib.learning.compiled_update import MixedWeights
from lib.learning.dqn_model import DQN
from lib.players.learners import Learners, pipes_between
from lib.running.flags import parse
from lib.running.speedrun_options import LearnersOptions

SMALL = ("--rollout", "32", "--envs", "4", "--batch-size", "8", "--learners", "2")
SCRIPT = "10_many_learners"
NAMES_OF_TORCH = """
import pickle

import torch

from lib.players.learners import many_learners
from lib.running.run import Failure, launch
from lib.running.speedrun_options import LearnersOptions


def train(hp, run, learners):
    pickled = learners.gather(pickle.dumps(torch.channels_last))
    raise Failure(f"{len(set(pickled))} names in {len(pickled)} learners")


if __name__ == "__main__":
    launch(many_learners(train), LearnersOptions, "A script that has torch among its own names.")
"""


def together(count: int, act) -> list:
    """What ``act`` gives for each of so many learners, which run in threads of this process."""
    pipes = pipes_between(count)
    results: list = [None] * count

    def run(rank: int) -> None:
        results[rank] = act(Learners(rank, pipes[rank]))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_mean_is_that_of_the_whole_batch_and_the_same_for_all(count):
    torch.manual_seed(0)
    network = DQN((2, 65, 84), 3, (4, 4, 4), 8)
    net = MixedWeights(network, torch.float32, 1e-3)
    states = torch.randint(0, 256, (12, 2, 65, 84), dtype=torch.uint8)

    def gradients(states: torch.Tensor) -> torch.Tensor:
        found, _ = grad_and_value(lambda weights: net(weights, states).square().mean())(net.compute)
        return torch.cat([gradient.flatten() for gradient in found.values()])

    parts = [gradients(part) for part in states.chunk(count)]

    def act(learners: Learners) -> list[torch.Tensor]:
        # Several exchanges: nobody may read what belongs to the next one.
        return [learners.exchange([parts[learners.rank] * turn]) for turn in (1, 2, 3)]

    results = together(count, act)
    for turn, means in enumerate(zip(*results, strict=True), start=1):
        assert all(torch.equal(mean, means[0]) for mean in means)
        torch.testing.assert_close(means[0], turn * gradients(states), rtol=1e-3, atol=1e-5)


def test_messages_come_by_rank_and_the_first_learner_decides():
    results = together(3, lambda learners: learners.gather(10 * learners.rank))
    assert results == [[0, 10, 20]] * 3
    results = together(3, lambda learners: learners.told_by_first(learners.rank + 5))
    assert results == [5, 5, 5]


def test_the_first_learner_compiles_before_the_others_and_waits_for_nobody():
    order = []

    def act(learners: Learners) -> tuple[torch.Tensor, torch.Tensor]:
        gradients = [torch.tensor([float(learners.rank)])]
        with learners.first_compiles():
            order.append(learners.rank)
            compiling = learners.exchange(gradients)
        return compiling, learners.exchange(gradients)

    assert together(3, act) == [(0, 1), (1, 1), (2, 1)]
    assert order[0] == 0


def test_what_a_learner_pickles_is_the_same_so_that_the_compiler_finds_it_in_its_cache(tmp_path):
    (tmp_path / "script.py").write_text(NAMES_OF_TORCH)
    result = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), "--run-dir", str(tmp_path), *SMALL],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stderr.strip() == "script: failed: 1 names in 2 learners"


@pytest.mark.parametrize(
    ("cores", "flags", "learners"),
    [
        (1, [], 1),
        (2, [], 2),
        (8, [], 4),
        (64, [], 4),
        (3, [], 2),
        (8, ["--envs", "2"], 2),
        (2, ["--learners", "8"], 8),
    ],
)
def test_one_learner_per_core_unless_told_otherwise(cores, flags, learners, monkeypatch, tmp_path):
    monkeypatch.setattr("lib.running.speedrun_options.cores", lambda: cores)
    options = parse(LearnersOptions, "", [*flags, "--run-dir", str(tmp_path)])
    assert options.learners == learners


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_death_of_a_learner_ends_the_run_in_one_line(number, tmp_path):
    process = start(SCRIPT, tmp_path, *SMALL)
    (other,) = filter(is_player, children(process))
    os.kill(other, number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.strip() == f"{SCRIPT}: failed: learner 1 was killed by {number.name}"


def test_the_death_of_the_first_learner_leaves_no_process(tmp_path):
    process = start(SCRIPT, tmp_path, *SMALL)
    below = children(process)
    assert any(map(is_player, below))
    process.kill()
    process.communicate(timeout=30)
    assert wait_until_gone(below) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_complete_and_can_be_resumed(number, tmp_path):
    process = start(SCRIPT, tmp_path, *SMALL)
    below = children(process)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, "")
    assert "interrupted after" in out
    assert wait_until_gone(below) == []
    (run,) = tmp_path.iterdir()
    frames = int(read_events(tmp_path).Scalars("outcome/frames")[0].value)
    limit = ("--max-frames", str(frames + 500))
    result = run_rung(SCRIPT, tmp_path, "--resume", str(run), *limit)
    assert result.returncode == 0, result.stderr
    assert f"frame limit reached after {frames + 500:,} frames" in result.stdout
