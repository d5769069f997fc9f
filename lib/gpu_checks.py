"""What a run on a GPU checks before it trusts it; every check is here.

Nobody has tried most GPUs. So whatever is only faster is first tried beside what is slower and
simple, on the same numbers. If it raises, or computes something else, the run goes on without it:

    a captured update        the compiled one, then the update as it is
    choosing actions, captured   the same, kernel by kernel
    bfloat16                 float32
    games on the GPU         games on the CPU
    a player on the GPU      a player on the CPU, with a ``lib.players.player.Mirror``

One line says what was left out and why, and so does the column ``left_out`` of the run's records.
What torch cannot use at all is told before, by ``lib.devices.missing_device``.

A check changes nothing that the run learns from: weights, Adam's averages, the place in a rollout
and random states are put back. A run on the CPU makes no check.
"""

import sys
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.func import functional_call, grad_and_value
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

import emulator
from lib.devices import compiler_fault, first_line
from lib.transfer import is_asynchronous

Update = Callable[[], torch.Tensor]
CALLS = 4  # of an update in a trial
RATE = 1e-3  # Adam's learning rate in the last call of a trial
GAMES, STEPS = 4, 48  # played on both
EMULATED = 100  # frames after which these games are cut short, so that new ones begin

left_out: list[str] = []  # by this process, which is one run


def leave_out(part: str, reason: str | Exception) -> None:
    """Say, and keep for the records, that the run goes on without this, and why."""
    if isinstance(reason, Exception):
        kind = "" if isinstance(reason, RuntimeError) else f"{type(reason).__name__}: "
        reason = kind + first_line(reason)[:300]
    left_out.append(f"{part}: {reason}")
    say(f"left out: {part}: {reason}")


def say(line: str) -> None:
    """Print a line above the live bar."""
    tqdm.write(line)
    sys.stdout.flush()


def tolerance(dtype: torch.dtype) -> float:
    """How far two ways to compute a gradient may be apart, as a part of its length.

    Each rounds every number to p bits, in another order, which is an error of 2**-p: p is 8 for
    bfloat16, and 11 for TF32, which float32 may be on a GPU. What is learned from is a difference
    of two values, up to some 30 times as large as itself: 5 bits. Roundings of five layers forward
    and back add up to another 2 bits or so. That leaves 1 bit of bfloat16, and 4 of TF32. Much less
    was seen where nothing cancels: on a CPU, gradients of a new network differed by 1 to 2 percent
    between bfloat16 and float32, and by 0.1 percent between compiled and not.

    So this finds what computes something else, and not what rounds otherwise.
    """
    return 2.0**-1 if dtype is torch.bfloat16 else 2.0**-4


class Weights(Protocol):
    """What a check needs of ``lib.learning.compiled_update.MixedWeights``."""

    dtype: torch.dtype
    learning_rate: torch.Tensor
    weights: dict[str, torch.Tensor]
    compute: dict[str, torch.Tensor]
    means: dict[str, torch.Tensor]

    @property
    def changing(self) -> list[torch.Tensor]:
        """Everything that an update changes."""
        ...


class Kept:
    """Tensors and random states as they are now, to be put back.

    Args:
        device: of the random numbers.
        tensors: in places that stay.
    """

    def __init__(self, device: torch.device, tensors: Iterable[torch.Tensor]) -> None:
        modules = [torch]  # a compiler may draw from the CPU's numbers, too
        if device.type != "cpu":
            modules.append(torch.get_device_module(device))
        self._random = [(module, module.get_rng_state()) for module in modules]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]

    @torch.no_grad()
    def put_back(self) -> None:
        """Make everything as it was."""
        for tensor, kept in self._tensors:
            tensor.copy_(kept)
        for module, state in self._random:
            module.set_rng_state(state)


class Trial(NamedTuple):
    """What some calls of an update gave."""

    losses: list[float]  # with the same weights, so only the rows make them differ
    gradients: torch.Tensor  # Adam's average of them
    steps: torch.Tensor  # of the weights, in the last call
    fresh: bool  # whether the copies to compute with are the new weights


