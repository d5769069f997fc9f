"""Q(lambda) returns against their definition, and the rollout that they are computed of."""

import numpy as np
import pytest
import torch

from lib.learning.loss import lambda_returns
from lib.learning.rollout import Rollout


def by_definition(rewards, ended, values, gamma, q_lambda) -> torch.Tensor:
    """The recursion, written down for the first step."""
    if len(rewards) == 0:
        return values[0]
    rest = by_definition(rewards[1:], ended[1:], values[1:], gamma, q_lambda)
    mixed = (1 - q_lambda) * values[1] + q_lambda * rest
    return torch.where(ended[0], rewards[0], rewards[0] + gamma * mixed)


@pytest.mark.parametrize(("gamma", "q_lambda"), [(0.99, 0.65), (0.9, 0.0), (0.5, 1.0)])
def test_returns_are_those_of_the_definition(gamma, q_lambda) -> None:
    torch.manual_seed(0)
    rewards, values, ended = torch.randn(8, 100), torch.randn(9, 100), torch.rand(8, 100) < 0.3
    returns = lambda_returns(rewards, ended.float(), values, gamma, q_lambda)
    for t in range(8):
        expected = by_definition(rewards[t:], ended[t:], values[t:], gamma, q_lambda)
        torch.testing.assert_close(returns[t], expected)


def test_a_rollout_is_looked_back_on_when_it_is_complete() -> None:
    rollout = Rollout(2, (1, 1, 1, 1), gamma=0.5, q_lambda=1.0)
    places = [tensor.data_ptr() for tensor in rollout.targets]
    for t in range(5):
        states = torch.full((1, 1, 1, 1), t, dtype=torch.uint8)
        rollout.record_values(states, torch.tensor([100.0]))
        rollout.record_step(np.array([t]), np.array([1.0], np.float32), np.array([t == 3]))
    # After step 2: 1 + 0.5 * (1 + 0.5 * 100), and after step 4, where a game had ended at 3.
    assert rollout.targets.actions.tolist() == [2, 3]
    assert rollout.targets.states.flatten().tolist() == [2, 3]
    assert rollout.targets.returns.tolist() == [1.5, 1.0]
    assert [tensor.data_ptr() for tensor in rollout.targets] == places
    for _ in range(3):  # each once per round
        drawn = rollout.sample(2)
        pairs = zip(drawn.actions.tolist(), drawn.returns.tolist(), strict=True)
        assert set(pairs) == {(2, 1.5), (3, 1.0)}
