"""Plays 12 games of a run of 04 with and without no-op starts.

At the root of the repository at the commit of the run: PYTHONPATH=. python starts.py RUN_FOLDER
"""

import statistics
import sys
from pathlib import Path

from lib.atari_wrappers import make_atari, wrap_deepmind
from lib.checkpoints import find_checkpoint, read_checkpoint
from lib.dqn_model import DQN
from lib.evaluation import play_games

network = DQN((2, 84, 84), 6)
network.load_state_dict(read_checkpoint(find_checkpoint(Path(sys.argv[1]), "solved"))["net"])
for noop_max in (0, 30):
    env = wrap_deepmind(
        make_atari("PongNoFrameskip-v4", noop_max=noop_max, max_pool=False),
        episodic_life=False,
        stack=2,
        resize="opencv-linear",
    )
    games = play_games(env, network, 0.02, "cpu", seed=5)
    rewards = sorted(next(games).reward for _ in range(12))
    print(f"up to {noop_max} no-ops: mean {statistics.mean(rewards):.1f}, games {rewards}")
