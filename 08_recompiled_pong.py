"""Recompiled Pong: the speedrun on our own emulator.

It learns as 07_speedrun.py does, with the same settings. The games run in ``pong_emulator``: Pong's
machine code, translated into Python functions that are then compiled. They match ALE's games pixel
for pixel, and a step takes a tenth of the time. So playing is nearly free, and all cores learn.
10_thousands_of_games.py plays on the GPU.
"""

from collections.abc import Iterator

import pong_emulator
from lib.devices import cores, playing_threads
from lib.envs.vector_env import StackedVectorEnv
from lib.learning.agents import Exploration, sample_softmax
from lib.learning.compiled_update import CapturedForward, CompiledUpdate
from lib.learning.dqn_model import DuelingDQN
from lib.learning.loss import squared_error
from lib.learning.rollout import Rollout, Targets
from lib.learning.schedules import LinearSchedule, ProgressSchedule, WinRate, maximum
from lib.learning.weights import AveragedWeights, Weights
from lib.printing import show_elapsed
from lib.training.evaluation import evaluate
from lib.training.handlers import attach_handlers
from lib.training.launch import launch
from lib.training.play import PlayEvents, record_frames
from lib.training.run import Run
from lib.training.speedrun_options import EmulatorOptions as Options
from lib.transfer import upload

import torch
from ignite.engine import Engine
from torch.func import grad_and_value


def train(params: Options, run: Run) -> None:
    # If torch uses all cores, play in this thread: another one would only wait for a core.
    all_learn = run.device.type == "cpu" and torch.get_num_threads() >= cores()
    threads = 1 if all_learn else playing_threads(params.envs)
    games = pong_emulator.PongVectorEnv(
        params.envs, threads=threads, stack=1, reward_clipping=False, rows=params.preprocessing.rows
    )
    envs = StackedVectorEnv(games, params.preprocessing, run.games_seed)

    network = DuelingDQN(envs.shape[1:], envs.n_actions, params.temperature).to(run.device)
    net = AveragedWeights(
        network, params.dtype, params.learning_rate, params.adam_epsilon, float32_layers=("fc.3",)
    )
    rollout = Rollout(params.rollout, envs.shape, params.gamma, params.q_lambda, run.device)
    win_rate = WinRate()
    learning_rate = ProgressSchedule(params.learning_rate, params.learning_rate_final, win_rate)
    ema_step = ProgressSchedule(1.0, 1 / params.averaged, win_rate)
    epochs = ProgressSchedule(params.epochs, params.epochs_final, win_rate, begin=0.5)
    epsilon = maximum(
        LinearSchedule(params.epsilon_start, params.epsilon_final, params.epsilon_frames),
        ProgressSchedule(params.epsilon_floor, params.epsilon_final, win_rate),
    )
    explore = Exploration(envs.n_actions, epsilon, params.seed)

    @torch.no_grad()
    def act(states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = net(net.ema_compute, states).float()
        return values.max(1).values, sample_softmax(values, params.temperature)

    def loss_of(weights: Weights, targets: Targets) -> torch.Tensor:
        return squared_error(net(weights, targets.states), targets.actions, targets.returns)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, rollout.sample(params.batch_size))
        net.adam(gradients)
        return loss

    # The emulator compiles in another process, the network in this one.
    with show_elapsed("preparing the emulator and the network"), pong_emulator.preparing():
        choose = CapturedForward(act, envs.shape, run.device, compiled=True)
        learn = CompiledUpdate(update, run.device, net, rollout.position)
        learn.compile()
    engine = Engine(lambda engine, _: learn())

    def collect() -> Iterator[None]:
        updates_due = 0.0
        while not engine.should_terminate:
            frame = engine.state.frames
            (states,) = upload(run.device, envs.states)
            values, chosen = choose(states)
            actions = explore(chosen, frame)
            envs.send(actions)
            rollout.record_values(states, values)  # computes returns; games may run meanwhile
            net.learning_rate.fill_(learning_rate(frame))
            net.ema_step.fill_(ema_step(frame))
            if rollout.ready:
                updates_due += epochs(frame) * params.envs / params.batch_size
            while updates_due >= 1:  # games may still run
                updates_due -= 1
                yield
            step = envs.recv()
            rollout.record_step(actions, step.rewards, step.done)
            win_rate.add(*step.points)
            record_frames(engine, params.envs, step.episodes)

    saved = {"net": net, "explore": explore, "points": win_rate}
    attach_handlers(engine, run, epsilon, saved, net.agent)
    # After a lost trial, cap the win rate at 0.7: epsilon, learning rate and epochs rise again.
    engine.add_event_handler(PlayEvents.TRIAL_COMPLETED, win_rate.cap, 0.7)
    engine.run(collect())
    evaluate(net.agent(), run)


if __name__ == "__main__":
    launch(train, Options, __doc__)
