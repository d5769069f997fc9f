"""Players on many machines: Ray runs them, on one machine or on a cluster.

The player of 04_new_wrappers_parallel.py becomes a Ray actor with several games, and there can be
many of them. A player gets weights, plays some steps, and answers with one compressed message of
n-step transitions, which holds each frame once. Every game has its own epsilon. More players play
more frames, but updates per frame stay the same. If a player or a machine dies, the others continue
until Ray has replaced it. Pong runs on the emulator of 08, other games on ALE.

The idea comes from Ape-X (Horgan et al., arXiv:1803.00933), without its prioritised replay.
"""

import copy
from dataclasses import dataclass

from lib.learning.agents import EpsilonGreedyAgent
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch
from lib.learning.schedules import LinearSchedule
from lib.parallel.cluster import Players, learn_from
from lib.parallel.message_buffer import MessageReplayBuffer
from lib.parallel.n_step import Message, NStepRecorder
from lib.parallel.worker import ClusterOptions, VersionedWeights, ape_x_epsilons, player_seed
from lib.training.evaluation import evaluate
from lib.training.handlers import attach_handlers
from lib.training.launch import launch
from lib.training.options import decay_option, option
from lib.training.run import Run

import torch
from ignite.engine import Engine, Events
from torch.optim import Adam


@dataclass(frozen=True)
class Options(ClusterOptions):
    """Settings of this rung."""

    n_steps: int = option(3, "n of the n-step transitions", low=1, high=8)
    batch_size: int = option(128, "transitions per update", low=1, high=65_536)
    epsilon_frames: int = decay_option("frames over which epsilon falls, from the first frame on")
    frames_per_update: int = option(8, "new frames per update, from all players", low=1, high=10**6)


class Player:
    """A Ray actor with some games and a copy of the network."""

    def __init__(self, number: int, params: Options, frames: int) -> None:
        seed = player_seed(params.seed, number, frames)
        torch.set_num_threads(1)
        self.number, self.message_steps = number, params.message_steps
        self.envs = params.make_envs(params.envs, seed)
        self.net = DQN(self.envs.states.shape[1:], self.envs.n_actions).requires_grad_(False)
        epsilons = ape_x_epsilons(params.players, params.envs, params.epsilon_final)[number]
        epsilon = LinearSchedule(params.epsilon_start, epsilons, params.epsilon_frames)
        self.agent = EpsilonGreedyAgent(self.net, self.envs.n_actions, epsilon, seed=seed)
        self.recorder = NStepRecorder(params.stack, params.n_steps, params.gamma)

    def play(self, weights: VersionedWeights) -> Message:
        """Play some steps of each game."""
        weights.load_into(self.net)
        self.agent.frames = max(self.agent.frames, weights.frames)
        for _ in range(self.message_steps):
            states = self.envs.states
            actions = self.agent(states)
            self.envs.send(actions)
            self.recorder.add(states, actions, self.envs.recv())
        return self.recorder.pack(self.number, weights.version)


def train(params: Options, run: Run) -> None:
    envs = params.make_envs(1, params.seed)
    observation_shape, n_actions = envs.states.shape[1:], envs.n_actions

    net = DQN(observation_shape, n_actions).to(run.device)
    target_net = copy.deepcopy(net)
    optimizer = Adam(net.parameters(), params.learning_rate, eps=params.adam_epsilon, fused=True)
    buffer = MessageReplayBuffer(params.replay_size, observation_shape, run.device, params.seed)
    epsilons = ape_x_epsilons(params.players, params.envs, params.epsilon_final)
    epsilon = LinearSchedule(params.epsilon_start, epsilons.mean(), params.epsilon_frames)

    def process_batch(engine: Engine, batch: Batch) -> torch.Tensor:
        optimizer.zero_grad()
        with run.autocast():
            with torch.no_grad():
                next_q = target_net(batch.next_states)
            loss = bellman_loss(net(batch.states), next_q, batch, params.gamma**params.n_steps)
        loss.backward()
        optimizer.step()
        if engine.state.iteration % params.target_sync == 0:
            target_net.load_state_dict(net.state_dict())
        return loss.detach()

    engine = Engine(process_batch)
    saved = {"net": net, "target_net": target_net, "optimizer": optimizer, "buffer": buffer}
    attach_handlers(engine, run, epsilon, saved)

    with Players(Player, params, params, run.frames_before) as players:
        refresh = Events.STARTED | Events.ITERATION_COMPLETED(every=params.sync_updates)
        engine.add_event_handler(refresh, lambda: players.broadcast(net, engine.state))
        engine.run(learn_from(players, buffer, epsilons, engine, run))
    evaluate(net, run)


if __name__ == "__main__":
    launch(train, Options, __doc__)
