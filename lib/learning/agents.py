"""Action selection: epsilon-greedy and softmax."""

from collections.abc import Callable, Sequence
from typing import Any

from lib.learning.schedules import Schedule
from lib.seeds import ACTIONS, stream
from lib.transfer import upload

import numpy as np
import torch

# Uint8 states (n, stack, height, width), on the network's device -> values (n, actions).
QFunction = Callable[[torch.Tensor], torch.Tensor]


class EpsilonGreedy:
    """Base class: epsilon by frame, and a stream of random numbers."""

    def __init__(self, n_actions: int, epsilon: Schedule, seed: int = 0) -> None:
        self.n_actions, self.epsilon = n_actions, epsilon
        self._rng = stream(seed, ACTIONS)

    def state_dict(self) -> dict[str, Any]:
        return {"random": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["random"]


class EpsilonGreedyAgent(EpsilonGreedy):
    """Choose a random action with probability epsilon, otherwise the greedy action.

    ``epsilon`` is a schedule by frame; ``q_function`` gets its states on ``device``.
    """

    def __init__(
        self,
        q_function: QFunction,
        n_actions: int,
        epsilon: Schedule,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        self.q_function, self.device = q_function, torch.device(device)
        self.frames = 0  # frames for which an action was chosen
        super().__init__(n_actions, epsilon, seed)

    def __call__(self, states: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Choose actions, int64 (n,), for n states, array-likes of uint8 (stack, height, width)."""
        greedy = self._rng.random(len(states)) >= self.epsilon(self.frames)
        actions = self._rng.integers(self.n_actions, size=len(states))
        if greedy.any():
            stacks = np.stack([np.asarray(states[i]) for i in np.flatnonzero(greedy).tolist()])
            (greedy_states,) = upload(self.device, stacks)
            actions[greedy] = self.q_function(greedy_states).argmax(1).cpu().numpy()
        self.frames += len(states)
        return actions

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"frames": self.frames}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.frames = state["frames"]


class Exploration(EpsilonGreedy):
    """Replace chosen actions by random ones with probability epsilon."""

    def __call__(self, chosen: torch.Tensor, frame: int) -> np.ndarray:
        """Return the actions to play at this frame, int64 (n,); ``chosen`` may be on any device."""
        actions = chosen.cpu().numpy().copy()
        at_random = self._rng.random(len(actions)) < self.epsilon(frame)
        actions[at_random] = self._rng.integers(self.n_actions, size=at_random.sum())
        return actions


def epsilon_greedy(chosen: torch.Tensor, epsilon: torch.Tensor, n_actions: int) -> torch.Tensor:
    """Make each action, int64 (n,), random with probability ``epsilon`` (a scalar)."""
    at_random = torch.rand(chosen.shape, device=chosen.device) < epsilon
    return torch.where(at_random, torch.randint_like(chosen, n_actions), chosen)


def sample_softmax(values: Any, temperature: float, noise: Any = None) -> Any:
    """Sample actions from softmax(values / temperature), int64 (n,); temperature 0: greedy.

    This breaks near-ties at random and keeps clear choices. Pong is deterministic, so a greedy
    agent that loses a point may lose every point in the same way.

    Args:
        values: float32 (n, actions), torch or NumPy.
        temperature: about a tenth of the usual gap between the best two values.
        noise: Gumbel noise, (n, actions); the sample is argmax(values + temperature * noise). None:
            torch draws it.
    """
    if noise is None:
        noise = -torch.empty_like(values).exponential_().log()
    return (values + temperature * noise).argmax(1)


def sample_actions(
    values: np.ndarray, epsilon: float, temperature: float, randoms: Sequence[np.random.Generator]
) -> np.ndarray:
    """Sample epsilon-greedy or epsilon-softmax actions, int64 (n,).

    ``values`` are float32 (n, actions). Each game has its own generator in ``randoms``, so its
    numbers do not depend on the other games.
    """
    count = values.shape[1]
    noisy = count if temperature else 0
    drawn = np.array([(r.random(), r.integers(count), *r.gumbel(size=noisy)) for r in randoms])
    chosen = sample_softmax(values, temperature, drawn[:, 2:] if temperature else 0.0)
    return np.where(drawn[:, 0] < epsilon, drawn[:, 1].astype(np.int64), chosen)
