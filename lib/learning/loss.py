"""The loss of deep Q-learning."""

from lib.learning.replay_buffer import Batch

import torch
from torch.nn.functional import mse_loss


def bellman_loss(q: torch.Tensor, next_q: torch.Tensor, batch: Batch, gamma: float) -> torch.Tensor:
    """Return the mean squared Bellman error of a batch, a float32 scalar.

    The target of a terminal transition is its reward alone.

    Source: Mnih et al., Nature 518 (2015), algorithm 1.

    Args:
        q: the online network's values of ``batch.states``, (batch, actions).
        next_q: the target network's values of ``batch.next_states``, (batch, actions).
        gamma: discount per agent step.
    """
    best_next = next_q.amax(1).float().masked_fill(batch.terminated, 0.0)
    return squared_error(q, batch.actions, batch.rewards + gamma * best_next)


def squared_error(q: torch.Tensor, actions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of the values of the actions taken, a float32 scalar.

    ``q``, (batch, actions), has the values of all actions. ``actions`` are int64 (batch,),
    ``targets`` float32 (batch,).
    """
    taken = q.gather(1, actions.unsqueeze(1)).squeeze(1)
    return mse_loss(taken.float(), targets)


def lambda_returns(
    rewards: torch.Tensor, dones: torch.Tensor, values: torch.Tensor, gamma: float, q_lambda: float
) -> torch.Tensor:
    """Return Q(lambda) returns of a rollout, which mix rewards with the network's estimates.

    Source: Peng and Williams, Machine Learning 22 (1996); Gallici et al., arXiv:2407.04811.

    Args:
        rewards: float32, (time, environments), like the returns.
        dones: 1.0 where an episode ended with the step, (time, environments). Returns stop there,
            even after a truncation.
        values: greedy value of each state, and of the states after the last step, (time + 1,
            environments).
        gamma: discount per agent step.
        q_lambda: lambda; 0: one-step targets; 1: rewards up to the rollout's end, then a value.
    """
    returns = torch.empty_like(rewards)
    next_return = values[-1]
    for t in reversed(range(len(rewards))):
        mixed = (1 - q_lambda) * values[t + 1] + q_lambda * next_return
        next_return = rewards[t] + gamma * (1 - dones[t]) * mixed
        returns[t] = next_return
    return returns
