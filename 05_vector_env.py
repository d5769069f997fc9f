"""Vector environment: all games in C++ threads, which play while the network learns.

``ale_py.AtariVectorEnv`` emulates, skips frames, takes the maximum and resizes in C++ threads,
without Python's interpreter lock. The rung sends the actions, learns from the last transitions, and
only then receives the new frames. So on a GPU, playing costs time only if it takes longer than the
update; on a CPU, both share the cores. One forward pass chooses all actions. Network and loss are
the same as in 02_n_envs.py, but there are eight environments instead of three, the maximum of two
frames is taken in grey, not in colour, and no FIRE follows a lost life.

The book does not cover this rung or the later ones.
"""

import copy
from dataclasses import dataclass

from lib.envs.vector_env import StackedVectorEnv, VectorExperienceSource, ale_games
from lib.learning.agents import EpsilonGreedyAgent
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch, ReplayBuffer
from lib.learning.schedules import LinearSchedule
from lib.training.evaluation import evaluate
from lib.training.handlers import attach_handlers
from lib.training.launch import launch
from lib.training.options import ReplayOptions, option
from lib.training.play import batch_generator
from lib.training.run import Run

import torch
from ignite.engine import Engine
from torch.optim import Adam


@dataclass(frozen=True)
class Options(ReplayOptions):
    """Settings of this rung."""

    envs: int = option(8, "environments, stepped together", low=1, high=256, group="playing")
    stack: int = option(4, "stacked frames per state", low=1, high=16, group="wrappers")
    vector_env = True  # states come from ALE's vector environment, not from wrappers


def train(params: Options, run: Run) -> None:
    games = ale_games(params.env, params.envs)
    envs = StackedVectorEnv(games, params.preprocessing, run.games_seed)
    observation_shape, n_actions = envs.shape[1:], envs.n_actions

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
    experience = VectorExperienceSource(envs, agent)
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
    saved |= {"agent": agent}
    attach_handlers(engine, run, epsilon, saved)
    batch_size = params.batch_size * params.envs
    engine.run(batch_generator(engine, experience, buffer, params.replay_initial, batch_size))
    evaluate(q_function, run)


if __name__ == "__main__":
    launch(train, Options, __doc__)
