"""Compiled update: sampling, both forward passes, the backward pass and Adam as one function.

The replay buffer is on the training device, so an update reads nothing from outside. The compiler
fuses everything between the convolutions and matrix products into a few loops. On a GPU the whole
update is one CUDA graph: the CPU launches it with a single call and does not wait. Gradients are
bfloat16 if the processor has units for it; Adam's weights are float32.
"""

import copy
from dataclasses import dataclass

from lib.envs.vector_env import StackedVectorEnv, VectorExperienceSource, ale_games
from lib.learning.agents import EpsilonGreedyAgent
from lib.learning.compiled_update import CapturedForward, CompiledUpdate
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch
from lib.learning.schedules import LinearSchedule
from lib.learning.weights import MixedWeights, Weights
from lib.training.evaluation import evaluate
from lib.training.handlers import attach_handlers
from lib.training.launch import launch
from lib.training.options import PrecisionOptions, ReplayOptions, option
from lib.training.play import batch_generator
from lib.training.run import Run

import torch
from ignite.engine import Engine
from torch.func import grad_and_value


@dataclass(frozen=True)
class Options(PrecisionOptions, ReplayOptions):
    """Settings of this rung."""

    envs: int = option(8, "environments, stepped together", low=1, high=256, group="playing")
    stack: int = option(4, "stacked frames per state", low=1, high=16, group="wrappers")
    vector_env = True  # states come from ALE's vector environment, not from wrappers


def train(params: Options, run: Run) -> None:
    games = ale_games(params.env, params.envs)
    envs = StackedVectorEnv(games, params.preprocessing, run.games_seed)
    observation_shape, n_actions = envs.shape[1:], envs.n_actions
    batch_size = params.batch_size * params.envs

    network = DQN(observation_shape, n_actions).to(run.device)
    net = MixedWeights(network, params.dtype, params.learning_rate, params.adam_epsilon)
    target_net = copy.deepcopy(network).to(net.dtype)
    buffer = DeviceReplayBuffer(params.replay_size, observation_shape, run.device)

    @torch.no_grad()
    def q_function(states: torch.Tensor) -> torch.Tensor:
        return net(net.compute, states)

    def loss_of(weights: Weights, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            next_q = target_net(batch.next_states)
        return bellman_loss(net(weights, batch.states), next_q, batch, params.gamma)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, buffer.sample(batch_size))
        net.adam(gradients)
        return loss

    epsilon = LinearSchedule(
        params.epsilon_start, params.epsilon_final, params.epsilon_frames, params.replay_initial
    )
    values = CapturedForward(q_function, envs.shape, run.device)
    agent = EpsilonGreedyAgent(values, n_actions, epsilon, run.device, params.seed)
    experience = VectorExperienceSource(envs, agent)
    learn = CompiledUpdate(update, run.device, net)

    def process_batch(engine: Engine, _: None) -> torch.Tensor:
        loss = learn()
        if engine.state.iteration % params.target_sync == 0:
            target_net.load_state_dict(net.named(net.compute))
        return loss

    learn.compile()
    engine = Engine(process_batch)
    saved = {"net": net, "target_net": target_net, "buffer": buffer, "agent": agent}
    attach_handlers(engine, run, epsilon, saved)
    engine.run(batch_generator(engine, experience, buffer, params.replay_initial, None))
    evaluate(q_function, run)


if __name__ == "__main__":
    launch(train, Options, __doc__)
