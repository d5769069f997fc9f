"""Games as tensors of a device: the states, rewards and ends that ``StackedVectorEnv`` makes."""

from itertools import chain

import numpy as np
import pytest
import torch

from lib.envs.gpu_vector_env import TensorVectorEnv
from lib.envs.preprocessing import PONG_ACTIONS, PONG_ROWS, Preprocessing
from lib.envs.vector_env import StackedVectorEnv
from pong_emulator import PongVectorEnv

GAMES, STEPS, EVERY = 3, 320, 8
SETTINGS = {"stack": 1, "threads": 1, "reward_clipping": False, "max_num_frames_per_episode": 400}


@pytest.mark.usefixtures("console")
def test_states_rewards_ends_and_games_are_those_of_the_cpu():
    preprocessing = Preprocessing("Pong", stack=3, rows=PONG_ROWS, actions=PONG_ACTIONS, half=True)
    here = StackedVectorEnv(PongVectorEnv(GAMES, **SETTINGS), preprocessing, seed=5)
    there = TensorVectorEnv(GAMES, preprocessing, 5, EVERY)
    there.reset(PongVectorEnv(GAMES, **SETTINGS))
    assert there.n_actions == here.n_actions == 3
    assert there.shape == here.shape
    random, games, reported = np.random.default_rng(0), [], []
    points, points_reported = np.zeros((STEPS, 2)), np.zeros(2)
    for step in range(STEPS):
        assert np.array_equal(here.states, there.states.numpy())
        actions = random.integers(3, size=GAMES)
        here.send(actions)
        mine, its = here.recv(), there.step(torch.from_numpy(actions))
        for one, other in zip((mine.rewards, mine.done), its, strict=True):
            assert np.array_equal(one, other.numpy())
            assert str(one.dtype) in str(other.dtype)
        games.append([game for game in mine.episodes if game])
        points[step] = mine.points
        if (step + 1) % EVERY == 0:  # what is reported is the rollout before
            episodes, won_and_lost = there.report()
            reported += episodes
            points_reported += won_and_lost
            known = step + 1 - EVERY
            assert reported == list(chain(*games[:known]))
            assert np.array_equal(points_reported, points[:known].sum(axis=0))
    assert len(reported) > GAMES
    assert points_reported[1] > 0
