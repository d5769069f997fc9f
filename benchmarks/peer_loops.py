"""DQN on Pong as others do it, at the same work as the ladder's rungs, as a program.

    python peer_loops.py {ptan,sb3,cleanrl} [flags]

Run by ``python -m benchmarks peers`` in the peers' environment. The last line is the frames per
second after filling. ptan has no loop, and CleanRL is no library, so those loops are ours: with
ptan's wrappers, agent, experience source and buffer, and as CleanRL's with the wrappers and the
buffer of Stable-Baselines3 and clipped gradients.
"""

import argparse
import copy
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import torch
from torch import multiprocessing, nn
from torch.nn.functional import mse_loss

gym.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)

ENV = "PongNoFrameskip-v4"
STEPS = 4  # frames of an update of CleanRL's settings, and of ptan's parallel loop
QUEUE_SIZE = 8
REPLAY_SIZE, LEARNING_RATE, GAMMA, TARGET_SYNC = 100_000, 1e-4, 0.99, 1_000
Tensors = tuple[torch.Tensor, ...]  # states, actions, rewards, terminated, next states


class Net(nn.Sequential):
    """The Nature DQN network."""

    def __init__(self) -> None:
        layers = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)
        seen = [part for layer in layers for part in (layer, nn.ReLU())]
        super().__init__(*seen, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Value the actions."""
        return super().forward(frames / 255.0)


def autocast(args: argparse.Namespace) -> AbstractContextManager:
    """What ``--amp`` asks for."""
    return torch.autocast(args.device, torch.bfloat16, enabled=args.amp)


class Learner:
    """Network, target network and optimizer; gradients are clipped to a norm of ``clip``."""

    def __init__(self, args: argparse.Namespace, clip: float | None = None) -> None:
        self.args, self.clip, self.updates = args, clip, 0
        self.net = Net().to(args.device)
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), LEARNING_RATE)

    def update(self, batch: Tensors) -> None:
        """One gradient step."""
        states, actions, rewards, terminated, next_states = (
            tensor.to(self.args.device) for tensor in batch
        )
        self.optimizer.zero_grad()
        with autocast(self.args):
            taken = self.net(states).gather(1, actions.unsqueeze(1)).squeeze(1)
            with torch.no_grad():
                best = self.target(next_states).amax(1).masked_fill(terminated, 0.0)
            loss = mse_loss(taken.float(), rewards + GAMMA * best)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimizer.step()
        self.updates += 1
        if self.updates % TARGET_SYNC == 0:
            self.target.load_state_dict(self.net.state_dict())

    def measure(self, play: Callable[[], int], sample: Callable[[], Tensors]) -> None:
        """Play and learn in turn, and print the rate; ``play`` says how many frames it played."""
        begin, frames = time.perf_counter(), 0
        while frames < self.args.frames:
            frames += play()
            self.update(sample())
        print(frames / (now(self.args) - begin))


def now(args: argparse.Namespace) -> float:
    """The time in seconds, once the GPU has done what it was given."""
    if args.cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def ptan_source(envs: int, net: nn.Module, args: argparse.Namespace) -> Any:
    """Ptan's agent, playing."""
    import ptan

    made = [ptan.common.wrappers.wrap_dqn(gym.make(ENV), noop_max=30) for _ in range(envs)]
    selector = ptan.actions.EpsilonGreedyActionSelector(args.epsilon)
    agent = ptan.agent.DQNAgent(net, selector, device=torch.device(args.device))
    envs_or_env = made if envs > 1 else made[0]
    source = ptan.experience.ExperienceSourceFirstLast
    return source(envs_or_env, agent, gamma=GAMMA, steps_count=1)


def ptan_play(net: nn.Module, queue: Any, args: argparse.Namespace) -> None:
    """What the player process does."""
    torch.set_num_threads(1)
    for experience in ptan_source(1, net, args):
        queue.put(experience)


def ptan(args: argparse.Namespace) -> None:
    """Play in ``--envs`` environments in turn, or with ``--parallel`` in a process."""
    from ptan.experience import ExperienceReplayBuffer

    learner, steps = Learner(args), STEPS if args.parallel else args.envs
    if args.parallel:
        context = multiprocessing.get_context("spawn")
        queue = context.Queue(maxsize=QUEUE_SIZE)
        play_args = learner.net.share_memory(), queue, args
        context.Process(target=ptan_play, args=play_args, daemon=True).start()
    source = None if args.parallel else ptan_source(args.envs, learner.net, args)
    buffer = ExperienceReplayBuffer(source, REPLAY_SIZE)

    def receive(count: int = 1) -> int:
        """At least so many frames, and what else is there, as the rung does."""
        taken = 0
        while taken < count or (taken < QUEUE_SIZE and not queue.empty()):
            buffer._add(queue.get())
            taken += 1
        return taken

    def play(count: int = args.envs) -> int:
        buffer.populate(count)
        source.pop_rewards_steps()
        return count

    def sample() -> Tensors:
        batch = buffer.sample(32 * steps)
        last = [e.state if e.last_state is None else e.last_state for e in batch]
        return (
            torch.as_tensor(np.asarray([e.state for e in batch])),
            torch.tensor([int(e.action) for e in batch]),
            torch.tensor([float(e.reward) for e in batch]),
            torch.tensor([e.last_state is None for e in batch]),
            torch.as_tensor(np.asarray(last)),
        )

    more = receive if args.parallel else play
    more(args.replay_initial)
    learner.measure(more, sample)


def cleanrl(args: argparse.Namespace) -> None:
    """CleanRL's settings: an update of 32 for every four frames."""
    from gymnasium.vector import AutoresetMode, SyncVectorEnv
    from stable_baselines3.common.atari_wrappers import AtariWrapper
    from stable_baselines3.common.buffers import ReplayBuffer

    def make_env() -> gym.Env:
        space = gym.spaces.Box(0, 255, (84, 84), np.uint8)
        env = AtariWrapper(gym.make(ENV))
        env = gym.wrappers.TransformObservation(env, lambda frame: frame[..., 0], space)
        return gym.wrappers.FrameStackObservation(env, 4)

    env = SyncVectorEnv([make_env], autoreset_mode=AutoresetMode.SAME_STEP)
    spaces = env.single_observation_space, env.single_action_space
    how = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    buffer = ReplayBuffer(REPLAY_SIZE, *spaces, args.device, **how)
    learner = Learner(args, clip=0.5)
    observations, _ = env.reset(seed=args.seed)

    def play(steps: int = STEPS) -> int:
        nonlocal observations
        for _ in range(steps):
            actions = env.action_space.sample()
            if random.random() >= args.epsilon:
                with torch.no_grad():
                    values = learner.net(torch.as_tensor(observations, device=args.device))
                actions = values.argmax(1).cpu().numpy()
            following, rewards, terminated, truncated, info = env.step(actions)
            last = following.copy()
            for i in np.flatnonzero(terminated | truncated):
                last[i] = info["final_obs"][i]
            buffer.add(observations, last, actions, rewards, terminated, [{}])
            observations = following
        return steps

    def sample() -> Tensors:
        batch = buffer.sample(32)
        actions, rewards, dones = batch.actions, batch.rewards, batch.dones
        flat = actions.flatten(), rewards.flatten(), dones.flatten().bool()
        return batch.observations, *flat, batch.next_observations

    play(args.replay_initial)
    learner.measure(play, sample)


def sb3(args: argparse.Namespace) -> None:
    """Stable-Baselines3's own DQN."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    # One after another in this process, as the rung steps them (DummyVecEnv is the default).
    env = make_atari_env(ENV, n_envs=args.envs, seed=args.seed)
    model = DQN(
        "CnnPolicy",
        VecFrameStack(env, n_stack=4),
        learning_rate=LEARNING_RATE,
        buffer_size=REPLAY_SIZE,
        learning_starts=args.replay_initial,
        batch_size=32 * args.envs,
        gamma=GAMMA,
        train_freq=(args.steps, "step"),  # of the vector: a frame of every environment each
        gradient_steps=1,
        target_update_interval=TARGET_SYNC * args.envs,  # in frames
        exploration_initial_eps=args.epsilon,
        exploration_final_eps=args.epsilon,
        seed=args.seed,
        device=args.device,
    )
    silent = 10**9  # episodes between lines of its log
    model.learn(args.replay_initial, log_interval=silent)
    begin, filled = time.perf_counter(), model.num_timesteps
    with autocast(args):  # it has no such switch, so around all it does
        model.learn(args.frames, log_interval=silent, reset_num_timesteps=False)
    print((model.num_timesteps - filled) / (now(args) - begin))


def main() -> None:
    """Read the flags, run."""
    loops = {"ptan": ptan, "sb3": sb3, "cleanrl": cleanrl}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("who", choices=loops)
    for name, default in {"envs": 1, "steps": 1, "replay-initial": 1_000, "frames": 2_000}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epsilon", type=float, default=0.02)
    for switch in ("--parallel", "--cuda", "--amp"):
        parser.add_argument(switch, action="store_true")
    args = parser.parse_args()
    args.device = "cuda" if args.cuda else "cpu"
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    loops[args.who](args)


if __name__ == "__main__":
    main()
