"""Watching agents: play.py on checkpoints of real runs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, run_rung
from imageio_ffmpeg import count_frames_and_secs
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
    first, _, *games, last = result.stdout.splitlines()
    assert re.search(rf"latest-\d+\.pt: {script} after 40\d frames", first)
    scores = [int(re.search(r"score +(-?\d+)", line)[1]) for line in games]
    assert len(scores) == 2
    assert last.startswith(f"2 games, mean {sum(scores) / 2:.2f}, ")
    assert play(runs[script], "--episodes", 2, "--epsilon", 1).stdout == result.stdout


def test_an_exported_agent_plays_the_same_and_is_small(runs, tmp_path):
    file = tmp_path / "agent.pt"
    result = play(runs["07_speedrun"], "--export", file)
    assert result.returncode == 0, result.stderr
    assert file.stat().st_size < 1_000_000
    games = [play(agent, "--episodes", 1).stdout for agent in (runs["07_speedrun"], file)]
    assert games[0].splitlines()[1:] == games[1].splitlines()[1:]
    assert "score" in games[0]


def test_an_agent_of_another_game(tmp_path):
    flags = ("--env", "BreakoutNoFrameskip-v4", "--any-game", "--max-frames", "400")
    small = ("--rollout", "50", "--envs", "2", "--batch-size", "4")
    assert run_rung("07_speedrun", tmp_path, *flags, *small).returncode == 0
    (run,) = tmp_path.iterdir()
    result = play(run, "--episodes", 1, "--epsilon", 1)
    assert result.returncode == 0, result.stderr
    assert int(re.search(r"score +(\d+)", result.stdout)[1]) >= 0


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_it_films_the_first_of_two_games(runs, suffix, tmp_path):
    video = tmp_path / f"pong{suffix}"
    result = play(runs["07_speedrun"], "--episodes", 2, "--epsilon", 1, "--video", video)
    assert result.returncode == 0, result.stderr
    _, kind, first, told, second, _ = result.stdout.splitlines()
    assert kind == "games after up to 30 no-ops:"
    assert first.startswith("game   1")
    assert second.startswith("game   2")
    steps = int(re.search(r"steps +([\d,]+)", first)[1].replace(",", ""))
    if suffix == ".gif":
        assert told == f"{video} shows this game, 4 times as fast as the Atari"
        with Image.open(video) as gif:
            assert gif.size == (160, 210)
            assert 0 <= steps - 2 * gif.n_frames <= 2  # FIRE is a step, too
            assert gif.info["duration"] in (30, 40)
    else:
        assert told == f"{video} shows this game, at the Atari's speed"
        frames, seconds = count_frames_and_secs(video)
        assert steps - frames == 1
        assert seconds == pytest.approx(frames / 15, abs=0.1)


def test_an_agent_trained_without_no_ops_plays_both_kinds_of_games(tmp_path):
    flags = ("--replay-initial", "300", "--batch-size", "4", "--max-frames", "310")
    assert run_rung("04_new_wrappers_n_env", tmp_path, *flags).returncode == 0
    (run,) = tmp_path.iterdir()
    result = play(run, "--episodes", 1, "--epsilon", 1)
    assert result.returncode == 0, result.stderr
    told = result.stdout.splitlines()[1:]
    assert [told[0], told[3]] == ["games as trained:", "games after up to 30 no-ops:"]
    assert [line[:8] for line in told[1::3]] == ["game   1"] * 2
    assert [line[:8] for line in told[2::3]] == ["1 games,"] * 2


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
        (runs["01_baseline"], "--seed", -1),
    ):
        result = play(*arguments)
        assert (result.returncode, result.stdout) == (2, ""), arguments
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
