"""Thousands of games: all that a run does is done on one GPU.

08_recompiled_pong.py with many more games: fewer steps, and larger batches. With --cuda the
emulator plays on the GPU, too. A step of all games is one CUDA graph there: the choice of actions,
the games, and what is recorded of them. The returns of a rollout are another one, and so is an
update. The CPU launches them, and asks once per rollout what happened.

On a CPU the same script plays in threads, then learns: it is slower than 08.
"""

from collections.abc import Iterator

import torch
from ignite.engine import Engine
from torch.func import grad_and_value

import pong_emulator
from lib.envs.gpu_vector_env import TensorVectorEnv, emulated_games
from lib.learning.agents import drawn, epsilon_greedy
from lib.learning.compiled_update import CapturedForward, CompiledUpdate, graph_or_plain
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
from lib.training.speedrun_options import ThousandsOptions as Options


def train(hp: Options, run: Run) -> None:
    games = emulated_games(hp.envs, run.device, hp.preprocessing, hp.games_per_warp)
    envs = TensorVectorEnv(games, hp.preprocessing, run.games_seed, hp.rollout, run.device)

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
    exploration = torch.full((), hp.epsilon_start, device=run.device)  # epsilon of the rollout

    @torch.no_grad()
    def act(states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = net(net.acting, states).float()
        return values.max(1).values, drawn(values, hp.temperature)

    def step() -> None:
        values, chosen = choose(envs.states)
        actions = epsilon_greedy(chosen, exploration, envs.n_actions)
        rollout.record_choice(envs.states, values, actions)
        rewards, ended = envs.step(actions)
        if hp.terminal_on_point:
            ended = ended | (rewards != 0)
        rollout.record_outcome(rewards, ended)

    def loss_of(weights: Weights, targets: Targets) -> torch.Tensor:
        return squared_error(net(weights, targets.states), targets.actions, targets.returns)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, rollout.sample(hp.batch_size))
        net.adam(gradients)
        return loss

    # In another process, while the network compiles.
    with waiting("preparing the emulator, and the network"), pong_emulator.preparing():
        choose = CapturedForward(act, envs.shape, run.device, compiled=True, alone=False)
        learn = CompiledUpdate(update, run.device, net, rollout.position)
        learn.compile()
    envs.reset()
    changing = [*envs.changing, *rollout.changing]
    step = graph_or_plain("a step", step, run.device, changing, envs.captures)
    finish = graph_or_plain(
        "the returns", lambda: rollout.finish(choose(envs.states)[0]), run.device, rollout.changing
    )
    engine = Engine(lambda engine, _: learn())

    def play() -> Iterator[None]:
        updates_due = 0.0
        while not engine.should_terminate:
            frame = engine.state.frames
            exploration.fill_(epsilon(frame))
            net.learning_rate.fill_(rate(frame))
            net.averaging.fill_(averaging(frame))
            for _ in range(hp.rollout):
                step()
            finish()
            episodes, points = envs.report()
            progress.add(*points)
            announce(engine, len(rollout), episodes)
            updates_due += epochs(frame) * len(rollout) / hp.batch_size
            while updates_due >= 1 and not engine.should_terminate:
                updates_due -= 1
                yield

    saved = {"net": net, "points": progress}
    attach_handlers(engine, run, epsilon, saved, net.agent)
    engine.add_event_handler(PlayEvents.TRIED, progress.set_back)  # if it passed, this is the end
    engine.run(play())
    evaluate(net.agent(), run)


if __name__ == "__main__":
    launch(train, Options, __doc__)
