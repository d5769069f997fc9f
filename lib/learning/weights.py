"""The weights of a network in two precisions, and their average; Adam, written out on tensors."""

import copy
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

Weights = dict[str, torch.Tensor]


class MixedWeights:
    """The weights of a network in float32 for Adam, and copies of them to compute with.

    Source: Kingma and Ba, arXiv:1412.6980; Micikevicius et al., arXiv:1710.03740, for the copies.

    Args:
        network: gives the weights, and uses the copies.
        dtype: of the copies.
        learning_rate: of Adam.
        epsilon: of Adam; a larger one damps steps where gradients are small.
        float32_layers: beginnings of names; the copies of these weights stay in float32.
    """

    def __init__(
        self,
        network: nn.Module,
        dtype: torch.dtype,
        learning_rate: float,
        epsilon: float = 1e-8,
        float32_layers: tuple[str, ...] = (),
    ) -> None:
        self.network, self.dtype, self.epsilon = network, dtype, epsilon
        device = next(network.parameters()).device
        # Tensors: a compiled or captured update then finds their newest values.
        self.learning_rate = torch.full((), learning_rate, device=device)
        self.mean_decay = torch.ones((), device=device)  # beta to the power of the number of steps
        self.square_decay = torch.ones((), device=device)
        self.weights: Weights = dict(network.named_parameters())
        self.compute = {
            name: w.detach().to(
                torch.float32 if name.startswith(float32_layers) else dtype, copy=True
            )
            for name, w in self.weights.items()
        }
        self.exp_avg = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.exp_avg_sq = {name: torch.zeros_like(w) for name, w in self.weights.items()}

    def __call__(self, compute: Weights, states: torch.Tensor) -> torch.Tensor:
        """The values of the network with these weights."""
        return functional_call(self.network, compute, (states,))

    @property
    def changing(self) -> list[torch.Tensor]:
        """Everything that an update, or its trial, changes."""
        return tree_leaves([self._parts(), self.compute, self.learning_rate])

    def state_dict(self) -> dict[str, Weights]:
        """For a checkpoint; a network of the same class can load its ``weights``."""
        return tree_map(torch.detach, self._parts())

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Weights]) -> None:
        """Continue from where ``state_dict`` was taken."""
        for part, tensors in self._parts().items():
            for name, tensor in tensors.items():
                tensor.copy_(state[part][name])
        for name, weight in self.weights.items():
            self.compute[name].copy_(weight)

    def _parts(self) -> dict[str, Weights]:
        decays = {"mean": self.mean_decay, "square": self.square_decay}
        parts = {"weights": self.weights, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}
        return {**parts, "decays": decays}

    @torch.no_grad()
    def adam(self, gradients: Weights, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        """Make a step of Adam, and refresh the copies."""
        # A running product: the compiler would compute a power for every weight.
        self.mean_decay.mul_(betas[0])
        self.square_decay.mul_(betas[1])
        for name, weight in self.weights.items():
            gradient = gradients[name].float()
            mean, square = self.exp_avg[name], self.exp_avg_sq[name]
            mean.lerp_(gradient, 1 - betas[0])
            square.lerp_(gradient * gradient, 1 - betas[1])
            scale = (square / (1 - self.square_decay)).sqrt() + self.epsilon
            weight.sub_(self.learning_rate * (mean / (1 - self.mean_decay)) / scale)
            self.compute[name].copy_(weight)


class AveragedWeights(MixedWeights):
    """Weights whose moving average plays: the agent acts with it, and is kept.

    Single updates change single decisions. Their average is a steadier agent than the last weights,
    and it is the agent of which avg_reward speaks.

    Attributes:
        averaging: how far an update moves the average to the weights: 1 for all the way. A tensor.
        acting: copies of the average, to choose actions with.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.averaging = torch.ones_like(self.learning_rate)
        self.ema = {name: w.detach().clone() for name, w in self.weights.items()}
        self.acting = {name: w.clone() for name, w in self.compute.items()}

    @property
    def changing(self) -> list[torch.Tensor]:
        """As of ``MixedWeights``."""
        return [*super().changing, *self.acting.values(), self.averaging]

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Weights]) -> None:
        """As of ``MixedWeights``."""
        super().load_state_dict(state)
        for name, weight in self.ema.items():
            self.acting[name].copy_(weight)

    def _parts(self) -> dict[str, Weights]:
        return super()._parts() | {"ema": self.ema}

    @torch.no_grad()
    def adam(self, gradients: Weights, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        """Make a step of Adam, move the average, and refresh the copies of both."""
        super().adam(gradients, betas)
        for name, weight in self.weights.items():
            self.ema[name].lerp_(weight, self.averaging)
            self.acting[name].copy_(self.ema[name])

    def agent(self) -> nn.Module:
        """A network with the average of the weights now."""
        agent = copy.deepcopy(self.network)
        agent.load_state_dict(self.ema)
        return agent
