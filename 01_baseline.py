"""Baseline: one environment, and one update per frame.

This is a plain DQN, with which every other rung is compared. Each iteration plays one frame, stores
it, samples 32 transitions from the replay buffer and takes one gradient step. Playing waits for the
update, and the update waits for playing. The agent sees the whole screen; the chapter's 00 to 03
cut off the score and both walls.

Doing the same work, this baseline has 1.4 times the FPS of a loop with ptan, the chapter's library
(two CPU cores, float32; results/epyc-zen4-2core/peers). docs/beside-the-book.md says why.

The chapter measured 159 FPS and 105 minutes to solve Pong (GTX 1080 Ti).
"""

import copy

from lib.envs.atari_wrappers import make_atari, wrap_deepmind
from lib.envs.experience import ExperienceSource
from lib.learning.agents import EpsilonGreedyAgent
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch, ReplayBuffer
from lib.learning.schedules import LinearSchedule
from lib.training.handlers import attach_handlers
from lib.training.launch import launch
from lib.training.options import ReplayOptions
from lib.training.play import batch_generator
from lib.training.run import Run

import torch
from ignite.engine import Engine
from torch.optim import Adam


def train(params: ReplayOptions, run: Run) -> None:
    env = wrap_deepmind(make_atari(params.env))
    observation_shape, n_actions = env.observation_space.shape, env.action_space.n

    net = DQN(observation_shape, n_actions).to(run.device)
    target_net = copy.deepcopy(net)
    optimizer = Adam(net.parameters(), params.learning_rate, eps=params.adam_epsilon, fused=True)

    @torch.no_grad()  # records nothing for a backward pass
    def q_function(states: torch.Tensor) -> torch.Tensor:
        return net(states)

    epsilon = LinearSchedule(
        params.epsilon_start, params.epsilon_final, params.epsilon_frames, params.replay_initial
    )
    agent = EpsilonGreedyAgent(q_function, n_actions, epsilon, run.device, params.seed)
    experience = ExperienceSource([env], agent, params.seed)
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
    saved |= {"agent": agent, "experience": experience}
    # These handlers smooth the rewards of whole games, stop at --stop-reward or --max-frames, write
    # TensorBoard's curves, and save checkpoints of ``saved``.
    attach_handlers(engine, run, epsilon, saved)
    batches = batch_generator(engine, experience, buffer, params.replay_initial, params.batch_size)
    engine.run(batches)


if __name__ == "__main__":
    launch(train, ReplayOptions, __doc__)
