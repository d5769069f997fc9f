"""Runs side by side, and the learning curve in figures."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from test_benchmarks_table import MACHINE, solved_run, write_run

from benchmarks.__main__ import main
from benchmarks.compare import Column, held, learning_curve, shown_range
from benchmarks.records import Curves, read_record

LIMIT = {"max_frames": 400_000}


def table_of(folder: Path) -> list[dict[str, str]]:
    with open(folder / "compare.csv", newline="") as file:
        return list(csv.DictReader(file))


def take_off(folder: Path, seed: int, rewards: list[float], **settings: float) -> Path:
    """A run of 400,000 frames with a game in the middle of each 100,000, and one at each end."""
    games = [(60.0 * n, 50_000 * n, reward) for n, reward in enumerate(np.repeat(rewards, 2), 1)]
    outcome = {"frames": 400_000, "seconds": 480, "fps": 833, "solved": 0}
    return write_run(folder, "07_speedrun", seed, games, outcome=outcome, **LIMIT, **settings)


def test_any_rungs_from_any_folders(tmp_path: Path) -> None:
    gpu = MACHINE | {"device": "cuda", "gpu": "Voodoo 2"}
    first = solved_run(tmp_path / "a", "01_baseline", 7, 10, 100)
    solved_run(tmp_path / "b" / "c", "03_parallel", 8, 5, 300, machine=gpu)
    solved_run(tmp_path / "d", "03_parallel", 9, 5, 300)
    out = tmp_path / "out"
    # A folder that is named twice, or lies in another one, makes no run twice.
    folders = [str(first), str(tmp_path / "b"), str(tmp_path / "a")]
    assert main(["compare", *folders, "--out", str(out)]) == 0
    rows = table_of(out)
    assert [(row["run"], row["seed"]) for row in rows] == [
        ("01_baseline (machine 1)", "7"),
        ("03_parallel (machine 2)", "8"),
    ]
    assert [row["end"] for row in rows] == ["solved", "solved"]
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    text = (out / "compare.md").read_text()
    assert "Machine 1: device cpu" in text
    assert "Machine 2: device cuda, gpu Voodoo 2" in text


def test_settings_over_seeds_by_frames(tmp_path: Path) -> None:
    take_off(tmp_path, 0, [-20, -19, -5, 5], gamma=0.97)
    take_off(tmp_path, 1, [-20, -17, -4, 7], gamma=0.97)
    take_off(tmp_path, 2, [-20, -15, -9, 3], gamma=0.97)
    take_off(tmp_path, 0, [-20, -10, 3, 15], gamma=0.99)
    assert main(["compare", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    *runs, middle, other = table_of(tmp_path / "out")
    assert {run["run"] for run in runs} == {"07_speedrun (gamma 0.97)"}
    assert [run["200-300"] for run in runs] == ["-5.0 / 1,000", "-4.0 / 1,000", "-9.0 / 1,000"]
    assert [run["end"] for run in runs] == ["frame limit"] * 3
    assert middle["run"] == "07_speedrun (gamma 0.97): median"
    assert middle["end"] == "0 of 3 solved"
    assert middle["100-200"] == "-17.0 (-19.0 to -15.0) / 1,000"
    assert middle["300-400"] == "5.0 (3.0 to 7.0) / 1,000"
    assert (other["run"], other["300-400"]) == ("07_speedrun (gamma 0.99)", "15.0 / 1,000")


def test_games_belong_to_where_they_ended(tmp_path: Path) -> None:
    run = take_off(tmp_path, 0, [-20, -19, -5, 5])
    record = read_record(run)
    assert record is not None
    frames, rewards = np.array([1, 100, 101, 250]), np.array([-21.0, -19.0, 5.0, 7.0])
    curves = Curves(frames / 10, frames, rewards, rewards, np.array([10.0, 30.0, 50.0, 70.0]))
    object.__setattr__(record, "curves", curves)
    assert learning_curve(record, range(0, 400, 100)) == [(-20, 20), (5, 50), (7, 70), None]


def test_a_median_is_always_one_of_all_runs() -> None:
    low, high = Column(-10, 3_000), Column(18, 2_000)
    assert held([low, high, None], solved=True) == [low, high, high]
    assert held([low, None, None], solved=False) == [low, None, None]
    assert shown_range([low, high]) == "4.0 (-10.0 to 18.0) / 2,500"
    assert shown_range([low, None]) == "-"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["missing"], "no run of a rung"), (["runs", "--every", "1"], "--every 1 makes 300000")],
)
def test_what_cannot_be_compared(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    solved_run(tmp_path / "runs", "01_baseline", 0, minutes=50, fps=100)
    assert main(["compare", *arguments, "--out", "out"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert message in err


def test_pictures_of_tensorboard_need_playwright(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    assert main(["screenshot", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "pip install -r requirements-screenshot.txt" in capsys.readouterr().err
