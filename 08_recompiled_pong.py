"""Recompiled Pong: the speedrun on our own emulator.

Settings and learning are those of 07_speedrun.py. The games run in ``pong_emulator``: Pong's
machine code, translated into Python functions that are then compiled. They are the same as ALE's,
pixel for pixel. A step takes a tenth of the time. So playing is nearly free, and all cores learn.

10_thousands_of_games.py plays on the GPU.
"""

from collections.abc import Iterator

import torch
from ignite.engine import Engine
from torch.func import grad_and_value

import pong_emulator
from lib.devices import cores, playing_threads
from lib.envs.vector_env import StackedVectorEnv
from lib.learning.agents import Exploration, drawn
from lib.learning.compiled_update import CapturedForward, CompiledUpdate
from lib.learning.dqn_model import DuelingDQN
from lib.learning.loss import squared_error
from lib.learning.rollout import Rollout, Targets
from lib.learning.schedules import LinearSchedule, Progress, ProgressSchedule, maximum
from lib.learning.weights import AveragedWeights, Weights
from lib.printing import waiting
from lib.training.evaluation import evaluate
from lib.training.events import PlayEvents, announce
from lib.training.handlers import attach_handlers
from lib.training.launch import launch
from lib.training.run import Run
from lib.training.speedrun_options import EmulatorOptions as Options
from lib.transfer import upload


def train(hp: Options, run: Run) -> None:
    # If all cores learn, this thread plays: another one would wait for a core.
    all_learn = run.device.type == "cpu" and torch.get_num_threads() >= cores()
    threads = 1 if all_learn else playing_threads(hp.envs)
    games = pong_emulator.PongVectorEnv(
        hp.envs, threads=threads, stack=1, reward_clipping=False, rows=hp.preprocessing.rows
    )
    envs = StackedVectorEnv(games, hp.preprocessing, run.games_seed)

    network = DuelingDQN(envs.shape[1:], envs.n_actions, hp.temperature).to(run.device)
    net = AveragedWeights(
        network, hp.dtype, hp.learning_rate, hp.adam_epsilon, float32_layers=("fc.3",)
    )
    rollout = Rollout(hp.rollout, envs.shape, hp.gamma, hp.q_lambda, run.device)
    progress = Progress()
    rate = ProgressSchedule(hp.learning_rate, hp.learning_rate_final, progress)
    averaging = ProgressSchedule(1.0, 1 / hp.averaged, progress)
    epochs = ProgressSchedule(hp.epochs, hp.epochs_final, progress, begin=0.5)
    epsilon = maximum(
        LinearSchedule(hp.epsilon_start, hp.epsilon_final, hp.epsilon_frames),
        ProgressSchedule(hp.epsilon_floor, hp.epsilon_final, progress),
    )
    explore = Exploration(envs.n_actions, epsilon, hp.seed)

    @torch.no_grad()
    def act(states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = net(net.acting, states).float()
        return values.max(1).values, drawn(values, hp.temperature)

    def loss_of(weights: Weights, targets: Targets) -> torch.Tensor:
        return squared_error(net(weights, targets.states), targets.actions, targets.returns)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, rollout.sample(hp.batch_size))
        net.adam(gradients)
        return loss

    # In another process, while the network compiles.
    with waiting("preparing the emulator, and the network"), pong_emulator.preparing():
        choose = CapturedForward(act, envs.shape, run.device, compiled=True)
        learn = CompiledUpdate(update, run.device, net, rollout.position)
        learn.compile()
    engine = Engine(lambda engine, _: learn())

    def play() -> Iterator[None]:
        updates_due = 0.0
        while not engine.should_terminate:
            frame = engine.state.frames
            (states,) = upload(run.device, envs.states)
            values, chosen = choose(states)
            actions = explore(chosen, frame)
            envs.send(actions)
            rollout.state_values(states, values)  # and compute returns, while the games are played
            net.learning_rate.fill_(rate(frame))
            net.averaging.fill_(averaging(frame))
            if rollout.complete:
                updates_due += epochs(frame) * hp.envs / hp.batch_size
            while updates_due >= 1:  # while the games are played
                updates_due -= 1
                yield
            step = envs.recv()
            rollout.outcome(actions, step.rewards, step.ended)
            progress.add(*step.points)
            announce(engine, hp.envs, step.episodes)

    saved = {"net": net, "explore": explore, "points": progress}
    attach_handlers(engine, run, epsilon, saved, net.agent)
    engine.add_event_handler(PlayEvents.TRIED, progress.set_back)  # if it passed, this is the end
    engine.run(play())
    evaluate(net.agent(), run)


if __name__ == "__main__":
    launch(train, Options, __doc__)
