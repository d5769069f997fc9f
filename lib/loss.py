"""The loss of deep Q-learning."""

import torch
from torch.nn.functional import mse_loss

from lib.replay_buffer import Batch


def bellman_loss(q: torch.Tensor, next_q: torch.Tensor, batch: Batch, gamma: float) -> torch.Tensor:
    """Mean squared Bellman error of a batch; no value follows a terminal state.

    Source: Mnih et al., Nature 518 (2015), algorithm 1.

    Args:
        q: values of ``batch.states`` by the network that learns, (batch, actions).
        next_q: values of ``batch.next_states`` by the target network, (batch, actions).
        batch: where actions, rewards and terminal flags come from.
        gamma: discount per agent step.

    Returns:
        A float32 scalar. The gradient flows through ``q`` alone if ``next_q`` carries none.
    """
    taken = q.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    best_next = next_q.amax(1).float().masked_fill(batch.terminated, 0.0)
    return mse_loss(taken.float(), batch.rewards + gamma * best_next)
