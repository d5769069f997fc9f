"""Parallel: one process plays while another one trains.

A player process steps the environment and puts its experience on a queue of at most 2 * ``--steps``
frames. The main process empties the queue and takes one gradient step with a batch of 32 *
``--steps``. It waits only while the queue is empty, the player only while it is full. A faster
player fills the queue before each update. With ``--steps 4``, an update then has 8 new frames and
128 samples: 16 per frame, half as many as in 01_baseline.py. The player acts with the network's
live weights, in shared memory. With ``--play-device`` or ``--sync-frames`` it has its own copy and
refreshes it every few frames. As in the chapter, epsilon falls from the first frame on, over
``--steps`` * ``--epsilon-frames`` frames.

The chapter measured 402 FPS against the baseline's 159 (+152 %), and 59 minutes against 105 to
solve Pong (-43 %).
"""

import copy
from dataclasses import dataclass

from lib.envs.atari_wrappers import make_atari, wrap_deepmind
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
from lib.training.options import PlayerOptions, option
from lib.training.play import batch_generator
from lib.training.run import Run

import torch
from ignite.engine import Engine
from torch.optim import Adam


@dataclass(frozen=True)
class Options(PlayerOptions):
    """Settings of this rung."""

    steps: int = option(4, "scales batch, queue, epsilon frames", low=1, high=256, group="playing")


def player_process(
    queue: ExperienceQueue, params: Options, shared_net: DQN, epsilon: LinearSchedule, frames: int
) -> None:
    """Play and fill the queue; a resumed run has already played ``frames``."""
    env = wrap_deepmind(make_atari(params.env))
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
    env = wrap_deepmind(make_atari(params.env))
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
