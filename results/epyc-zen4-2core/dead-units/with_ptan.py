"""Who is alive in 01 made of ptan's parts, with our wrappers: ``python with_ptan.py SEED UPDATES``.

Prints lines as ``alive.py`` does. In an environment of its own, see requirements-peers.txt. ptan's
own wrappers begin games with black frames, which have units of their own, and drop the seed.
"""

import argparse
import copy
import random
import sys
from pathlib import Path

import numpy as np
import ptan
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from benchmarks import peer_loops
from lib.envs.atari_wrappers import make_atari, wrap_deepmind

seed, updates = int(sys.argv[1]), int(sys.argv[2])
args = argparse.Namespace(device="cpu", amp=True)  # of ptan_update
torch.set_num_threads(1)
torch.set_flush_denormal(True)
random.seed(seed)
np.random.seed(seed)
torch.manual_seed(seed)
net = peer_loops.Net()
target, conv = copy.deepcopy(net), torch.nn.Sequential(*list(net)[:6])
optimizer = torch.optim.Adam(net.parameters(), peer_loops.LEARNING_RATE)
selector = ptan.actions.EpsilonGreedyActionSelector()
agent = ptan.agent.DQNAgent(net, selector, device=torch.device("cpu"))
source = ptan.experience.ExperienceSourceFirstLast(
    wrap_deepmind(make_atari(peer_loops.ENV)), agent, peer_loops.GAMMA, env_seed=seed
)
buffer = ptan.experience.ExperienceReplayBuffer(source, peer_loops.REPLAY_SIZE)


def play(frame: int) -> None:
    """Play a frame, with the epsilon of the rungs."""
    selector.epsilon = max(0.02, 1 - 0.98 * frame / 100_000)
    buffer.populate(1)
    source.pop_rewards_steps()
    source.env_seed = None  # of the first game; the others follow from it


for frame in range(10_000):
    play(frame)
random_state = np.random.get_state()
seen = torch.from_numpy(np.asarray([step.state for step in buffer.sample(256)]))
np.random.set_state(random_state)
for update in range(1, updates + 1):
    play(9_999 + update)
    peer_loops.ptan_update(net, target, optimizer, buffer.sample(32), args)
    if update % peer_loops.TARGET_SYNC == 0:
        target.load_state_dict(net.state_dict())
    if update % 500 == 0:
        with torch.no_grad():
            alive = (conv(seen / 255).view(256, 64, -1).amax((0, 2)) > 0).sum().item()
            spread = net(seen).std(0).mean()
        gradient = max(weight.grad.abs().max() for weight in conv.parameters())
        told = seed, optimizer.defaults["eps"], update, alive
        print("alive", "ptan", *told, f"{spread:.1e}", f"{gradient:.1e}", sep=",", flush=True)
