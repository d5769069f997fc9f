"""Speedrun: everything that makes Q-learning from pixels solve Pong sooner.

Parallel Q-learning without a replay buffer or a target network (Gallici et al., arXiv:2407.04811):
the network learns from the last rollout of 32 games, while C++ threads play the next one. Its
targets are Q(lambda) returns over up to 64 steps, about the length of a point, computed once per
rollout. So an update is one forward and one backward pass, compiled, and in bfloat16 except for the
last layer. Each frame is used four times, in many small updates. As the agent wins more points, the
learning rate, the number of updates and the lower bound of epsilon fall. The network has a
fourteenth of DQN's weights, a normalised hidden layer and dueling heads. It sees two stacked frames
at half the resolution, cropped to the part between the walls, and plays the three of Pong's six
actions that differ.

The agent acts with a moving average of the weights, over more updates as the agent wins more. The
averaged network's values also make the targets. The agent breaks near-ties at random, so it does
not lose rally after rally in the same way. Training ends when avg_reward is 17 and the agent,
without learning, wins 64 of 64 games. On a CPU, half of the cores learn; the games get the rest.

For the gain of each idea, see results/tried.md and results/epyc-zen4-2core/speedrun-without.
"""

from collections.abc import Iterator

from lib.envs.vector_env import StackedVectorEnv, ale_games, preparing_fast_games
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
from lib.training.speedrun_options import SharedCoresOptions as Options
from lib.transfer import upload

import torch
from ignite.engine import Engine
from torch.func import grad_and_value


def train(params: Options, run: Run) -> None:
    games = ale_games(params.env, params.envs)
    envs = StackedVectorEnv(games, params.preprocessing, run.games_seed)

    network = DuelingDQN(envs.shape[1:], envs.n_actions, params.temperature).to(run.device)
    net = AveragedWeights(
        network, params.dtype, params.learning_rate, params.adam_epsilon, float32_layers=("fc.3",)
    )
    rollout = Rollout(params.rollout, envs.shape, params.gamma, params.q_lambda, run.device)
    win_rate = WinRate()
    progress = LinearSchedule(0, 1, params.schedule_frames) if params.any_game else win_rate
    learning_rate = ProgressSchedule(params.learning_rate, params.learning_rate_final, progress)
    ema_step = ProgressSchedule(1.0, 1 / params.averaged, progress)
    epochs = ProgressSchedule(params.epochs, params.epochs_final, progress, begin=0.5)
    epsilon = maximum(
        LinearSchedule(params.epsilon_start, params.epsilon_final, params.epsilon_frames),
        ProgressSchedule(params.epsilon_floor, params.epsilon_final, progress),
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

    # The emulator for the trials compiles in another process, the network in this one.
    with show_elapsed("preparing the trials and the network"), preparing_fast_games(params.env):
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
