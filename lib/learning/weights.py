"""Mixed-precision weights, with or without an average, and Adam as tensor operations.

All weights of one precision lie in one tensor. So Adam is one or two loops, which compile fast, and
calling a compiled update costs less, because it gets 20 tensors instead of 80.
"""

import copy
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

Weights = dict[str, torch.Tensor]  # by name, as in a module; or flat, by precision
BETAS = 0.9, 0.999  # Adam's decay of the first moment (exp_avg) and of the second


class MixedWeights:
    """Mixed precision: weights in float32 for Adam, and copies in ``dtype`` to compute with.

    ``weights``, ``compute`` and Adam's moments have two flat tensors each: "low", (n,), for the
    layers that compute in ``dtype``, and "float32", (m,), for the others. ``named`` finds single
    weights in them.

    Source: Kingma and Ba, arXiv:1412.6980; Micikevicius et al., arXiv:1710.03740, for the copies.

    Args:
        network: computes with the copies; its own weights never change.
        learning_rate, epsilon: of Adam.
        float32_layers: layers whose copies stay in float32, as prefixes of their names.
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
        # Tensors, so that a compiled or captured update finds their newest values.
        self.learning_rate = torch.full((), learning_rate, device=device)
        self.mean_decay = torch.ones((), device=device)  # beta to the power of the number of steps
        self.square_decay = torch.ones((), device=device)
        self._shapes: dict[str, dict[str, torch.Size]] = {}
        parts: dict[str, list[torch.Tensor]] = {}
        for name, weight in network.named_parameters():
            precision = "float32" if name.startswith(float32_layers) else "low"
            in_memory = weight.permute(0, 2, 3, 1) if weight.dim() == 4 else weight
            self._shapes.setdefault(precision, {})[name] = in_memory.shape
            parts.setdefault(precision, []).append(in_memory.detach().flatten())
        self.weights: Weights = {precision: torch.cat(part) for precision, part in parts.items()}
        dtypes = {"low": dtype, "float32": torch.float32}
        self.compute = {p: w.to(dtypes[p], copy=True) for p, w in self.weights.items()}
        self.exp_avg = {precision: torch.zeros_like(w) for precision, w in self.weights.items()}
        self.exp_avg_sq = {precision: torch.zeros_like(w) for precision, w in self.weights.items()}
        self._copied = [(self.weights, self.compute)]  # pairs: source, copy

    def __call__(self, compute: Weights, states: torch.Tensor) -> torch.Tensor:
        return functional_call(self.network, self.named(compute), (states,))

    def named(self, flat: Weights) -> Weights:
        """Return a view of each weight in flat tensors, by name; convolutions are channels-last."""
        named = {}
        for precision, shapes in self._shapes.items():
            parts = flat[precision].split([shape.numel() for shape in shapes.values()])
            for (name, shape), part in zip(shapes.items(), parts, strict=True):
                in_memory = part.view(shape)
                named[name] = in_memory.permute(0, 3, 1, 2) if len(shape) == 4 else in_memory
        return named

    @property
    def changing(self) -> list[torch.Tensor]:
        return tree_leaves([self.state_dict(), self._copied])

    def state_dict(self) -> dict[str, Weights]:
        """Return views for a checkpoint; ``weights`` is a state dict of the network."""
        flat = {"weights": self.weights, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}
        decays = {"mean": self.mean_decay, "square": self.square_decay}
        return {part: self.named(tensors) for part, tensors in flat.items()} | {"decays": decays}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Weights]) -> None:
        """Restore a ``state_dict``; raise RuntimeError if it is of another network."""
        for part, tensors in self.state_dict().items():
            expected, given = ({n: t.shape for n, t in w.items()} for w in (tensors, state[part]))
            if given != expected:  # ``copy_`` would broadcast a smaller tensor
                raise RuntimeError(f"{part} have names or shapes of another network")
            for name, tensor in tensors.items():
                tensor.copy_(state[part][name])
        for flat, copies in self._copied:
            for precision, weight in flat.items():
                copies[precision].copy_(weight)

    @torch.no_grad()
    def adam(self, gradients: Weights) -> None:
        # A running product, not decay**steps: the compiler would compute that for every weight.
        self.mean_decay.mul_(BETAS[0])
        self.square_decay.mul_(BETAS[1])
        for precision, weight in self.weights.items():
            gradient = gradients[precision].float()
            mean, square = self.exp_avg[precision], self.exp_avg_sq[precision]
            mean.lerp_(gradient, 1 - BETAS[0])
            square.lerp_(gradient * gradient, 1 - BETAS[1])
            scale = (square / (1 - self.square_decay)).sqrt() + self.epsilon
            weight.sub_(self.learning_rate * (mean / (1 - self.mean_decay)) / scale)
            self.compute[precision].copy_(weight)


class AveragedWeights(MixedWeights):
    """Weights with an exponential moving average (EMA), which chooses actions.

    The average is the agent that plays. The last weights are less steady, because one update can
    change a decision.

    Attributes:
        ema_step: a tensor, one minus the decay of the average; at 1 the average is the weights.
        ema_compute: copies of the average, to choose actions with.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.ema_step = torch.ones_like(self.learning_rate)
        self.ema = {precision: w.clone() for precision, w in self.weights.items()}
        self.ema_compute = {precision: w.clone() for precision, w in self.compute.items()}
        self._copied.append((self.ema, self.ema_compute))

    def state_dict(self) -> dict[str, Weights]:
        return super().state_dict() | {"ema": self.named(self.ema)}

    @torch.no_grad()
    def adam(self, gradients: Weights) -> None:
        super().adam(gradients)
        for precision, weight in self.weights.items():
            self.ema[precision].lerp_(weight, self.ema_step)
            self.ema_compute[precision].copy_(self.ema[precision])

    def agent(self) -> nn.Module:
        agent = copy.deepcopy(self.network)
        agent.load_state_dict(self.named(self.ema))
        return agent
