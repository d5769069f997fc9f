"""What calls to a GPU cost, and steps of many games there; a part of ``gpu_minutes.sh``.

python -m benchmarks.gpu_costs calls --cuda
python -m benchmarks.gpu_costs games --cuda
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import pong_emulator
from benchmarks.arguments import positive
from lib.learning.compiled_update import cuda_graph
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch
from lib.training.machine import prepare_torch

GAMES, PER_WARP = (32, 1_024, 4_096, 16_384), (1, 4, 32)
SECONDS = 1.0  # of a measurement
Calls = dict[str, Callable[[], object]]


def microseconds(call: Callable[[], object], device: torch.device) -> list[float]:
    """Of the CPU per call (median), and per call until the device has done it (mean)."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        call()
    wait()
    times, began = list[float](), time.perf_counter()
    while (before := time.perf_counter()) < began + SECONDS and len(times) < 1_000:
        call()
        times.append(time.perf_counter() - before)
        if len(times) % 50 == 0:  # a full queue makes the CPU wait
            wait()
    wait()
    whole = (time.perf_counter() - began) / len(times)
    return [round(statistics.median(times) * 1e6, 1), round(whole * 1e6, 1)]


def calls(device: torch.device) -> dict[str, list[float]]:
    """Single calls, and an update of 01 (32 samples) and of 03 (128), in parts and as a graph."""
    number, small = torch.zeros(1, device=device), torch.zeros(32, 512, device=device)
    found: Calls = {
        "add to a number": lambda: number.add_(1),
        "relu of 32 x 512": lambda: small.relu_(),
        "a new tensor": lambda: torch.empty(32, 512, device=device),
        "a number to the CPU": lambda: number.item(),
    }
    if device.type == "cuda":
        pinned = torch.zeros(32, 5, 84, 84, dtype=torch.uint8).pin_memory()
        found["pin 1.1 MB"] = lambda: pinned.clone().pin_memory()
        found["copy pinned 1.1 MB"] = lambda: pinned.to(device, non_blocking=True)

        def twenty() -> None:
            for _ in range(20):
                small.add_(1)

        found |= {"20 kernels": twenty, "20 kernels, a graph": cuda_graph(twenty)}
    for size in (32, 128):
        found |= update_calls(device, size)
    return {name: microseconds(call, device) for name, call in found.items()}


def update_calls(device: torch.device, size: int) -> Calls:
    """An update of 01, and its parts."""
    net = DQN((4, 84, 84), 6).to(device)
    target = torch.no_grad()(copy.deepcopy(net))
    capturable = device.type == "cuda"
    optimizer = torch.optim.Adam(net.parameters(), fused=True, capturable=capturable)
    states = torch.randint(255, (2, size, 4, 84, 84), dtype=torch.uint8).to(device)
    zeros = torch.zeros(size, device=device)
    batch = Batch(states[0], zeros.long(), zeros, zeros.bool(), states[1])

    def forward() -> torch.Tensor:
        return bellman_loss(net(batch.states), target(batch.next_states), batch, 0.99)

    def update() -> None:
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()

    name = f"update of {size}"
    found: Calls = {f"{name}, both forward passes and the loss": forward, name: update}
    found[f"{name}, Adam"] = optimizer.step
    return found | ({f"{name}, a graph": cuda_graph(update)} if capturable else {})


def playing(device: torch.device, n: int, per_warp: int) -> Callable[[], None]:
    """What plays a step of new games at random; on a GPU a graph."""
    envs: Any = pong_emulator.PongVectorEnv(
        n, device=device, games_per_warp=per_warp, stack=1, rows=(13, 73)
    )
    frames, _ = envs.reset(seed=0)
    actions = torch.zeros(n, dtype=torch.int64, device=device)
    play = lambda: envs.step(actions.numpy())  # noqa: E731
    if device.type == "cuda":
        terminated, truncated = torch.zeros((2, n), dtype=torch.bool, device=device)
        rewards = torch.zeros(n, dtype=torch.int32, device=device)
        play = cuda_graph(envs.stepper(actions, frames, rewards, terminated, truncated))

    def step() -> None:
        actions.copy_(torch.randint(6, (n,), device=device))
        play()

    return step


def games(device: torch.device, sizes: list[int]) -> dict[str, list[float]]:
    """Steps of games: just begun, so all in step, and when they have drifted apart."""
    found = {}
    for n in sizes:
        for per_warp in PER_WARP if device.type == "cuda" else (0,):
            step = playing(device, n, per_warp)
            for state in ("in step", "apart"):
                cost = microseconds(step, device)
                name = f"{n} games, {per_warp} a warp, {state}"
                found[name] = [*cost, round(n / cost[1] * 1e6)]
                print(f"{name}: {cost[1]:,.0f} us a step, {n / cost[1] * 1e6:,.0f} steps/s")
    return found


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("calls", "games"))
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--games", type=positive, nargs="+", default=list(GAMES))
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-costs.json"))
    args = parser.parse_args()
    prepare_torch(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if args.cuda else "cpu")
    found = calls(device) if args.what == "calls" else games(device, args.games)
    args.out.write_text(json.dumps(found, indent=1))
    for name, costs in found.items():
        print(f"{name:50s} " + "".join(f"{cost:12,.1f}" for cost in costs))


if __name__ == "__main__":
    main()
