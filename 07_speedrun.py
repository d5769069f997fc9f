"""Speedrun: everything that makes Q-learning from pixels solve Pong sooner.

Parallel Q-learning without replay buffer and target network (Gallici et al., arXiv:2407.04811): the
network learns from the last rollout of 32 games, while C++ threads play the next one. Its targets
are Q(lambda) returns. They are computed once per rollout, from values that the choice of actions
gives anyway. So an update is one forward and one backward pass. It is compiled, and in bfloat16
except for the last layer. Each frame is learned from twice, in many small updates. The learning
rate falls. Epsilon falls, too, and its last part slowly. The network has a third of the size, a
normalised hidden layer and dueling heads. It sees two stacked frames, only the part between the
walls. It plays the three of Pong's six actions that differ. On a CPU, half of the cores learn and
half play.

The book ends before this rung. What each idea bought: results/README.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from ignite.engine import Engine, State
from torch.func import grad_and_value

from lib.arguments import PongOptions, PrecisionOptions, option
from lib.compiled_update import CapturedForward, CompiledUpdate, MixedWeights, Weights
from lib.dqn_model import NormalizedDQN
from lib.evaluation import evaluate
from lib.events import announce
from lib.experience import Exploration, LinearSchedule, Maximum, Progress, ProgressSchedule
from lib.handlers import attach_handlers
from lib.loss import squared_error
from lib.rollout import Rollout, Targets
from lib.run import Run, launch
from lib.transfer import upload
from lib.vector_env import StackedVectorEnv, ale_games


@dataclass(frozen=True)
class Options(PongOptions, PrecisionOptions):
    """The settings of this rung."""

    learning_rate: float = option(5e-4, "learning rate of Adam at the start", 1e-12, 1)
    learning_rate_final: float = option(1e-4, "learning rate of Adam at the end", 1e-12, 1)
    adam_epsilon: float = option(1e-5, "epsilon of Adam; damps steps of small gradients", 0, 1)
    gamma: float = option(0.99, "discount per agent step", 0, 1)
    batch_size: int = option(32, "frames of the last rollout per update", 1, 65_536)
    epochs: int = option(2, "how often each frame is learned from, on average", 1, 64)
    envs: int = option(32, "environments, stepped together", 1, 1_024)
    rollout: int = option(64, "frames of each environment in a rollout", 1, 1_024)
    trace: float = option(0.97, "lambda of the Q(lambda) returns", 0, 1)
    stack: int = option(2, "stacked frames per state", 1, 16)
    epsilon_final: float = option(0.01, "probability of a random action at the end", 0, 1)
    epsilon_frames: int = option(100_000, "frames over which epsilon falls", 1, 10**12)
    epsilon_floor: float = option(0.06, "a lower bound of epsilon, which falls, too", 0, 1)


def train(hp: Options, run: Run) -> State:
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))  # the other cores play meanwhile
    rows, actions = hp.recipe.rows, hp.recipe.actions
    games = ale_games(hp.env, hp.envs)
    envs = StackedVectorEnv(games, hp.stack, hp.seed, rows, actions)

    network = NormalizedDQN(envs.states.shape[1:], envs.n_actions).to(run.device)
    net = MixedWeights(network, hp.dtype, hp.learning_rate, hp.adam_epsilon, exact=("fc.3",))
    rollout = Rollout(hp.rollout, envs.states.shape, hp.gamma, hp.trace, run.device)
    progress = Progress()
    rate = ProgressSchedule(hp.learning_rate, hp.learning_rate_final, progress)
    epsilon = Maximum(
        LinearSchedule(hp.epsilon_start, hp.epsilon_final, hp.epsilon_frames),
        ProgressSchedule(hp.epsilon_floor, hp.epsilon_final, progress),
    )
    explore = Exploration(envs.n_actions, epsilon, hp.seed)

    @torch.no_grad()
    def q_function(states: torch.Tensor) -> torch.Tensor:
        return net(net.compute, states).float()

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
            net.learning_rate.fill_(rate(engine.state.frames))
            if rollout.complete:
                updates_due += hp.epochs * hp.envs / hp.batch_size
            while updates_due >= 1:  # while the games are played
                updates_due -= 1
                yield
            step = envs.recv()
            rollout.outcome(actions, step.rewards, step.ended)
            progress.add(*step.points)
            announce(engine, hp.envs, step.episodes, [(step.frames[0], step.episodes[0])])

    best = CapturedForward(lambda s: q_function(s).max(1), envs.states.shape, run.device)
    learn = CompiledUpdate(update, run.device)
    engine = Engine(lambda engine, _: learn())
    learned = {"net": net, "buffer": rollout, "explore": explore, "progress": progress}
    attach_handlers(engine, run, epsilon, learned)
    state = engine.run(learn.ready_for(play()))
    if state.solved:
        evaluate(q_function, run)
    return state


if __name__ == "__main__":
    launch(train, Options, __doc__)
