"""Recompiled Pong: the speedrun on our own emulator.

Settings and learning are those of 07_speedrun.py. The games run in ``emulator``: Pong's machine
code, translated into Python functions that are then compiled. They are the same as ALE's, pixel for
pixel. A step takes a tenth of the time. So playing is nearly free, and all cores learn.

On a GPU the same functions play there, and the CPU only launches each iteration.

The book ends before this rung.
"""

from collections.abc import Iterator

import torch
from ignite.engine import Engine, State
from torch.func import grad_and_value

import emulator
from lib.games.device_games import DeviceExploration, DeviceGames, plays_games
from lib.games.vector_env import StackedVectorEnv
from lib.learning.agents import Exploration, LinearSchedule, Maximum, Progress, ProgressSchedule
from lib.learning.compiled_update import AveragedWeights, CapturedForward, CompiledUpdate, Weights
from lib.learning.dqn_model import NormalizedDQN
from lib.learning.loss import squared_error
from lib.learning.rollout import Rollout, Targets
from lib.running.evaluation import evaluate
from lib.running.events import announce
from lib.running.handlers import attach_handlers
from lib.running.run import Run, launch
from lib.running.speedrun_options import EmulatorOptions as Options
from lib.transfer import upload


def train(hp: Options, run: Run) -> State:
    on_gpu = plays_games(run.device)  # then the games run there, too
    device = run.device if on_gpu else "cpu"
    games = emulator.PongVectorEnv(hp.envs, device=device, stack=1, reward_clipping=False)
    envs = (DeviceGames if on_gpu else StackedVectorEnv)(games, hp.recipe, hp.seed)

    network = NormalizedDQN(envs.shape[1:], envs.n_actions).to(run.device)
    net = AveragedWeights(network, hp.dtype, hp.learning_rate, hp.adam_epsilon, exact=("fc.3",))
    rollout = Rollout(hp.rollout, envs.shape, hp.gamma, hp.trace, run.device)
    progress = Progress()
    rate = ProgressSchedule(hp.learning_rate, hp.learning_rate_final, progress)
    averaging = ProgressSchedule(1.0, 1 / hp.averaged, progress)
    epochs = ProgressSchedule(hp.epochs, hp.epochs_final, progress, begin=0.7)
    epsilon = Maximum(
        LinearSchedule(hp.epsilon_start, hp.epsilon_final, hp.epsilon_frames),
        ProgressSchedule(hp.epsilon_floor, hp.epsilon_final, progress),
    )
    explore = Exploration(envs.n_actions, epsilon, hp.seed)
    if on_gpu:
        explore = DeviceExploration(envs.n_actions, epsilon)

    @torch.no_grad()
    def best_values(states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return net(net.acting, states).float().max(1)

    def loss_of(weights: Weights, targets: Targets) -> torch.Tensor:
        return squared_error(net(weights, targets.states), targets.actions, targets.returns)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, rollout.sample(hp.batch_size))
        net.adam(gradients)
        return loss

    def play() -> Iterator[None]:
        updates_due = 0.0
        while not engine.should_terminate:
            (states,) = upload(run.device, envs.states)
            values, greedy = best(states)
            actions = explore(greedy, engine.state.frames)
            envs.send(actions)
            rollout.state_values(states, values)  # and compute returns, while the games are played
            net.learning_rate.fill_(rate())
            net.averaging.fill_(averaging())
            if rollout.complete:
                updates_due += epochs() * hp.envs / hp.batch_size
            while updates_due >= 1:  # while the games are played
                updates_due -= 1
                yield
            step = envs.recv()
            rollout.outcome(actions, step.rewards, step.ended)
            progress.add(*step.points)
            announce(engine, hp.envs, step.episodes)

    with emulator.preparing():  # in another process, while the network compiles
        best = CapturedForward(best_values, envs.shape, run.device, compiled=True)
        learn = CompiledUpdate(update, run.device, net, rollout.position)
        learn.compile()
    engine = Engine(lambda engine, _: learn())
    saved = {"net": net, "buffer": rollout, "explore": explore, "points": progress}
    attach_handlers(engine, run, epsilon, saved, net.agent)
    state = engine.run(play())
    if state.solved:
        evaluate(net.agent(), run)
    return state


if __name__ == "__main__":
    launch(train, Options, __doc__)
