"""Many learners: a process on each core plays and learns, and all learn one network together.

Games, settings and learning are those of 08_recompiled_pong.py. There two threads share each
operation of an update, and wait for each other after each. Here every learner plays its own part of
the games, and computes the gradients of its own part of the batch. They exchange gradients once per
update, in shared memory. The mean of the gradients is that of the whole batch, so the arithmetic is
that of one learner. A program that takes one of the cores slows all learners down, and nothing
worse.

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
from lib.players.learners import Learners, many_learners
from lib.running.evaluation import evaluate
from lib.running.run import Run, launch
from lib.running.speedrun_options import LearnersOptions as Options
from lib.transfer import upload


def train(hp: Options, run: Run, learners: Learners) -> State:
    on_gpu = plays_games(run.device)  # then the games run there, too
    device = run.device if on_gpu else "cpu"
    n_envs, batch_size = hp.envs // learners.count, hp.batch_size // learners.count
    games = emulator.PongVectorEnv(
        n_envs, device=device, threads=hp.threads_to_play, stack=1, reward_clipping=False
    )
    seed = hp.seed + learners.rank * n_envs
    envs = (DeviceGames if on_gpu else StackedVectorEnv)(games, hp.recipe, seed)

    if learners.rank > 0:
        emulator.prepare()  # meanwhile the first learner compiles the network

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
    explore = Exploration(envs.n_actions, epsilon, seed)
    if on_gpu:
        explore = DeviceExploration(envs.n_actions, epsilon)

    @torch.no_grad()
    def best_values(states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return net(net.acting, states).float().max(1)

    def loss_of(weights: Weights, targets: Targets) -> torch.Tensor:
        return squared_error(net(weights, targets.states), targets.actions, targets.returns)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, rollout.sample(batch_size))
        net.adam(learners.mean(gradients))
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
            learners.announce(engine, hp, step, progress)

    with learners.first_compiles():
        best = CapturedForward(best_values, envs.shape, run.device, compiled=True)
    learn = CompiledUpdate(update, run.device, net, rollout.position)
    with learners.first_compiles():
        learn.compile_ahead()
    engine = Engine(lambda engine, _: learn())
    saved = {"net": net, "buffer": rollout, "explore": explore, "points": progress}
    learners.attach_handlers(engine, run, epsilon, saved, net.agent)
    state = engine.run(learn.ready_for(play()))
    if state.solved:
        evaluate(net.agent(), run)
    return state


if __name__ == "__main__":
    launch(many_learners(train), Options, __doc__)
