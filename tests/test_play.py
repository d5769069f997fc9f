"""Watching agents: play.py with the shipped agent, and on checkpoints of real runs."""

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

from lib.envs.preprocessing import Preprocessing
from lib.training.checkpoints import find_checkpoint, read_checkpoint
from lib.training.evaluation import SEED, load_agent, make_games, play_games
from play import SHIPPED, main

import numpy as np
import pytest
import torch
from conftest import ROOT, one_line
from helpers import Screen, listed
from imageio_ffmpeg import count_frames_and_secs
from PIL import Image


@pytest.fixture
def play(ends):
    return lambda *arguments: ends(main, "play.py", *arguments)


def score_of(line: str) -> int:
    return int(re.search(r"score +(-?\d+)", line)[1])


@pytest.mark.usefixtures("console")
def test_the_shipped_agent_wins_on_the_emulator():
    """Preprocessing, network and emulator are those it learned with."""
    assert SHIPPED.stat().st_size < 1_000_000
    network, preprocessing = load_agent(read_checkpoint(SHIPPED))
    assert preprocessing.vector_env  # so play.py shows it what it learned from
    games = make_games(preprocessing, np.arange(70, 86))
    ends = play_games(games, network, 0.01, network.temperature)
    rewards = [game.reward for ended in ends for _, game in ended]
    # It lost fewer than one game in a hundred; other processors round differently.
    assert sum(reward > 0 for reward in rewards) >= 15
    assert sorted(rewards)[8] >= 18


def test_the_shipped_agent_wins_on_ales_environment_until_ctrl_c():
    # These tests may have been started with SIGINT ignored, which children inherit.
    program = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "runpy.run_path('play.py', run_name='__main__')"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--episodes", "1000"],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        first, _, game = (process.stdout.readline() for _ in range(3))
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, error) == (130, "")
    assert re.match(r"\d+ games?, mean", out.splitlines()[-1])
    assert "weights" in first
    assert score_of(game) > 0


def test_it_prints_every_score_and_their_mean(trained, play, monkeypatch):
    run = trained("01_baseline").folder
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    result = play(run, "--episodes", 2, "--epsilon", 1)
    first, _, *games, last = result.out.splitlines()
    assert re.search(r"best\.pt: 01_baseline after [\d,]+ frames", first)
    scores = [score_of(line) for line in games]
    assert last.startswith(f"2 games, mean {sum(scores) / 2:.2f}, ")
    assert games[0][9:] != games[1][9:]  # each has its seed
    live = screen.getvalue()  # each score begins at zero
    assert live.index("game   2  score     0") == live.index("game   2")
    one = ("--episodes", 1, "--epsilon", 1)
    assert games[1][9:] in play(run, *one, "--seed", SEED + 1).out
    sticky = play(run, *one, "--sticky").out
    assert "sticky" in sticky
    assert games[0] not in sticky
    monkeypatch.setattr("play.play_game", lambda *_: signal.default_int_handler(2, None))
    with pytest.raises(KeyboardInterrupt):  # in the first game: there is no mean
        play(run)


FULL = "play.py: failed: [Errno 28] No space left on device"


@pytest.mark.parametrize(("name", "code"), [("play", 141), ("pong_emulator", 141), ("play", FULL)])
def test_it_ends_when_nobody_reads_or_the_disk_is_full(name, code, trained, ends, monkeypatch):
    run, (reader, writer) = trained("01_baseline").folder, os.pipe()
    os.close(reader)
    file = os.open("/dev/full", os.O_WRONLY) if code == FULL else writer
    monkeypatch.setattr(sys, "stdout", os.fdopen(file, "w"))
    result = ends(lambda: runpy.run_module(name, run_name="__main__"), name, run, "--epsilon", 1)
    with suppress(OSError):  # what it holds cannot be written
        sys.stdout.close()
    assert (result.code, result.error) == (code, "")


def test_an_exported_agent_plays_the_same_and_is_small(trained, play, tmp_path):
    run, file = trained("07_speedrun").folder, tmp_path / "latest.pt"
    for name in ("latest.pt", "previous.pt"):
        (tmp_path / name).write_text("an earlier agent")
    assert play(run, "--export", file).code == 0
    assert (tmp_path / "previous.pt").read_text() == "an earlier agent"
    assert file.stat().st_size < 1_000_000
    games = [play(agent, "--episodes", 1).out for agent in (run, file)]
    assert games[0].splitlines()[1:] == games[1].splitlines()[1:]
    assert "score" in games[0]


