"""The agent in agents/ wins: preprocessing, network and emulator are those it learned with."""

import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

from lib.recipe import PONG_ACTIONS, PONG_ROWS
from lib.running.checkpoints import read_checkpoint
from lib.running.evaluation import SingleGames, load_agent, make_env, make_games, play_games

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
    torch.manual_seed(0)
    network, recipe = load_agent(read_checkpoint(AGENT))
    ends = play_games(make_games(recipe, 16, 70), network, 0.01, seed=70)
    rewards = [game.reward for ended in ends for _, game in ended]
    # It lost fewer than one game in a hundred; other processors round differently.
    assert sum(reward > 0 for reward in rewards) >= 15
    assert sorted(rewards)[8] >= 18


def test_it_wins_on_ales_environment():
    network, recipe = load_agent(read_checkpoint(AGENT))
    games = SingleGames([make_env(recipe) for _ in range(3)], 80)
    rewards = [
        game.reward for ended in play_games(games, network, 0.01, seed=80) for _, game in ended
    ]
    assert sum(reward > 0 for reward in rewards) >= 2


def test_play_without_an_argument_plays_it():
    result = subprocess.run(
        [sys.executable, str(ROOT / "play.py"), "--episodes", "1"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (result.returncode, result.stderr) == (0, "")
    first, _, game, _ = result.stdout.splitlines()
    assert "agents" in first
    assert int(re.search(r"score +(-?\d+)", game)[1]) > 0
