"""Q(lambda) returns against their definition, and the rollout that they are computed of."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.learning.loss import lambda_returns
from lib.learning.rollout import Rollout


def by_definition(rewards, ended, values, gamma, q_lambda, t) -> float:
    """The recursion, written down for one environment from one step on."""
    if t == len(rewards):
        return values[t]
    if ended[t]:
        return rewards[t]
    rest = by_definition(rewards, ended, values, gamma, q_lambda, t + 1)
    return rewards[t] + gamma * ((1 - q_lambda) * values[t + 1] + q_lambda * rest)


numbers = st.floats(-2, 2)


@given(st.data(), st.integers(1, 8), st.integers(1, 3), st.floats(0, 1), st.floats(0, 1))
def test_returns_are_those_of_the_definition(data, length, n, gamma, q_lambda) -> None:
    def draw(elements, rows):
        row = st.lists(elements, min_size=n, max_size=n)
        return torch.tensor(data.draw(st.lists(row, min_size=rows, max_size=rows)))

    rewards, values = draw(numbers, length), draw(numbers, length + 1)
    ended = draw(st.booleans(), length).float()
    returns = lambda_returns(rewards, ended, values, gamma, q_lambda)
    for env in range(n):
        for t in range(length):
            one = (x[:, env].tolist() for x in (rewards, ended, values))
            assert returns[t, env].item() == pytest.approx(
                by_definition(*one, gamma, q_lambda, t), abs=1e-5
            )


def test_a_rollout_is_looked_back_on_when_it_is_complete() -> None:
    rollout = Rollout(2, (1, 1, 1, 1), gamma=0.5, q_lambda=1.0)
    places = [tensor.data_ptr() for tensor in rollout.past]
    for t in range(5):
        states = torch.full((1, 1, 1, 1), t, dtype=torch.uint8)
        rollout.state_values(states, torch.tensor([100.0]))
        rollout.outcome(np.array([t]), np.array([1.0], np.float32), np.array([t == 3]))
    # After step 2: 1 + 0.5 * (1 + 0.5 * 100), and after step 4, where a game had ended at 3.
    assert rollout.past.actions.tolist() == [2, 3]
    assert rollout.past.states.flatten().tolist() == [2, 3]
    assert rollout.past.returns.tolist() == [1.5, 1.0]
    assert [tensor.data_ptr() for tensor in rollout.past] == places
    for _ in range(3):  # each once per round
        drawn = rollout.sample(2)
        pairs = zip(drawn.actions.tolist(), drawn.returns.tolist(), strict=True)
        assert set(pairs) == {(2, 1.5), (3, 1.0)}