def test_an_agent_of_another_game(tmp_path, play, program):
    flags = "--env BreakoutNoFrameskip-v4 --any-game --max-frames 60 --envs 2 --rollout 10"
    flags += " --batch-size 4 --schedule-frames 30 --run-dir"
    learned = program("07_speedrun", *flags.split(), tmp_path)
    assert learned.code == 0, learned.error
    (run,) = tmp_path.iterdir()
    net = read_checkpoint(find_checkpoint(run, "latest"))["net"]
    # From the 27th frame on the average moves slowly; no share of points says that here.
    assert any(not torch.equal(net["ema"][name], net["weights"][name]) for name in net["ema"])
    result = play(run, "--episodes", 1, "--epsilon", 1)
    assert result.code == 0, result.error
    assert score_of(result.out) >= 0
    _, whole = load_agent(read_checkpoint(find_checkpoint(run)))
    assert (whole.rows, whole.actions) == (Preprocessing.rows, None)
    assert "no goal" not in learned.out  # --max-frames ends it
    assert "stop_reward" not in listed(run)  # which names it as a column


@pytest.mark.parametrize("suffix", [".MP4", ".gif"])
def test_it_films_the_first_of_two_games(suffix, tmp_path, trained, play):
    video = tmp_path / f"pong{suffix}"
    result = play(trained("07_speedrun").folder, "--episodes", 2, "--epsilon", 1, "--video", video)
    assert result.code == 0, result.error
    _, _, first, found, second, _ = result.out.splitlines()
    speed = 4 if suffix == ".gif" else 1
    assert found == f"{video} shows this game at {speed} times the Atari's speed"
    assert second.startswith("game   2")
    steps = int(re.search(r"steps +([\d,]+)", first)[1].replace(",", ""))
    if suffix == ".gif":
        with Image.open(video) as gif:
            assert gif.size == (160, 210)
            assert gif.n_frames == (steps + 1) // 2
            assert gif.info["duration"] in (30, 40)
    else:
        frames, seconds = count_frames_and_secs(video)
        assert steps == frames
        assert seconds == pytest.approx(frames / 15, abs=0.1)


def test_an_agent_trained_without_no_ops_plays_both_kinds_of_games(trained, play):
    result = play(trained("04_new_wrappers_n_env").folder, "--episodes", 1, "--epsilon", 1)
    assert result.code == 0, result.error
    starts = [line[:8] for line in result.out.splitlines()[1:]]
    assert starts == ["games as", "game   1", "1 game, ", "games af", "game   1", "1 game, "]


def test_what_cannot_be_played_is_refused_in_one_line(tmp_path, trained, play, monkeypatch):
    run = trained("01_baseline").folder
    checkpoint = find_checkpoint(run, "latest")
    cut, foreign, strange = (tmp_path / f"{name}.pt" for name in ("cut", "foreign", "strange"))
    cut.write_bytes(checkpoint.read_bytes()[:100_000])
    torch.save(torch.zeros(3), foreign)
    torch.save(read_checkpoint(checkpoint) | {"net": {"conv.0.weight": torch.zeros(1)}}, strange)
    for display in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(display, raising=False)
    bad = ("--video pong.avi", "--episodes 0", "--render", "--render --video pong.mp4")
    bad += (f"--export {tmp_path}/missing/agent.pt", f"--export {tmp_path}")
    refused = [(run, *flags.split()) for flags in bad]
    for arguments in (*refused, (tmp_path,), (cut,), (foreign,), (strange,)):
        result = play(*arguments)
        assert (result.code, result.out) == (2, ""), arguments
        assert "".join(map(str, arguments[1:2])) in one_line(result.error)
    monkeypatch.setenv("DISPLAY", ":987")  # where nobody answers
    assert "no display answers (DISPLAY is :987)" in one_line(play(run, "--render").error)
    result = play(run.parent)
    assert (result.code, result.out) == (2, "")
    assert result.error.splitlines()[1:] == [f"  {run}"]


def test_the_first_whole_checkpoint_of_a_run_is_played(trained, play, tmp_path):
    agent, place = find_checkpoint(trained("01_baseline").folder), tmp_path / "checkpoints"
    place.mkdir()
    for kind in ("previous", "latest", "best", "solved"):  # each goes before the last ones
        shutil.copy(agent, place / f"{kind}.pt")
        assert find_checkpoint(tmp_path).stem == kind
    for kind in ("solved", "best"):
        (place / f"{kind}.pt").write_bytes(b"")
    result = play(tmp_path, "--export", tmp_path / "agent.pt")
    assert (result.code, result.out.count("\n")) == (0, 2)
    assert "solved.pt is damaged" in result.out
    assert "latest.pt takes its place\n" in result.out


def test_its_help_fits_a_terminal(play, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, play("--help").out.splitlines())) <= 80
