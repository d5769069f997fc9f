"""Runs that are killed, while they train and while they save, are resumed without a seam."""

import subprocess
import sys
from pathlib import Path

from conftest import ROOT, run_rung
from test_resume import assert_no_seam

from lib.running.checkpoints import find_checkpoint, read_checkpoint

FLAGS = ("--replay-initial", "300", "--replay-size", "1000", "--batch-size", "4")
FLAGS += ("--checkpoint-every", "20", "--checkpoint-replay", "--stop-reward", "100")


def kill(script: str, folder: Path, saves: bool, *flags: str) -> dict[str, int]:
    """Kill a run that has saved, while it trains or while it saves; how far it had come."""
    command = [sys.executable, str(ROOT / f"{script}.py"), "--run-dir", str(folder), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not (line := process.stdout.readline()).startswith("training begins"):
            assert line, "it ended"
        (run,) = folder.iterdir()
        place = run / "checkpoints"
        before = files = sorted(place.glob("*.pt"))
        newest = before and before[0].stat().st_mtime_ns
        while files == before and (not before or before[0].stat().st_mtime_ns == newest):
            assert process.poll() is None
            files = sorted(place.glob("*.pt"))
        while saves and not list(place.glob("*.tmp")):
            assert process.poll() is None
        process.kill()
        process.stdout.read()
    return read_checkpoint(find_checkpoint(run, "latest", "previous"))["progress"]


def test_a_killed_run_is_resumed_without_a_seam(tmp_path):
    script = "01_baseline"
    first = kill(script, tmp_path, True, *FLAGS)
    (run,) = tmp_path.iterdir()
    second = kill(script, tmp_path, False, "--resume", str(run))
    assert second["iteration"] > first["iteration"] > 0
    end = str(second["frames"] + 300)
    result = run_rung(script, tmp_path, "--resume", str(run), "--max-frames", end)
    assert result.returncode == 0, result.stderr
    assert list(run.glob("checkpoints/*.tmp")) == []
    assert_no_seam(tmp_path)
