"""Say by line where the CPU waits for the GPU while a rung trains.

It is torch that tells (``torch.cuda.set_sync_debug_mode``), about this process alone: a player
in a process of its own is not heard. A line per place: how often per update, and where.

    python -m benchmarks waits 01_baseline --cuda
"""

import argparse
import warnings
from collections import Counter
from pathlib import Path

import torch

from benchmarks.arguments import add_counts
from benchmarks.breakdown.rung import load, run_rung
from benchmarks.timing import chosen_device
from lib.running.machine import prepare_torch

TOLD = "synchroniz"  # what torch's warning has in it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument("rung", help="such as 01_baseline")
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    add_counts(parser, {"updates": (200, "updates that are watched")})


def run(args: argparse.Namespace) -> int:
    """Run the rung and print the places."""
    device = chosen_device(args.cuda)
    places = watch(args.rung, device, args.updates)
    print(f"{args.rung} on {device.type}, waits per update:")
    for (file, number), count in places.most_common():
        print(f"{count / args.updates:8.2f} {Path(file).name} line {number}")
    if not places:
        print("    none")
    return 0


def watch(rung: str, device: torch.device, updates: int) -> Counter[tuple[str, int]]:
    """How often the CPU waited at each file and line."""
    prepare_torch(seed=0)
    gpu = device.type == "cuda"
    debug = torch.cuda.set_sync_debug_mode if gpu else lambda mode: None
    # A random action costs no forward pass, and so hides a wait.
    settings = {"cuda": gpu, "replay_initial": 200, "epsilon_start": 0.0, "epsilon_final": 0.0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_rung(load(rung), settings, updates, lambda: debug("warn"), lambda: debug("default"))
    return Counter((w.filename, w.lineno) for w in caught if TOLD in str(w.message))
