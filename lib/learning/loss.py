"""The loss of deep Q-learning."""

import torch
from torch.nn.functional import mse_loss

from lib.learning.replay_buffer import Batch


def bellman_loss(q: torch.Tensor, next_q: torch.Tensor, batch: Batch, gamma: float) -> torch.Tensor:
    """Mean squared Bellman error of a batch; no value follows a terminal state.

    Source: Mnih et al., Nature 518 (2015), algorithm 1.

    Args:
        q: values of ``batch.states`` from the network that learns, (batch, actions).
        next_q: values of ``batch.next_states`` from the target network, (batch, actions).
        batch: where actions, rewards and terminal flags come from.
        gamma: discount per agent step.

    Returns:
        A float32 scalar. The gradient flows through ``q`` alone if ``next_q`` carries none.
    """
    best_next = next_q.amax(1).float().masked_fill(batch.terminated, 0.0)
    return squared_error(q, batch.actions, batch.rewards + gamma * best_next)


def squared_error(q: torch.Tensor, actions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean squared error of the values of the actions that were taken, a float32 scalar.

    Args:
        q: values of all actions, (batch, actions).
        actions: the actions that were taken, int64, (batch,).
        targets: of the values of these actions, float32, (batch,).
    """
    taken = q.gather(1, actions.unsqueeze(1)).squeeze(1)
    return mse_loss(taken.float(), targets)


def lambda_returns(
    rewards: torch.Tensor, dones: torch.Tensor, values: torch.Tensor, gamma: float, q_lambda: float
) -> torch.Tensor:
    """Q(lambda) returns of a rollout: a mix of the rewards and of the network's own estimates.

    Source: Peng and Williams, Machine Learning 22 (1996); Gallici et al., arXiv:2407.04811.

    Args:
        rewards: float32, (time, environments).
        dones: 1.0 where a game ended with the step, (time, environments). No value follows, not
            even after a truncated game.
        values: of the greedy action in each state and in the state after the last step, (time + 1,
            environments).
        gamma: discount per agent step.
        q_lambda: lambda; 0: one-step targets; 1: only rewards, up to the end of the rollout.

    Returns:
        float32, (time, environments).
    """
    returns = torch.empty_like(rewards)
    next_return = values[-1]
    for t in reversed(range(len(rewards))):
        mixed = (1 - q_lambda) * values[t + 1] + q_lambda * next_return
        next_return = rewards[t] + gamma * (1 - dones[t]) * mixed
        returns[t] = next_return
    return returns
