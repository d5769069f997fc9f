"""One update of 96 in bfloat16, of 02 and of Stable-Baselines3, under torch's profiler.

In the environment of requirements-peers.txt:

    GOMP_SPINCOUNT=1000 PYTHONPATH=. python results/epyc-zen4-2core/peers/one_update.py ours
    python results/epyc-zen4-2core/peers/one_update.py sb3
"""

import copy
import sys
from itertools import islice

import torch
from torch.profiler import ProfilerActivity, profile

UPDATES = 20


def ours():
    """Return the update of 02, with sampling."""
    from lib.envs.atari_wrappers import make_atari, wrap_deepmind
    from lib.envs.experience import ExperienceSource
    from lib.learning.agents import EpsilonGreedyAgent
    from lib.learning.dqn_model import DQN
    from lib.learning.loss import bellman_loss
    from lib.learning.replay_buffer import ReplayBuffer

    envs = [wrap_deepmind(make_atari("PongNoFrameskip-v4")) for _ in range(3)]
    net = DQN((4, 84, 84), 6)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4, eps=1e-8, fused=True)
    agent = EpsilonGreedyAgent(torch.no_grad()(net), 6, lambda frame: 1.0, torch.device("cpu"), 0)
    buffer = ReplayBuffer(3_000, (4, 84, 84), torch.device("cpu"), 0)
    for steps in islice(ExperienceSource(envs, agent, 0, 1), 300):
        buffer.extend(steps)

    def update():
        batch = buffer.sample(96)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                next_q = target(batch.next_states)
            loss = bellman_loss(net(batch.states), next_q, batch, 0.99)
        loss.backward()
        optimizer.step()

    return update


def sb3():
    """Return the update of Stable-Baselines3, with sampling."""
    import ale_py
    import gymnasium as gym
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gym.register_envs(ale_py)
    env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=3, seed=0), n_stack=4)
    model = DQN("CnnPolicy", env, 1e-4, buffer_size=3_000, learning_starts=10**9, seed=0)
    model.learn(900, log_interval=10**9)
    train = torch.autocast("cpu", torch.bfloat16)(model.train)
    return lambda: train(gradient_steps=1, batch_size=96)


update = {"ours": ours, "sb3": sb3}[sys.argv[1]]()
for _ in range(5):
    update()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for _ in range(UPDATES):
        update()
rows = profiler.key_averages(group_by_input_shape=True)
print(f"{sys.argv[1]}: {sum(e.self_cpu_time_total for e in rows) / UPDATES / 1e3:.1f} ms")
for e in sorted(rows, key=lambda e: -e.self_cpu_time_total)[:24]:
    ms = e.self_cpu_time_total / UPDATES / 1e3
    print(f"  {ms:5.2f} ms  {e.count // UPDATES:3} x {e.key:32} {str(e.input_shapes)[:60]}")
