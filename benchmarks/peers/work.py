"""What the peers' programs have in common: their flags."""

import argparse


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
