"""64 new games of each agent that a run kept when it was solved, all at once on the emulator.

PYTHONPATH=. python results/epyc-zen5-2core/held-out/games.py RUN_FOLDER ...
"""

import sys
from pathlib import Path
from statistics import mean

from lib.running.checkpoints import find_checkpoint, read_checkpoint
from lib.running.evaluation import EPSILON, load_agent, make_games, play_games

GAMES, SEED = 64, 7_000_000  # neither those of the trials nor those after training

print("| run | mean | lost | worst |\n| --- | --- | --- | --- |")
for folder in map(Path, sys.argv[1:]):
    agent, recipe = load_agent(read_checkpoint(find_checkpoint(folder, "solved")))
    games = make_games(recipe, GAMES, SEED)
    rewards = [
        game.reward for ended in play_games(games, agent, EPSILON, seed=SEED) for _, game in ended
    ]
    lost = sum(reward < 0 for reward in rewards)
    print(f"| {folder.name} | {mean(rewards):.1f} | {lost} | {min(rewards):.0f} |", flush=True)
