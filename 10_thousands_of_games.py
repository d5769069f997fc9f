"""Thousands of games: the whole run on one GPU.

This is 08_recompiled_pong.py with 1,024 games, shorter rollouts and larger batches. With --cuda the
emulator runs on the GPU, too. A step of all games is one CUDA graph: it chooses the actions, plays,
and records the outcome. The returns of a rollout are another graph, and so is an update. The CPU
launches the graphs, and fetches the outcome once per rollout. On a CPU this script plays in
threads, then learns; that is slower than 08.
"""

from collections.abc import Iterator

import pong_emulator
from lib.envs.gpu_vector_env import TensorVectorEnv, emulated_games
from lib.learning.agents import epsilon_greedy, sample_softmax
from lib.learning.compiled_update import CapturedForward, CompiledUpdate, graph_or_eager
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
from lib.training.speedrun_options import ThousandsOptions as Options

import torch
from ignite.engine import Engine
from torch.func import grad_and_value


def train(params: Options, run: Run) -> None:
    envs = TensorVectorEnv(
        params.envs, params.preprocessing, run.games_seed, params.rollout, run.device
    )
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
    rollout_epsilon = torch.full((), params.epsilon_start, device=run.device)  # for CUDA graphs

    @torch.no_grad()
    def act(states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = net(net.ema_compute, states).float()
        return values.max(1).values, sample_softmax(values, params.temperature)

    def step() -> None:
        values, chosen = choose(envs.states)
        actions = epsilon_greedy(chosen, rollout_epsilon, envs.n_actions)
        rollout.record_choice(envs.states, values, actions)
        rollout.record_outcome(*envs.step(actions))

    def loss_of(weights: Weights, targets: Targets) -> torch.Tensor:
        return squared_error(net(weights, targets.states), targets.actions, targets.returns)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, rollout.sample(params.batch_size))
        net.adam(gradients)
        return loss

    preparing = pong_emulator.preparing(run.device)  # elsewhere, while the network compiles
    with show_elapsed("preparing the emulator and the network"), preparing:
        choose = CapturedForward(act, envs.shape, run.device, compiled=True, alone=False)
        learn = CompiledUpdate(update, run.device, net, rollout.position)
        learn.compile()
    envs.reset(emulated_games(params.envs, run.device, params.preprocessing, params.games_per_warp))
    changing = [*envs.changing, *rollout.changing]
    step = graph_or_eager("a step", step, run.device, changing, envs.captures)
    finish = graph_or_eager(
        "the returns", lambda: rollout.finish(choose(envs.states)[0]), run.device, rollout.changing
    )
    engine = Engine(lambda engine, _: learn())

    def collect() -> Iterator[None]:
        updates_due = 0.0
        while not engine.should_terminate:
            frame = engine.state.frames
            rollout_epsilon.fill_(epsilon(frame))
            net.learning_rate.fill_(learning_rate(frame))
            net.ema_step.fill_(ema_step(frame))
            for _ in range(params.rollout):
                step()
            finish()
            episodes, points = envs.report()
            win_rate.add(*points)
            record_frames(engine, len(rollout), episodes)
            updates_due += epochs(frame) * len(rollout) / params.batch_size
            while updates_due >= 1 and not engine.should_terminate:
                updates_due -= 1
                yield

    saved = {"net": net, "points": win_rate}
    attach_handlers(engine, run, epsilon, saved, net.agent)
    engine.add_event_handler(PlayEvents.TRIAL_COMPLETED, win_rate.cap, 0.7)  # if failed: explore
    engine.run(collect())
    evaluate(net.agent(), run)


if __name__ == "__main__":
    launch(train, Options, __doc__)
