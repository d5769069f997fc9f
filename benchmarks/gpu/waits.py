"""Say by line where the CPU waits for the GPU while a rung trains.

    python -m benchmarks.gpu.waits 01_baseline --cuda

It is torch that tells (``torch.cuda.set_sync_debug_mode``), about this process alone: a player
in a process of its own is not heard. A line per place: how often per update, and where.
"""

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch

from benchmarks import Failed, UserError
from benchmarks.arguments import add_counts
from benchmarks.breakdown.rung import load, run_rung
from benchmarks.timing import chosen_device
from lib.run import prepare_torch

TOLD = "synchroniz"  # what torch's warning has in it


def main() -> int:
    """Run the rung and print the places."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rung", help="such as 01_baseline")
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    add_counts(parser, {"updates": (200, "updates that are watched")})
    args = parser.parse_args()
    try:
        device = chosen_device(args.cuda)
        places = watch(args.rung, device, args.updates)
        lines = [f"{args.rung} on {device.type}, waits per update:"]
        lines += [
            f"{count / args.updates:8.2f} {Path(file).name} line {number}"
            for (file, number), count in places.most_common()
        ] or ["    none"]
        print("\n".join(lines))
    except (UserError, Failed) as error:
        print(f"waits: failed: {error}", file=sys.stderr)
        return 1
    return 0


def watch(rung: str, device: torch.device, updates: int) -> Counter[tuple[str, int]]:
    """How often the CPU waited at each file and line."""
    prepare_torch(seed=0)
    gpu = device.type == "cuda"

    def debug(mode: str) -> None:
        if gpu:
            torch.cuda.set_sync_debug_mode(mode)

    # A random action costs no forward pass, and so hides a wait.
    settings = {"cuda": gpu, "replay_initial": 200, "epsilon_start": 0.0, "epsilon_final": 0.0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_rung(
            load(rung),
            settings | {"stop_reward": 1e9},
            updates,
            begin=lambda: debug("warn"),
            end=lambda: debug("default"),
        )
    return Counter((w.filename, w.lineno) for w in caught if TOLD in str(w.message))


if __name__ == "__main__":
    sys.exit(main())
