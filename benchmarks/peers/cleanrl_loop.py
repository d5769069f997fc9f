"""DQN on Pong with CleanRL's settings, as a program: an update of 32 for every four frames.

CleanRL is no library but programs to read, so the loop is ours. As CleanRL's does, it uses the
wrappers and the replay buffer of Stable-Baselines3, torch's Adam as it is, and clips gradients.
It runs in the peers' environment and prints its frames per second after filling.
"""

import copy
import random
import time

import ale_py
import gymnasium as gym
import numpy as np
import torch
import work
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.buffers import ReplayBuffer
from torch.nn.functional import mse_loss

gym.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)

STEPS = 4  # frames per update


def make_env() -> gym.Env:
    """Pong, wrapped."""
    env = gym.wrappers.TransformObservation(  # (84, 84, 1) to (84, 84)
        AtariWrapper(gym.make(work.ENV)),
        lambda frame: frame[..., 0],
        gym.spaces.Box(0, 255, (84, 84), np.uint8),
    )
    return gym.wrappers.FrameStackObservation(env, 4)


def main() -> None:
    """Read the flags, run, print."""
    args = work.parser(__doc__).parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if args.cuda else "cpu")
    env = SyncVectorEnv([make_env], autoreset_mode=AutoresetMode.SAME_STEP)
    spaces = env.single_observation_space, env.single_action_space
    buffer = ReplayBuffer(
        100_000, *spaces, device, optimize_memory_usage=True, handle_timeout_termination=False
    )
    net = work.Net(spaces[1].n).to(device)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)

    def update() -> None:
        batch = buffer.sample(32)
        with work.autocast(args):
            with torch.no_grad():
                best = target(batch.next_observations).amax(1)
                targets = batch.rewards.flatten() + 0.99 * best * (1 - batch.dones.flatten())
            taken = net(batch.observations).gather(1, batch.actions).squeeze(1)
            loss = mse_loss(taken.float(), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()

    observations, _ = env.reset(seed=args.seed)
    for step in range(args.replay_initial + args.frames):
        if step == args.replay_initial:
            begin = time.perf_counter()
        if random.random() < args.epsilon:
            actions = env.action_space.sample()
        else:
            with torch.no_grad():
                actions = net(torch.as_tensor(observations, device=device)).argmax(1).cpu().numpy()
        following, rewards, terminated, truncated, info = env.step(actions)
        last = following.copy()
        for i in np.flatnonzero(terminated | truncated):
            last[i] = info["final_obs"][i]
        buffer.add(observations, last, actions, rewards, terminated, [{}])
        observations = following
        if step >= args.replay_initial and step % STEPS == 0:
            update()
            if step % 1_000 == 0:
                target.load_state_dict(net.state_dict())
    if args.cuda:
        torch.cuda.synchronize()
    print(args.frames / (time.perf_counter() - begin))


if __name__ == "__main__":
    main()
