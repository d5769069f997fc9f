"""Cheaper wrappers, parallel: preprocess less, in a process of its own.

The player of 03_parallel.py uses the wrappers of 04_new_wrappers_n_env.py. It plays faster, and the
trainer gathers, copies and convolves fewer pixels.

The chapter measured 409 FPS against the baseline's 159 (+157 %), and 31 minutes against 105 to
solve Pong (-70 %).
"""

import copy
from dataclasses import dataclass

from lib.envs.atari_wrappers import FrameStack, make_atari, wrap_deepmind
from lib.envs.experience import ExperienceSource
from lib.learning.agents import EpsilonGreedyAgent
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch, ReplayBuffer
from lib.learning.schedules import LinearSchedule
from lib.parallel.player import ExperienceQueue, Player
from lib.seeds import resumed_seed
from lib.training.handlers import attach_handlers
from lib.training.launch import launch
from lib.training.options import PlayerOptions, WrapperOptions, option
from lib.training.play import batch_generator
from lib.training.run import Run

import torch
from ignite.engine import Engine
from torch.optim import Adam


@dataclass(frozen=True)
class Options(PlayerOptions, WrapperOptions):
    """Settings of this rung."""

    steps: int = option(4, "scales batch, queue, epsilon frames", low=1, high=256, group="playing")


def make_env(params: Options) -> FrameStack:
    env = make_atari(
        params.env, noop_max=params.noop_max, skip=params.skip, max_pool=params.max_pool
    )
    kept = {name: getattr(params, name) for name in ("episodic_life", "fire_reset", "clip_reward")}
    return wrap_deepmind(env, stack=params.stack, resize=params.resize, **kept)


def player_process(
    queue: ExperienceQueue, params: Options, shared_net: DQN, epsilon: LinearSchedule, frames: int
) -> None:
    """Play and fill the queue; a resumed run has already played ``frames``."""
    env = make_env(params)
    net = shared_net
    if params.refresh_frames:
        net = copy.deepcopy(shared_net).to(params.player_device)

    @torch.no_grad()  # records nothing for a backward pass
    def q_function(states: torch.Tensor) -> torch.Tensor:
        return net(states)

    seed = resumed_seed(params.seed, frames)  # so a resumed run plays new games
    agent = EpsilonGreedyAgent(q_function, env.action_space.n, epsilon, params.player_device, seed)
    agent.frames = frames
    for frame, steps in enumerate(ExperienceSource([env], agent, seed), start=1):
        queue.put(*steps)
        if params.refresh_frames and frame % params.refresh_frames == 0:
            net.load_state_dict(shared_net.state_dict())


def train(params: Options, run: Run) -> None:
    env = make_env(params)
    observation_shape, n_actions = env.observation_space.shape, env.action_space.n

    net = DQN(observation_shape, n_actions).to(run.device).share_memory()
    target_net = copy.deepcopy(net)
    optimizer = Adam(net.parameters(), params.learning_rate, eps=params.adam_epsilon, fused=True)

    epsilon = LinearSchedule(
        params.epsilon_start, params.epsilon_final, params.epsilon_frames * params.steps
    )
    arguments = (params, net, epsilon, run.frames_before)
    player = Player(player_process, arguments, bound=2 * params.steps, options=params)
    buffer = ReplayBuffer(params.replay_size, observation_shape, run.device, params.seed)

    def process_batch(engine: Engine, batch: Batch) -> torch.Tensor:
        optimizer.zero_grad()
        with run.autocast():
            with torch.no_grad():
                next_q = target_net(batch.next_states)
            loss = bellman_loss(net(batch.states), next_q, batch, params.gamma)
        loss.backward()
        optimizer.step()
        if engine.state.iteration % params.target_sync == 0:
            target_net.load_state_dict(net.state_dict())
        return loss.detach()

    engine = Engine(process_batch)
    saved = {"net": net, "target_net": target_net, "optimizer": optimizer, "buffer": buffer}
    # These handlers smooth the rewards of whole games, stop at --stop-reward or --max-frames, write
    # TensorBoard's curves, and save checkpoints of ``saved``.
    attach_handlers(engine, run, epsilon, saved)
    batch_size = params.batch_size * params.steps
    with player as experience:
        engine.run(batch_generator(engine, experience, buffer, params.replay_initial, batch_size))


if __name__ == "__main__":
    launch(train, Options, __doc__)
