"""DQN on Pong with other libraries, at the same work as the ladder's rungs, as a program.

    python peer_loops.py {ptan,sb3} [flags]

``python -m benchmarks peers`` starts it in the peers' environment. The last line is the FPS after
filling. ptan has no loop, so ours drives ptan's wrappers, agent, source and buffer.
"""

import argparse
import copy
import random
import time
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
QUEUE_SIZE, PARALLEL_BATCH = 8, 128
EPSILON, REPLAY_INITIAL = 0.02, 1_000  # epsilon as in most of a run
REPLAY_SIZE, LEARNING_RATE, GAMMA, TARGET_SYNC = 100_000, 1e-4, 0.99, 1_000


class Net(nn.Sequential):
    """The Nature DQN network."""

    def __init__(self) -> None:
        layers = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)
        seen = [part for layer in layers for part in (layer, nn.ReLU())]
        super().__init__(*seen, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return super().forward(frames / 255.0)


def now() -> float:
    """Return the time in seconds, after waiting for the GPU."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def ptan_source(envs: int, net: nn.Module, device: str) -> Any:
    """Return ptan's experience source, whose agent plays."""
    import ptan

    made = [ptan.common.wrappers.wrap_dqn(gym.make(ENV), noop_max=30) for _ in range(envs)]
    selector = ptan.actions.EpsilonGreedyActionSelector(EPSILON)
    agent = ptan.agent.DQNAgent(net, selector, device=torch.device(device))
    source = ptan.experience.ExperienceSourceFirstLast
    return source(made if envs > 1 else made[0], agent, gamma=GAMMA, steps_count=1)


def ptan_play(net: nn.Module, queue: Any, device: str) -> None:
    """Play, in the player process."""
    torch.set_num_threads(1)
    for experience in ptan_source(1, net, device):
        queue.put(experience)


def ptan(args: argparse.Namespace) -> None:
    """Play in ``--envs`` environments in turn, or with ``--parallel`` in a process."""
    from ptan.experience import ExperienceReplayBuffer

    net = Net().to(args.device)
    target, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), LEARNING_RATE)
    if args.parallel:
        context = multiprocessing.get_context("spawn")
        queue, source = context.Queue(maxsize=QUEUE_SIZE), None
        play_args = net.share_memory(), queue, args.device
        context.Process(target=ptan_play, args=play_args, daemon=True).start()
    else:
        source = ptan_source(args.envs, net, args.device)
    buffer = ExperienceReplayBuffer(source, REPLAY_SIZE)

    def play(count: int) -> int:
        """Play this many frames; take at least as many from the process, and all in the queue."""
        if source:
            buffer.populate(count)
            source.pop_rewards_steps()
            return count
        taken = 0
        while taken < count or (taken < QUEUE_SIZE and not queue.empty()):
            buffer._add(queue.get())
            taken += 1
        return taken

    def update(batch: list[Any]) -> None:
        last = [e.state if e.last_state is None else e.last_state for e in batch]
        columns = [e.state for e in batch], last, [int(e.action) for e in batch]
        states, next_states, actions = (
            torch.as_tensor(np.asarray(column)).to(args.device) for column in columns
        )
        rewards = torch.tensor([float(e.reward) for e in batch], device=args.device)
        terminated = torch.tensor([e.last_state is None for e in batch], device=args.device)
        optimizer.zero_grad()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.amp):
            taken = net(states).gather(1, actions.unsqueeze(1)).squeeze(1)
            with torch.no_grad():
                best = target(next_states).amax(1).masked_fill(terminated, 0.0)
            loss = mse_loss(taken.float(), rewards + GAMMA * best)
        loss.backward()
        optimizer.step()

    play(REPLAY_INITIAL)
    begin, frames, updates = now(), 0, 0
    while frames < args.frames:
        frames += play(args.envs)
        update(buffer.sample(PARALLEL_BATCH if args.parallel else 32 * args.envs))
        updates += 1
        if updates % TARGET_SYNC == 0:
            target.load_state_dict(net.state_dict())
    print(f"{frames / (now() - begin):.3f} FPS")


def sb3(args: argparse.Namespace) -> None:
    """Train Stable-Baselines3's own DQN."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    env = make_atari_env(ENV, n_envs=args.envs, seed=args.seed)  # stepped in turn, as by the rung
    model = DQN(
        "CnnPolicy",
        VecFrameStack(env, n_stack=4),
        learning_rate=LEARNING_RATE,
        buffer_size=REPLAY_SIZE,
        learning_starts=REPLAY_INITIAL,
        batch_size=32 * args.envs,
        gamma=GAMMA,
        train_freq=(args.steps, "step"),  # a step plays a frame of every environment
        gradient_steps=1,
        target_update_interval=TARGET_SYNC * args.envs,  # in frames
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        seed=args.seed,
        device=args.device,
    )
    # It has no switch for autocast. One context around all updates would keep its first copies of
    # the weights, and learn nothing.
    autocast = torch.autocast(args.device, torch.bfloat16, enabled=args.amp)
    model.train = autocast(model.train)
    silent = 10**9  # episodes between lines of its log
    model.learn(REPLAY_INITIAL, log_interval=silent)
    begin, filled = now(), model.num_timesteps
    model.learn(args.frames, log_interval=silent, reset_num_timesteps=False)
    print(f"{(model.num_timesteps - filled) / (now() - begin):.3f} FPS")


def main() -> None:
    """Read the flags, and run."""
    loops = {"ptan": ptan, "sb3": sb3}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("who", choices=loops)
    for name, default in {"envs": 1, "steps": 1, "frames": 2_000, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
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
