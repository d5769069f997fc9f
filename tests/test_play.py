"""Watching agents: play.py on checkpoints of real runs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, run_rung
from PIL import Image

from lib.running.checkpoints import find_checkpoint, read_checkpoint


def play(*arguments: object) -> Any:
    """Run play.py to its end."""
    command = [sys.executable, str(ROOT / "play.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of a short run of two rungs, whose networks and actions differ."""
    folders = {}
    for script, flags in {
        "01_baseline": ("--replay-initial", "300", "--batch-size", "4"),
        "07_speedrun": ("--rollout", "50", "--envs", "2", "--batch-size", "4"),
    }.items():
        place = tmp_path_factory.mktemp(script)
        assert run_rung(script, place, *flags, "--max-frames", "400").returncode == 0
        (folders[script],) = place.iterdir()
    return folders


@pytest.mark.parametrize("script", ["01_baseline", "07_speedrun"])
def test_it_prints_every_score_and_their_mean(runs, script):
    result = play(runs[script], "--episodes", 2, "--epsilon", 1)
    assert result.returncode == 0, result.stderr
    first, *games, last = result.stdout.splitlines()
    assert re.search(rf"latest-\d+\.pt: {script} after 40\d frames", first)
    scores = [int(re.search(r"score +(-?\d+)", line)[1]) for line in games]
    assert len(scores) == 2
    assert last.startswith(f"2 games, mean {sum(scores) / 2:.2f}, ")
    assert play(runs[script], "--episodes", 2, "--epsilon", 1).stdout == result.stdout


def test_an_agent_of_another_game(tmp_path):
    flags = ("--env", "BreakoutNoFrameskip-v4", "--any-game", "--max-frames", "400")
    small = ("--rollout", "50", "--envs", "2", "--batch-size", "4")
    assert run_rung("07_speedrun", tmp_path, *flags, *small).returncode == 0
    (run,) = tmp_path.iterdir()
    result = play(run, "--episodes", 1, "--epsilon", 1)
    assert result.returncode == 0, result.stderr
    assert int(re.search(r"score +(\d+)", result.stdout)[1]) >= 0


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_it_films_a_game(runs, suffix, tmp_path):
    video = tmp_path / f"pong{suffix}"
    result = play(runs["07_speedrun"], "--episodes", 1, "--epsilon", 1, "--video", video)
    assert result.returncode == 0, result.stderr
    steps = int(re.search(r"steps +([\d,]+)", result.stdout)[1].replace(",", ""))
    if suffix == ".gif":
        with Image.open(video) as gif:
            assert gif.size == (160, 210)
            assert 0.5 * steps < gif.n_frames <= steps  # equal pictures are one
    else:
        assert video.read_bytes()[4:8] == b"ftyp"
        assert video.stat().st_size > 10_000


def test_what_cannot_be_played_is_refused_in_one_line(runs, tmp_path):
    checkpoint = find_checkpoint(runs["01_baseline"], "latest")
    cut = tmp_path / "cut.pt"
    cut.write_bytes(checkpoint.read_bytes()[:100_000])
    foreign = tmp_path / "foreign.pt"
    torch.save({"model": torch.zeros(3)}, foreign)
    strange = tmp_path / "strange.pt"
    torch.save(read_checkpoint(checkpoint) | {"net": {"conv.0.weight": torch.zeros(1)}}, strange)
    for arguments in (
        (tmp_path,),
        (cut,),
        (foreign,),
        (strange,),
        (runs["01_baseline"], "--video", "pong.avi"),
        (runs["01_baseline"], "--episodes", 0),
    ):
        result = play(*arguments)
        assert (result.returncode, result.stdout) == (2, ""), arguments
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
