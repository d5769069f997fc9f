"""DQN on Pong with Stable-Baselines3: the same work as the ladder's rungs, as a program.

It runs in the peers' environment and prints its frames per second after filling.
"""

import time

import ale_py
import gymnasium as gym
import torch
import work
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

gym.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def main() -> None:
    """Read the flags, run, print."""
    parser = work.parser(__doc__)
    parser.add_argument("--steps", type=int, default=1, help="of each environment per update")
    args = parser.parse_args()
    # One after another in this process, as the rung steps them (DummyVecEnv is the default).
    env = make_atari_env(work.ENV, n_envs=args.envs, seed=args.seed)
    model = DQN(
        "CnnPolicy",
        VecFrameStack(env, n_stack=4),
        learning_rate=1e-4,
        buffer_size=100_000,
        learning_starts=args.replay_initial,
        batch_size=32 * args.envs,
        gamma=0.99,
        train_freq=(args.steps, "step"),  # of the vector: a frame of every environment each
        gradient_steps=1,
        target_update_interval=1_000 * args.envs,  # in frames
        exploration_initial_eps=args.epsilon,
        exploration_final_eps=args.epsilon,
        seed=args.seed,
        device="cuda" if args.cuda else "cpu",
    )
    silent = 10**9  # episodes between lines of its log
    model.learn(args.replay_initial, log_interval=silent)
    begin, filled = time.perf_counter(), model.num_timesteps
    with work.autocast(args):  # it has no such switch, so around all it does
        model.learn(args.frames, log_interval=silent, reset_num_timesteps=False)
    if args.cuda:
        torch.cuda.synchronize()
    print((model.num_timesteps - filled) / (time.perf_counter() - begin))


if __name__ == "__main__":
    main()
