"""A rung of the tests' own: 06 with a small network, for mistakes that tests plant in its lines."""

import copy
from dataclasses import dataclass, replace

import torch
from ignite.engine import Engine, State
from torch.func import grad_and_value

from lib.games.vector_env import StackedVectorEnv, VectorExperienceSource, ale_games
from lib.learning.agents import EpsilonGreedyAgent, LinearSchedule
from lib.learning.compiled_update import CapturedForward, CompiledUpdate, MixedWeights, Weights
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch
from lib.running.events import play
from lib.running.handlers import attach_handlers
from lib.running.options import ReplayOptions
from lib.running.run import Run


@dataclass(frozen=True)
class Options(ReplayOptions):
    """The settings of this rung."""


def train(hp: Options, run: Run) -> State:
    envs = StackedVectorEnv(ale_games(hp.env, 2), replace(hp.recipe, stack=2), hp.seed)
    observation_shape, n_actions = envs.shape[1:], envs.n_actions

    network = DQN(observation_shape, n_actions, channels=(4, 8, 8), hidden=16).to(run.device)
    net = MixedWeights(network, torch.float32, hp.learning_rate)
    target_net = copy.deepcopy(network)
    buffer = DeviceReplayBuffer(hp.replay_size, observation_shape, run.device)

    @torch.no_grad()
    def q_function(states: torch.Tensor) -> torch.Tensor:
        return net(net.compute, states)

    def loss_of(weights: Weights, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            next_q = target_net(batch.next_states)
        return bellman_loss(net(weights, batch.states), next_q, batch, hp.gamma)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, buffer.sample(hp.batch_size))
        net.adam(gradients)
        return loss

    epsilon = LinearSchedule(hp.epsilon_start, hp.epsilon_final, hp.epsilon_frames)
    values = CapturedForward(q_function, envs.shape, run.device)
    agent = EpsilonGreedyAgent(values, n_actions, epsilon, run.device, hp.seed)
    learn = CompiledUpdate(update, run.device, net)

    def process_batch(engine: Engine, _: None) -> torch.Tensor:
        loss = learn()
        if engine.state.iteration % hp.target_sync == 0:
            target_net.load_state_dict(net.compute)
        return loss

    learn.compile()
    engine = Engine(process_batch)
    saved = {"net": net, "target_net": target_net, "buffer": buffer, "agent": agent}
    attach_handlers(engine, run, epsilon, saved)
    experience = VectorExperienceSource(envs, agent)
    return engine.run(play(engine, experience, buffer, hp.replay_initial))
