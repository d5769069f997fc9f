"""games.md: 256 new games of every agent, with epsilon 0.01 and after up to 30 no-ops.

    PYTHONPATH=. python results/epyc-zen5-2core/record/games.py RUN RUN > games.md

Each RUN is the folder of a solved run, with its checkpoints.
"""

import sys
from pathlib import Path
from statistics import mean

import numpy as np

from lib.training.checkpoints import read_checkpoint
from lib.training.evaluation import EPSILON, load_agent, make_games, play_games

GAMES, FIRST_SEED = 256, 2_000_000  # the games after training have seeds from 1,000,000 on
lost = 0
print("| run | won | lost | mean | lowest |\n| --- | --- | --- | --- | --- |")
for folder in map(Path, sys.argv[1:]):
    network, preprocessing = load_agent(read_checkpoint(folder / "checkpoints/solved.pt"))
    games = make_games(preprocessing, FIRST_SEED + np.arange(GAMES))
    played = play_games(games, network, EPSILON, network.temperature)
    rewards = [game.reward for ended in played for _, game in ended]
    won = sum(reward > 0 for reward in rewards)
    lost += GAMES - won
    print(f"| {folder.name} | {won} | {GAMES - won} | {mean(rewards):.1f} | {min(rewards):.0f} |")
print(f"\nLost of {GAMES * len(sys.argv[1:]):,}: {lost}")
