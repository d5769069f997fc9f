"""The same work on this ladder, on ptan and on Stable-Baselines3.

One environment with an update of 32 per frame; three environments with an update of 96 for
their three frames; and a player in a process of its own with updates of 128, which
Stable-Baselines3 has no loop for. Everybody plays in turn, round by round, so that a machine
that drifts favours nobody. The peers live in an environment of their own, see
requirements-peers.txt.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import matplotlib
from tqdm import tqdm

from benchmarks.report import machine_line, write_table

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parent.parent
LADDER, PTAN, SB3 = "this ladder", "ptan 0.8.1", "Stable-Baselines3 2.9.2"
HINT = (
    "peers: error: there is no interpreter {python}; make it with: python -m venv .venv-peers && "
    ".venv-peers/bin/pip install torch==2.13.0 && "
    ".venv-peers/bin/pip install --no-deps -r requirements-peers.txt"
)


@dataclass(frozen=True)
class Contender:
    """A program that does a piece of work."""

    work: str
    name: str
    program: str
    flags: tuple[str, ...] = ()


CONTENDERS = [
    Contender("1 environment, update of 32", LADDER, "01_baseline.py"),
    Contender("1 environment, update of 32", PTAN, "benchmarks/peers_ptan.py"),
    Contender("1 environment, update of 32", SB3, "benchmarks/peers_sb3.py"),
    Contender("3 environments, update of 96", LADDER, "02_n_envs.py", ("--envs", "3")),
    Contender("3 environments, update of 96", PTAN, "benchmarks/peers_ptan.py", ("--envs", "3")),
    Contender("3 environments, update of 96", SB3, "benchmarks/peers_sb3.py", ("--envs", "3")),
    Contender("player process, update of 128", LADDER, "03_parallel.py"),
    Contender("player process, update of 128", PTAN, "benchmarks/peers_ptan.py", ("--parallel",)),
]


class Failed(Exception):  # noqa: N818, it ends the command
    """A contender did not finish; the message says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(".venv-peers/bin/python"),
        help="interpreter of the peers' environment (default: .venv-peers/bin/python)",
    )
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    parser.add_argument("--rounds", type=int, default=3, help="runs of everybody (default: 3)")
    parser.add_argument(
        "--frames", type=int, default=2_000, help="timed, after filling (default: 2000)"
    )
    parser.add_argument(
        "--replay-initial",
        type=int,
        default=1_000,
        help="transitions to play before training begins (default: 1000)",
    )
    parser.add_argument(
        "--epsilon",
        type=float,
        default=0.02,
        help="share of random actions; a run spends most of its time at 0.02 (default)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/benchmarks"), help="folder of table and figure"
    )


def run(args: argparse.Namespace) -> int:
    """Run everybody, write table and figure."""
    if not args.python.exists():
        print(HINT.format(python=args.python), file=sys.stderr)
        return 2
    if min(args.rounds, args.frames, args.replay_initial) < 1:
        print("peers: error: --rounds, --frames and --replay-initial must be positive",
              file=sys.stderr)  # fmt: skip
        return 2
    fps: dict[Contender, list[float]] = {contender: [] for contender in CONTENDERS}
    try:
        with tqdm(total=args.rounds * len(CONTENDERS), unit="run", disable=None) as bar:
            for number in range(args.rounds):
                first = number % len(CONTENDERS)  # somebody else begins every time
                for contender in CONTENDERS[first:] + CONTENDERS[:first]:
                    bar.set_description(f"{contender.name}, {contender.work}")
                    fps[contender].append(measure(contender, args, seed=number))
                    bar.update()
    except Failed as failed:
        print(f"peers: failed: {failed}", file=sys.stderr)
        return 1
    write(fps, args)
    return 0


def measure(contender: Contender, args: argparse.Namespace, seed: int) -> float:
    """Frames per second of one run, after filling."""
    shared = ["--replay-initial", str(args.replay_initial), "--seed", str(seed)]
    shared += ["--cuda"] if args.cuda else []
    with tempfile.TemporaryDirectory() as folder:
        if contender.name == LADDER:
            interpreter = sys.executable
            epsilon = str(args.epsilon)
            own = ["--epsilon-start", epsilon, "--epsilon-final", epsilon, "--run-dir", folder]
            own += ["--max-frames", str(args.replay_initial + args.frames)]
        else:
            interpreter = str(args.python)
            own = ["--epsilon", str(args.epsilon), "--frames", str(args.frames)]
        command = [interpreter, str(ROOT / contender.program), *contender.flags, *shared, *own]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return read_fps(contender, done)


def read_fps(contender: Contender, done: subprocess.CompletedProcess[str]) -> float:
    """Find the figure in the last line that was printed."""
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        errors = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise Failed(f"{contender.name} ({contender.program}): {errors[-1]}")
    if contender.name != LADDER:
        return float(json.loads(lines[-1])["fps"])
    found = re.search(r"([\d,.]+) FPS$", lines[-1])
    if not found:
        raise Failed(f"{contender.program} ended with {lines[-1]!r}")
    return float(found[1].replace(",", ""))


def write(fps: dict[Contender, list[float]], args: argparse.Namespace) -> None:
    """Table and figure: the ladder's speed against the others', round by round."""
    path = args.out / f"peers{'-cuda' if args.cuda else ''}"
    title = f"The same work on this ladder and its peers, on the {'GPU' if args.cuda else 'CPU'}"
    baseline = {one.work: rates for one, rates in fps.items() if one.name == LADDER}
    rows = []
    for one, rates in fps.items():
        ratios = [ours / theirs for ours, theirs in zip(baseline[one.work], rates, strict=True)]
        rows.append(
            [
                one.work,
                one.name,
                f"{median(rates):,.1f}",
                f"{min(rates):,.1f} to {max(rates):,.1f}",
                f"{median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            ]
        )
    write_table(
        path,
        title,
        ["work", "who", "FPS (median)", "spread", "ladder is faster by (x)", "spread of that"],
        rows,
        [
            f"machine: {machine_line()}; the peers with torch 2.13.0, too",
            f"seeds 0 to {args.rounds - 1}, one per round, everybody in turn; "
            f"{args.frames:,} frames after filling the replay buffer with "
            f"{args.replay_initial:,}; epsilon {args.epsilon:g}",
            "everybody's own wrappers, replay buffer and loss; ptan's in a loop "
            "of ours, with a multiprocessing.Queue of 8 where the player has its process",
            "Stable-Baselines3 has no loop with a player process",
        ],
    )
    draw(fps, Path(f"{path}.png"), title)
    for row in rows:
        print("  ".join(row))
    print(f"wrote {path}.md, .csv and .png")


def draw(fps: dict[Contender, list[float]], path: Path, title: str) -> None:
    """Bars of FPS, grouped by work."""
    works: Sequence[str] = list(dict.fromkeys(one.work for one in fps))
    figure, axes = plt.subplots(figsize=(10, 5), layout="constrained")
    width = 0.26
    for i, name in enumerate((LADDER, PTAN, SB3)):
        bars = [(works.index(one.work), rates) for one, rates in fps.items() if one.name == name]
        middles = [median(rates) for _, rates in bars]
        low = [median(rates) - min(rates) for _, rates in bars]
        high = [max(rates) - median(rates) for _, rates in bars]
        places = [place + (i - 1) * width for place, _ in bars]
        drawn = axes.bar(places, middles, width, yerr=[low, high], label=name, capsize=3)
        axes.bar_label(drawn, fmt="%.0f")
    axes.set_xticks(range(len(works)), works)
    axes.set_ylabel("frames per second (bar: median, line: range)")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
