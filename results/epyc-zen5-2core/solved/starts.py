"""Plays 30 games of a run after 0, up to 30 and up to 60 no-ops, with epsilon 0.01.

At the root of the repository, with a run that has its checkpoints (they are not kept here):

    PYTHONPATH=. python results/epyc-zen5-2core/solved/starts.py RUN_FOLDER
"""

import sys
from dataclasses import replace
from pathlib import Path

from lib.running.checkpoints import find_checkpoint, read_checkpoint
from lib.running.evaluation import (
    EPISODES,
    EPSILON,
    SEED,
    describe,
    load_agent,
    make_games,
    play_games,
)

network, recipe = load_agent(read_checkpoint(find_checkpoint(Path(sys.argv[1]), "solved")))
for noop_max in (0, 30, 60):
    games = make_games(replace(recipe, noop_max=noop_max), EPISODES, SEED)
    ended = [game for step in play_games(games, network, EPSILON) for _, game in step]
    print(f"up to {noop_max} no-ops: {describe([game.reward for game in ended])}", flush=True)
