"""How far 40 updates of 07 move the weights in the same direction as in float64, on random frames.

Run it at the root of the repository: PYTHONPATH=. python results/.../machines/arithmetic.py
"""

import torch
from lib.compiled_update import MixedWeights, Weights
from lib.dqn_model import NormalizedDQN
from lib.loss import squared_error
from lib.rollout import Rollout, Targets
from torch.func import grad_and_value


def movement(dtype: torch.dtype, compiled: bool) -> torch.Tensor:
    """The sum of 40 updates."""
    torch.manual_seed(0)
    network = NormalizedDQN((2, 65, 84), 3)
    net = MixedWeights(network, dtype, 5e-4, 1e-5, exact=("fc.3",))
    rollout = Rollout(32, (32, 2, 65, 84), 0.97, 0.9)
    states, actions, returns = rollout.past
    states.copy_(torch.randint(0, 256, states.shape, dtype=torch.uint8))
    actions.copy_(torch.randint(0, 3, actions.shape))
    returns.copy_(torch.randn(returns.shape))
    torch.randperm(len(rollout), out=rollout._order)
    before = [weight.detach().clone() for weight in net.weights.values()]

    def loss_of(weights: Weights, targets: Targets) -> torch.Tensor:
        return squared_error(net(weights, targets.states), targets.actions, targets.returns)

    def update() -> torch.Tensor:
        gradients, loss = grad_and_value(loss_of)(net.compute, rollout.sample(32))
        net.adam(gradients)
        return loss

    step = torch.compile(update, fullgraph=True) if compiled else update
    for _ in range(40):
        step()
    moved = [w.detach() - b for w, b in zip(net.weights.values(), before, strict=True)]
    return torch.cat([part.flatten() for part in moved])


exact = movement(torch.float64, False)
for dtype in (torch.float32, torch.bfloat16):
    for compiled in (False, True):
        moved = movement(dtype, compiled)
        cosine = torch.cosine_similarity(moved, exact, dim=0).item()
        ratio = (moved.norm() / exact.norm()).item()
        print(f"{dtype}, compiled: {compiled}; cosine {cosine:.4f}, length {ratio:.3f}")
