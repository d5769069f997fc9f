"""00 does the arithmetic of 01: what it leaves on costs time and memory, and changes no number."""

import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

SETTINGS = ["--replay-initial", "200", "--replay-size", "500", "--batch-size", "4"]
SETTINGS += ["--epsilon-frames", "300"]  # then most actions are the network's
SETTINGS += ["--target-sync", "50"]  # so its values are part of what is compared
SETTINGS += ["--max-frames", "600", "--checkpoint-every", "0"]

# Runs a rung as a program, and writes down every loss that its own process_batch gives.
RECORDER = """
import runpy, sys
import ignite.engine

class Engine(ignite.engine.Engine):
    def __init__(self, process_batch):
        super().__init__(lambda engine, batch: note(process_batch(engine, batch)))

def note(loss):
    losses.write(loss.item().hex() + "\\n")
    return loss

ignite.engine.Engine = Engine
path, script, *flags = sys.argv[1:]
sys.argv = [script, *flags]
with open(path, "w") as losses:
    runpy.run_path(script, run_name="__main__")
"""


def losses_of(script: str, seed: int, folder: Path) -> list[float]:
    """The loss of every update of a short run."""
    path = folder / f"{script}-{seed}.txt"
    command = [sys.executable, "-c", RECORDER, str(path), str(ROOT / f"{script}.py")]
    command += ["--run-dir", str(folder), "--seed", str(seed), *SETTINGS]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [float.fromhex(line) for line in path.read_text().splitlines()]


def test_slow_gradients_change_no_loss(tmp_path: Path) -> None:
    slow, usual = (losses_of(script, 3, tmp_path) for script in ("00_slow_grads", "01_baseline"))
    assert len(usual) >= 400
    assert slow == usual  # bit for bit
    assert losses_of("01_baseline", 4, tmp_path) != usual  # another run would have been noticed
