"""What the peers' programs have in common: their flags, and the line that they print."""

import argparse
import json


def parser(description: str) -> argparse.ArgumentParser:
    """The flags of a peer."""
    flags = argparse.ArgumentParser(description=description)
    flags.add_argument("--envs", type=int, default=1)
    flags.add_argument("--replay-initial", type=int, default=1_000)
    flags.add_argument("--frames", type=int, default=2_000, help="played after filling")
    flags.add_argument("--epsilon", type=float, default=0.02)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--cuda", action="store_true")
    return flags


def report(frames: int, updates: int, seconds: float) -> None:
    """Print what was measured after filling."""
    print(json.dumps({"frames": frames, "updates": updates, "fps": frames / seconds}))
