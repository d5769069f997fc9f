"""The agent in agents/ wins: preprocessing, network and emulator are those it learned with."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT

from lib.recipe import PONG_ACTIONS, PONG_ROWS
from lib.running.checkpoints import read_checkpoint
from lib.running.evaluation import load_agent, make_games, play_games

AGENT = ROOT / "agents" / "pong.pt"


def test_it_is_small_and_tells_how_to_play_with_it():
    assert AGENT.stat().st_size < 1_000_000
    _, recipe = load_agent(read_checkpoint(AGENT))
    assert (recipe.env, recipe.rows, recipe.actions) == (
        "PongNoFrameskip-v4",
        PONG_ROWS,
        PONG_ACTIONS,
    )


@pytest.mark.usefixtures("console")
def test_it_wins_on_the_emulator():
    network, recipe = load_agent(read_checkpoint(AGENT))
    ends = play_games(make_games(recipe, 16, 70), network, 0.01, seed=70)
    rewards = [game.reward for ended in ends for _, game in ended]
    # It lost fewer than one game in a hundred; other processors round differently.
    assert sum(reward > 0 for reward in rewards) >= 15
    assert sorted(rewards)[8] >= 18


def test_it_wins_on_ales_environment_if_play_has_no_argument():
    result = subprocess.run(
        [sys.executable, str(ROOT / "play.py"), "--episodes", "2"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (result.returncode, result.stderr) == (0, "")
    first, _, *games, _ = result.stdout.splitlines()
    assert "agents" in first
    scores = [int(re.search(r"score +(-?\d+)", game)[1]) for game in games]
    assert len(scores) == 2
    assert max(scores) > 0
