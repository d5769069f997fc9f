"""Compare with ptan and Stable-Baselines3 at the same work.

The work: one environment with an update of 32 per frame; three with an update of 96 per three
frames; an update of 32 per four frames; a player process with updates of 128, which
Stable-Baselines3 lacks. All take turns, so that a drifting machine favours nobody. The peers need
the environment of requirements-peers.txt.

    python -m benchmarks peers --amp
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

from benchmarks import Failed, UserError
from benchmarks.measuring import add_counts, add_out, chosen_device, output_of
from benchmarks.peer_loops import EPSILON, REPLAY_INITIAL
from benchmarks.report import here, spread, write_table
from lib.training.machine import describe_machine

import torch
from tqdm import tqdm

ONE, THREE = "1 environment, update of 32", "3 environments, update of 96"
FOURTH, PARALLEL = "update of 32 for four frames", "player process, update of 128"
LOOPS = "benchmarks/peer_loops.py"
LADDER, PTAN, SB3 = "this ladder", "ptan 0.8.1", "Stable-Baselines3 2.9.2"
CONTENDERS = [  # work, who does it, program
    (ONE, LADDER, "01_baseline.py"),
    (ONE, PTAN, f"{LOOPS} ptan"),
    (ONE, SB3, f"{LOOPS} sb3"),
    (THREE, LADDER, "02_n_envs.py --envs 3"),
    (THREE, PTAN, f"{LOOPS} ptan --envs 3"),
    (THREE, SB3, f"{LOOPS} sb3 --envs 3"),
    (FOURTH, LADDER, "02_n_envs.py --envs 4 --batch-size 8"),
    (FOURTH, SB3, f"{LOOPS} sb3 --steps 4"),
    (PARALLEL, LADDER, "03_parallel.py"),
    (PARALLEL, PTAN, f"{LOOPS} ptan --parallel"),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's flags."""
    python, text = Path(".venv-peers/bin/python"), "the peers' Python (default: %(default)s)"
    parser.add_argument("--python", type=Path, default=python, help=text)
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    parser.add_argument("--only", choices=("ptan", "sb3"), help="the only peer to compare with")
    parser.add_argument("--amp", action="store_true", help="compute updates in bfloat16 autocast")
    timed = "frames to time, after filling"
    add_counts(parser, {"rounds": (3, "runs of each"), "frames": (2_000, timed)})
    add_out(parser, "runs/peers")


def run(args: argparse.Namespace) -> int:
    """Run all contenders, and write the table."""
    if not args.python.exists():
        raise UserError(f"there is no {args.python}: requirements-peers.txt says how to make it")
    machine, out = describe_machine(chosen_device(args.cuda)), args.out
    others = {"ptan": SB3, "sb3": PTAN}.get(args.only)
    contenders = [entry for entry in CONTENDERS if entry[1] != others]
    fps: dict[str, list[float]] = {program: [] for _, _, program in contenders}
    for number in tqdm(range(args.rounds), unit="round", disable=None):
        first = number % len(contenders)  # each round starts with another one
        for _, who, program in contenders[first:] + contenders[:first]:
            fps[program].append(measure(program, who == LADDER, args, seed=number))
    baseline = {work: fps[program] for work, who, program in contenders if who == LADDER}
    rows = []
    for work, who, program in contenders:
        pairs = zip(baseline[work], fps[program], strict=True)
        rows.append([work, who, spread(fps[program]), spread([a / b for a, b in pairs], 2)])
    notes = [
        f"{here(machine)}; the peers also use torch 2.13.0",
        f"Seeds 0 to {args.rounds - 1}, one per round, all in turn; {args.frames:,} frames "
        f"after filling the replay buffer with {REPLAY_INITIAL:,}; epsilon {EPSILON:g}",
        "Medians (and their range), ratios round by round; the loop around ptan's parts is ours",
        "Stable-Baselines3 uses the smooth L1 loss and clips gradients; with --amp, updates run "
        "under autocast. For an update per four frames, it has one environment, the ladder four",
    ]
    title = "The same work on this ladder and its peers" + ", in bfloat16 autocast" * args.amp
    header = ["work", "who", "FPS", "the ladder is faster by (x)"]
    print(write_table(out / f"peers{'-amp' * args.amp}", title, header, rows, notes))
    return 0


def measure(program: str, is_rung: bool, args: argparse.Namespace, seed: int) -> float:
    """Return the frames per second of one run, after filling."""
    flags = ["--seed", str(seed)] + ["--cuda"] * args.cuda + ["--amp"] * args.amp
    environ = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        python, own = args.python.absolute(), ["--frames", args.frames]
        if is_rung:
            python, own = sys.executable, ["--max-frames", REPLAY_INITIAL + args.frames]
            own += ["--epsilon-start", EPSILON, "--epsilon-final", EPSILON]
            own += ["--replay-initial", REPLAY_INITIAL, "--run-dir", folder]
            own += ["--threads", torch.get_num_threads()] * (not args.cuda)  # as the peers
        else:  # lib lets waiting threads sleep soon, which halves the FPS of ptan's player process
            environ.pop("GOMP_SPINCOUNT", None)
        output = output_of([python, *program.split(), *flags, *map(str, own)], program, environ)
    if (fps := last_fps(output)) is None:
        raise Failed(f"{program} printed no FPS")
    return fps


def last_fps(output: str) -> float | None:
    """Return the last FPS that a rung or a peer's loop printed, or None."""
    found = re.findall(r"([\d,.]+) FPS$", output, re.MULTILINE)
    return float(found[-1].replace(",", "")) if found else None
