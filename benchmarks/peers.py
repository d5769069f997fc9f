"""Compare with ptan, Stable-Baselines3 and CleanRL's settings at the same work.

One environment with an update of 32 per frame; three environments with an update of 96 for
their three frames; CleanRL's update of 32 for four frames; and a player in a process of its own
with updates of 128, which only ptan has a loop for. Everybody plays in turn, round by round, so
that a machine that drifts favours nobody. The peers live in an environment of their own, see
requirements-peers.txt.

    python -m benchmarks peers --rounds 3
    python -m benchmarks peers --rounds 3 --amp
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from benchmarks import Failed, UserError
from benchmarks.arguments import PEERS_PYTHON, add_counts, add_out, add_training, suffix, where
from benchmarks.processes import output_of
from benchmarks.report import here, output_folder, spread, write_table
from benchmarks.timing import chosen_device
from lib.running.machine import describe_machine

ONE, THREE = "1 environment, update of 32", "3 environments, update of 96"
FOURTH, PARALLEL = "update of 32 for four frames", "player process, update of 128"
LOOPS = "benchmarks/peer_loops.py"
LADDER, PTAN, SB3 = "this ladder", "ptan 0.8.1", "Stable-Baselines3 2.9.2"
CLEANRL = "CleanRL's settings"


class Contender(NamedTuple):
    """A program that does a piece of work, and its flags."""

    work: str
    name: str
    program: str


CONTENDERS = [
    Contender(ONE, LADDER, "01_baseline.py"),
    Contender(ONE, PTAN, f"{LOOPS} ptan"),
    Contender(ONE, SB3, f"{LOOPS} sb3"),
    Contender(THREE, LADDER, "02_n_envs.py --envs 3"),
    Contender(THREE, PTAN, f"{LOOPS} ptan --envs 3"),
    Contender(THREE, SB3, f"{LOOPS} sb3 --envs 3"),
    Contender(FOURTH, LADDER, "02_n_envs.py --envs 4 --batch-size 8"),
    Contender(FOURTH, CLEANRL, f"{LOOPS} cleanrl"),
    Contender(FOURTH, SB3, f"{LOOPS} sb3 --steps 4"),
    Contender(PARALLEL, LADDER, "03_parallel.py"),
    Contender(PARALLEL, PTAN, f"{LOOPS} ptan --parallel"),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    text = "interpreter of the peers' environment (default: %(default)s)"
    parser.add_argument("--python", type=Path, default=PEERS_PYTHON, help=text)
    add_training(parser)
    counts = {
        "rounds": (3, "runs of everybody"),
        "frames": (2_000, "frames that are timed, after filling"),
        "replay-initial": (1_000, "transitions to play before training begins"),
    }
    add_counts(parser, counts)
    add_out(parser, "runs/peers")


def run(args: argparse.Namespace) -> int:
    """Run everybody, write the table."""
    if not args.python.exists():
        raise UserError(f"there is no {args.python}: requirements-peers.txt says how to make it")
    machine = describe_machine(chosen_device(args.cuda))
    path = output_folder(args.out) / f"peers{suffix(args)}"
    fps: dict[Contender, list[float]] = {contender: [] for contender in CONTENDERS}
    with tqdm(total=args.rounds * len(CONTENDERS), unit="run", disable=None) as bar:
        for number in range(args.rounds):
            first = number % len(CONTENDERS)  # somebody else begins every time
            for contender in CONTENDERS[first:] + CONTENDERS[:first]:
                bar.set_description(f"{contender.name}, {contender.work}")
                fps[contender].append(measure(contender, args, seed=number))
                bar.update()
    baseline = {one.work: rates for one, rates in fps.items() if one.name == LADDER}
    rows = []
    for one, rates in fps.items():
        ratios = [ours / theirs for ours, theirs in zip(baseline[one.work], rates, strict=True)]
        rows.append([one.work, one.name, spread(rates), spread(ratios, 2)])
    notes = [
        f"{here(machine)}; the peers with torch 2.13.0, too",
        f"Seeds 0 to {args.rounds - 1}, one per round, everybody in turn; {args.frames:,} frames "
        f"after filling the replay buffer with {args.replay_initial:,}; epsilon {args.epsilon:g}",
        "Medians (and their range); the ratio is taken round by round",
        "Everybody's own wrappers and replay buffer; loops of ours for ptan (a Queue of 8 where "
        "the player has its process) and CleanRL's settings (Stable-Baselines3's buffer)",
        "Stable-Baselines3 uses the smooth L1 loss and clips gradients; with --amp, autocast is "
        "around all it does. An update for four frames: four environments here, one there",
    ]
    title = f"The same work on this ladder and its peers, on the {where(args)}"
    header = ["work", "who", "FPS", "the ladder is faster by (x)"]
    print(write_table(path, title, header, rows, notes))
    print(f"written to {path.parent}")
    return 0


def measure(contender: Contender, args: argparse.Namespace, seed: int) -> float:
    """Frames per second of one run, after filling."""
    shared = ["--replay-initial", str(args.replay_initial), "--seed", str(seed)]
    shared += ["--cuda"] * args.cuda + ["--amp"] * args.amp
    with tempfile.TemporaryDirectory() as folder:
        interpreter, epsilon = str(args.python.absolute()), str(args.epsilon)
        own = ["--epsilon", epsilon, "--frames", str(args.frames)]
        if contender.name == LADDER:
            interpreter = sys.executable
            own = ["--epsilon-start", epsilon, "--epsilon-final", epsilon, "--run-dir", folder]
            own += ["--max-frames", str(args.replay_initial + args.frames)]
        command = [interpreter, *contender.program.split(), *shared, *own]
        last = output_of(command, f"{contender.name} ({contender.program})")[-1]
    found = re.search(r"([\d,.]+)( FPS)?$", last)
    if not found:
        raise Failed(f"{contender.program} ended with {last!r}")
    return float(found[1].replace(",", ""))
