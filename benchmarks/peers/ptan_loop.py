"""DQN on Pong with ptan: the same work as the ladder's rungs, as a program.

It runs in the peers' environment and prints its frames per second after filling.
"""

import argparse
import copy
import time
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import ptan
import torch
import work
from torch import multiprocessing, nn
from torch.nn.functional import mse_loss

gym.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)

STEPS = 4  # frames of an update of the parallel loop
QUEUE_SIZE = 8


def make_env() -> gym.Env:
    """Pong with ptan's wrappers."""
    return ptan.common.wrappers.wrap_dqn(gym.make(work.ENV), noop_max=30)


def make_source(envs: list[gym.Env], net: nn.Module, epsilon: float, device: str) -> Any:
    """Ptan's agent, playing."""
    selector = ptan.actions.EpsilonGreedyActionSelector(epsilon)
    agent = ptan.agent.DQNAgent(net, selector, device=torch.device(device))
    envs_or_env = envs if len(envs) > 1 else envs[0]
    return ptan.experience.ExperienceSourceFirstLast(envs_or_env, agent, gamma=0.99, steps_count=1)


def play(net: nn.Module, queue: Any, epsilon: float, device: str) -> None:
    """What the player process does."""
    torch.set_num_threads(1)
    for experience in make_source([make_env()], net, epsilon, device):
        queue.put(experience)


class Learner:
    """Network, target network and optimizer."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, "cuda" if args.cuda else "cpu"
        self.net = work.Net(make_env().action_space.n).to(self.device)
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-4)

    def update(self, batch: list[Any]) -> None:
        """One gradient step."""
        last = [e.state if e.last_state is None else e.last_state for e in batch]
        states = torch.as_tensor(np.asarray([e.state for e in batch])).to(self.device)
        last_states = torch.as_tensor(np.asarray(last)).to(self.device)
        actions = torch.tensor([int(e.action) for e in batch]).to(self.device)
        rewards = torch.tensor([float(e.reward) for e in batch]).to(self.device)
        terminated = torch.tensor([e.last_state is None for e in batch]).to(self.device)

        self.optimizer.zero_grad()
        with work.autocast(self.args):
            taken = self.net(states).gather(1, actions.unsqueeze(1)).squeeze(1)
            with torch.no_grad():
                next_values = self.target(last_states).amax(1)
                next_values[terminated] = 0.0
            loss = mse_loss(taken.float(), rewards + 0.99 * next_values)
        loss.backward()
        self.optimizer.step()


def measure(args: argparse.Namespace, learner: Learner, buffer: Any, play: Any, batch: int) -> None:
    """Play and learn in turn, and print the rate; ``play`` returns how many frames it played."""
    begin, frames, updates = time.perf_counter(), 0, 0
    while frames < args.frames:
        frames += play()
        learner.update(buffer.sample(batch))
        updates += 1
        if updates % 1_000 == 0:
            learner.target.load_state_dict(learner.net.state_dict())
    if args.cuda:
        torch.cuda.synchronize()
    print(frames / (time.perf_counter() - begin))


def serial(args: argparse.Namespace, learner: Learner) -> None:
    """Play in ``--envs`` environments in turn."""
    envs = [make_env() for _ in range(args.envs)]
    source = make_source(envs, learner.net, args.epsilon, learner.device)
    buffer = ptan.experience.ExperienceReplayBuffer(source, 100_000)
    buffer.populate(args.replay_initial)

    def play() -> int:
        buffer.populate(args.envs)
        source.pop_rewards_steps()
        return args.envs

    measure(args, learner, buffer, play, 32 * args.envs)


def parallel(args: argparse.Namespace, learner: Learner) -> None:
    """Play in a process of its own."""
    learner.net.share_memory()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue(maxsize=QUEUE_SIZE)
    player = context.Process(
        target=play, args=(learner.net, queue, args.epsilon, learner.device), daemon=True
    )
    player.start()
    buffer = ptan.experience.ExperienceReplayBuffer(None, 100_000)
    for _ in range(args.replay_initial):
        buffer._add(queue.get())

    def receive() -> int:
        new = [queue.get()]  # at least one, then what is there, as the rung does
        while len(new) < QUEUE_SIZE and not queue.empty():
            new.append(queue.get())
        for experience in new:
            buffer._add(experience)
        return len(new)

    measure(args, learner, buffer, receive, 32 * STEPS)
    player.kill()
    player.join()


def main() -> None:
    """Read the flags, run."""
    parser = work.parser(__doc__)
    parser.add_argument("--parallel", action="store_true", help="play in a process of its own")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    loop = parallel if args.parallel else serial
    loop(args, Learner(args))


if __name__ == "__main__":
    main()
