"""Speedrun: everything that makes Q-learning from pixels solve Pong sooner.

Parallel Q-learning without replay buffer and target network (Gallici et al., arXiv:2407.04811): the
network learns from the last rollout of 32 games, while C++ threads play the next one. Its targets
are Q(lambda) returns over up to 64 steps, about as long as a point. They are computed once per
rollout, from values that the choice of actions gives anyway. So an update is one forward and one
backward pass. It is compiled, and in bfloat16 except for the last layer. Each frame is learned from
four times, in many small updates. As the agent wins a larger share of its points, the learning
rate, the last part of epsilon, and the number of updates fall. The network has a fourteenth of the
weights, a normalised hidden layer and dueling heads. It sees two stacked frames at half the
resolution, only the part between the walls. It plays the three of Pong's six actions that differ.

The agent acts with a moving average of the weights, which moves slower as it wins more, and which
then also is a target network, since its values make the targets. It breaks near-ties at random, so
it does not lose one rally after the other in the same way. Training ends when it wins 64 of 64
games without learning. On a CPU, half of the cores learn; the others are left to the games.

What each idea bought: results/README.md.
"""

from collections.abc import Iterator

import torch
from ignite.engine import Engine
from torch.func import grad_and_value

from lib.envs.vector_env import StackedVectorEnv, ale_games, preparing_fast_games
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
from lib.training.speedrun_options import SharedCoresOptions as Options
from lib.transfer import upload


def train(hp: Options, run: Run) -> None:
    envs = StackedVectorEnv(ale_games(hp.env, hp.envs), hp.preprocessing, run.games_seed)

    network = DuelingDQN(envs.shape[1:], envs.n_actions, hp.temperature).to(run.device)
    net = AveragedWeights(
        network, hp.dtype, hp.learning_rate, hp.adam_epsilon, float32_layers=("fc.3",)
    )
    rollout = Rollout(hp.rollout, envs.shape, hp.gamma, hp.q_lambda, run.device)
    points = Progress()
    progress = LinearSchedule(0, 1, hp.schedule_frames) if hp.any_game else points
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

    # The games of trials, in another process, while the network compiles.
    with waiting("preparing trials, and the network"), preparing_fast_games(hp.env):
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
            points.add(*step.points)
            announce(engine, hp.envs, step.episodes)

    saved = {"net": net, "explore": explore, "points": points}
    attach_handlers(engine, run, epsilon, saved, net.agent)
    engine.add_event_handler(PlayEvents.TRIED, points.set_back)  # if it passed, this is the end
    engine.run(play())
    evaluate(net.agent(), run)


if __name__ == "__main__":
    launch(train, Options, __doc__)
