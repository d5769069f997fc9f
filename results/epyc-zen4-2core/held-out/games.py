"""256 new games of each agent that a run kept, all at once, as in its trial.

cd results/epyc-zen4-2core/held-out; PYTHONPATH=../../.. python games.py RUN_DIR ...
"""

import sys
from pathlib import Path
from statistics import mean

from lib.training.checkpoints import find_checkpoint, read_checkpoint
from lib.training.evaluation import EPSILON, load_agent, make_games, play_games

import numpy as np
import torch

SEEDS = 5_000_000 + np.arange(256)  # of no other game

torch.set_num_threads(1)
print("| run | mean | lost | worst |")
print("| --- | --- | --- | --- |")
lost = 0
for run in map(Path, sys.argv[1:]):
    network, preprocessing = load_agent(read_checkpoint(find_checkpoint(run)))
    played = play_games(make_games(preprocessing, SEEDS), network, EPSILON, network.temperature)
    rewards = [game.reward for ended in played for _, game in ended]
    here = sum(reward < 0 for reward in rewards)
    lost += here
    print(f"| {run.name} | {mean(rewards):.1f} | {here} | {min(rewards):.0f} |", flush=True)
print(f"\nLost: {lost} of {len(sys.argv[1:]) * len(SEEDS):,}.")
