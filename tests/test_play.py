"""Watching agents: play.py on checkpoints of real runs."""

import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from conftest import ROOT
from ignite.handlers import TensorboardLogger
from imageio_ffmpeg import count_frames_and_secs
from PIL import Image

from lib.learning import compiled_update
from lib.running.checkpoints import find_checkpoint, read_checkpoint
from lib.running.run import Run
from play import main


class Played(NamedTuple):
    """What play.py did."""

    code: int
    out: str
    error: str


@pytest.fixture
def play(monkeypatch, capfd) -> Callable[..., Played]:
    """Calls play.py's main in this process."""

    def play(*arguments: object) -> Played:
        monkeypatch.setattr("sys.argv", ["play.py", *map(str, arguments)])
        capfd.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return Played(code, *capfd.readouterr())

    return play


@pytest.mark.parametrize("script", ["01_baseline", "07_speedrun"])
def test_it_prints_every_score_and_their_mean(script, trained, play):
    run = trained(script).folder
    result = play(run, "--episodes", 2, "--epsilon", 1)
    assert result.code == 0, result.error
    first, _, *games, last = result.out.splitlines()
    assert re.search(rf"best\.pt: {script} after [12],\d\d\d frames", first)
    scores = [int(re.search(r"score +(-?\d+)", line)[1]) for line in games]
    assert len(scores) == 2
    assert last.startswith(f"2 games, mean {sum(scores) / 2:.2f}, ")
    assert play(run, "--episodes", 2, "--epsilon", 1).out == result.out


def test_an_exported_agent_plays_the_same_and_is_small(trained, play, tmp_path):
    run, file = trained("07_speedrun").folder, tmp_path / "agent.pt"
    assert play(run, "--export", file).code == 0
    assert file.stat().st_size < 1_000_000
    games = [play(agent, "--episodes", 1).out for agent in (run, file)]
    assert games[0].splitlines()[1:] == games[1].splitlines()[1:]
    assert "score" in games[0]


def test_ctrl_c_ends_it_without_a_traceback(trained):
    program = (
        "import runpy, signal\n"
        # These tests may have been started with SIGINT ignored, which children inherit.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "runpy.run_path('play.py', run_name='__main__')\n"
    )
    run = trained("01_baseline").folder
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(run), "--episodes", "1000", "--epsilon", "1"],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        while not process.stdout.readline().startswith("game "):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, error) == (130, "")


@pytest.mark.usefixtures("signals")
def test_an_agent_of_another_game(tmp_path, play, monkeypatch):
    monkeypatch.setattr(compiled_update, "compiles", lambda device: False)
    rung = runpy.run_path(str(ROOT / "07_speedrun.py"), run_name="07_speedrun")
    game = {"env": "BreakoutNoFrameskip-v4", "any_game": True, "max_frames": 60}
    options = rung["Options"](**game, envs=2, rollout=10, batch_size=4)
    with TensorboardLogger(tmp_path) as tensorboard:
        run = Run(options, torch.device("cpu"), tmp_path, tensorboard, "07_speedrun")
        assert rung["train"](options, run).iteration > 0
    result = play(tmp_path, "--episodes", 1, "--epsilon", 1)
    assert result.code == 0, result.error
    assert int(re.search(r"score +(\d+)", result.out)[1]) >= 0


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_it_films_the_first_of_two_games(suffix, tmp_path, trained, play):
    video = tmp_path / f"pong{suffix}"
    result = play(trained("07_speedrun").folder, "--episodes", 2, "--epsilon", 1, "--video", video)
    assert result.code == 0, result.error
    _, kind, first, told, second, _ = result.out.splitlines()
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


def test_an_agent_trained_without_no_ops_plays_both_kinds_of_games(trained, play):
    result = play(trained("04_new_wrappers_n_env").folder, "--episodes", 1, "--epsilon", 1)
    assert result.code == 0, result.error
    told = result.out.splitlines()[1:]
    assert [told[0], told[3]] == ["games as trained:", "games after up to 30 no-ops:"]
    assert [line[:8] for line in told[1::3]] == ["game   1"] * 2
    assert [line[:8] for line in told[2::3]] == ["1 games,"] * 2


def test_what_cannot_be_played_is_refused_in_one_line(tmp_path, trained, play):
    run = trained("01_baseline").folder
    checkpoint = find_checkpoint(run, "latest")
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
        (run, "--video", "pong.avi"),
        (run, "--export", tmp_path / "missing" / "agent.pt"),
        (run, "--episodes", 0),
        (run, "--seed", -1),
    ):
        result = play(*arguments)
        assert (result.code, result.out) == (2, ""), arguments
        assert len(result.error.strip().splitlines()) == 1, result.error