def make_trial(update: Update, net: Weights, kept: Kept) -> Trial:
    """Call an update a few times, with the weights and rows that ``kept`` has.

    The weights change only in the last call. Otherwise trials would part: the first steps of Adam
    are as long where a gradient is mere rounding.
    """
    kept.put_back()
    net.learning_rate.zero_()
    before = _flat(net.weights)
    losses = [update().clone() for _ in range(CALLS - 1)]
    net.learning_rate.fill_(RATE)
    losses.append(update().clone())
    return Trial(
        [loss.item() for loss in losses],
        _flat(net.means),
        _flat(net.weights) - before,
        all(
            torch.equal(copy, net.weights[name].to(copy.dtype))
            for name, copy in net.compute.items()
        ),
    )


def fault_of(trial: Trial, simple: Trial, allowed: float) -> str | None:
    """What is wrong with a trial beside that of the update as it is, in words; None if nothing."""
    if len(set(trial.losses)) < len(set(simple.losses)):
        return "it draws the same rows again"
    error = _error(torch.tensor(trial.losses), torch.tensor(simple.losses))
    if not error <= allowed:  # also if it is no number
        return (
            f"its losses are {_listed(trial.losses)}, without it {_listed(simple.losses)} "
            f"({allowed:.0%} may differ)"
        )
    for what in ("gradients", "steps"):
        error = _error(getattr(trial, what), getattr(simple, what))
        if not error <= allowed:
            return f"its {what} differ by {error:.0%} ({allowed:.0%} may differ)"
    return None if trial.fresh or not simple.fresh else "the weights to compute with stay old"


def fastest_update(
    update: Update,
    device: torch.device,
    net: Weights,
    others: Iterable[torch.Tensor],
    ways: dict[str, Callable[[Update], Update]],
) -> Update:
    """The update made faster in all ways that work here; each builds on those before it.

    Args:
        update: as it is.
        device: where it computes.
        net: what it learns.
        others: what else it changes.
        ways: by name, what makes an update faster; the first one compiles.
    """
    kept = Kept(device, [*net.changing, *others])
    simple = make_trial(update, net, kept)
    best = update
    for way, faster in ways.items():
        begin = perf_counter()
        try:
            candidate = faster(best)
            fault = fault_of(make_trial(candidate, net, kept), simple, tolerance(net.dtype))
        except Exception as error:  # whatever it is: the update as it is has just worked
            leave_out(way, error)
            continue
        if fault:
            leave_out(way, fault)
            continue
        best = candidate
        say(f"checked in {perf_counter() - begin:.1f} seconds: {way} learns the same as without it")
    kept.put_back()
    return best


def compiled_for_gpu(update: Update, device: torch.device) -> Update:
    """The update, compiled when it is first called.

    Raises:
        RuntimeError: nothing can be compiled for this GPU.
    """
    if fault := compiler_fault(device):
        raise RuntimeError(fault)
    say("compiling the update: up to a minute")
    # With random numbers of its own the compiled update would draw other rows than the update as
    # it is, and they could not be compared.
    return torch.compile(update, fullgraph=True, options={"fallback_random": True})


def usable_dtype(network: Any, dtype: torch.dtype, exact: tuple[str, ...]) -> torch.dtype:
    """The dtype, or float32 if the network's gradients in it are wrong on this GPU.

    Args:
        network: a ``lib.learning.dqn_model.DQN``.
        dtype: of most weights.
        exact: beginnings of the names of weights that are float32 anyway.
    """
    device = next(network.parameters()).device
    if dtype is torch.float32 or not is_asynchronous(device):
        return dtype
    shape = (4, *network.arguments["input_shape"])
    states = torch.arange(np.prod(shape)).remainder(251).to(torch.uint8).view(shape).to(device)

    def loss_of(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return (functional_call(network, weights, (states,)).float() - 1).square().mean()

    def gradients(dtype: torch.dtype) -> torch.Tensor:
        weights = {
            name: weight.detach().to(torch.float32 if name.startswith(exact) else dtype, copy=True)
            for name, weight in network.named_parameters()
        }
        return _flat(grad_and_value(loss_of)(weights)[0])

    simple = gradients(torch.float32)
    try:
        error = _error(gradients(dtype), simple)
    except RuntimeError as failure:
        leave_out("bfloat16, float32 is used", failure)
        return torch.float32
    allowed = tolerance(dtype)
    if error <= allowed:
        return dtype
    reason = f"its gradients differ by {error:.0%} from those in float32 ({allowed:.0%} may differ)"
    leave_out("bfloat16, float32 is used", reason)
    return torch.float32


def fault_of_choices(
    simple: Callable[[torch.Tensor], Any],
    captured: Callable[[torch.Tensor], Any],
    states: torch.Tensor,
) -> str | None:
    """What is wrong with a captured function of states, in words; None if nothing.

    Values may differ by 2**-4, as in ``tolerance``, but nothing cancels in them. Where two actions
    are as good, rounding chooses, so most choices must be the same, not all.

    Args:
        simple: the function as it is: values or actions, (n, ...), one tensor or several.
        captured: the same as a CUDA graph.
        states: uint8, (n, stack, height, width).
    """
    for seen in (states, 255 - states):
        pairs = zip(tree_leaves(simple(seen)), tree_leaves(captured(seen)), strict=True)
        for expected, found in pairs:
            if expected.is_floating_point():
                error = _error(found, expected)
                if not error <= 2.0**-4:
                    return f"its values differ by {error:.0%} (6% may differ)"
            elif (found == expected).float().mean().item() < 0.5:
                return "it chooses other actions"
    return None


def plays_games(device: torch.device) -> bool:
    """Whether ``emulator`` plays on this device, and plays the CPU's games there."""
    if not is_asynchronous(device):
        return False
    part = "games on the GPU, they are played on the CPU"
    begin = perf_counter()
    try:
        fault = emulator.missing(str(device)) or fault_of_games(device)
    except Exception as error:  # Numba, NVIDIA's compiler and the driver raise all kinds
        leave_out(part, error)
        return False
    if fault:
        leave_out(part, fault)
        return False
    say(f"checked in {perf_counter() - begin:.1f} seconds: the GPU plays the CPU's games")
    return True


def fault_of_games(device: torch.device) -> str | None:
    """Where games on a GPU and on the CPU part, in words; None if they never do."""
    random = np.random.default_rng(0)
    settings = {"seed": 0, "stack": 1, "max_num_frames_per_episode": EMULATED}
    here = emulator.PongVectorEnv(GAMES, threads=1, **settings)
    there = emulator.PongVectorEnv(GAMES, device=device, **settings)
    ours, theirs = here.reset(seed=0)[:1], there.reset(seed=0)[:1]
    names = ("pixels", "rewards", "ends", "ends")
    try:
        for step in range(STEPS):
            for name, mine, its in zip(names, ours, theirs, strict=False):
                wrong = int((its.cpu().numpy() != mine).sum())
                if wrong:
                    return f"after {step} steps its {name} are not the CPU's in {wrong} places"
            if not np.array_equal(here.ram, there.ram):
                return f"after {step} steps its RAM is not the CPU's"
            actions = random.integers(6, size=GAMES)
            here.send(actions)
            there.send(torch.from_numpy(actions).to(device))
            ours, theirs = here.recv()[:4], there.recv()[:4]
    finally:
        here.close()
    return None


def _flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """A copy of all numbers, float32 (n,)."""
    return torch.cat([tensor.detach().float().flatten() for tensor in tensors.values()])


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The length of the difference, as a part of the expected length."""
    apart, length = (found.float() - expected.float()).norm().item(), expected.float().norm().item()
    return apart / max(length, 1e-30)


def _listed(numbers: list[float]) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers)
