"""The table and the chart, from event files with known answers."""

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from benchmarks import charts
from benchmarks.__main__ import main
from benchmarks.charts import Curve, common_grid
from benchmarks.records import read_record, read_records
from benchmarks.table import bootstrap_interval, fps_to_01, interquartile_mean

MACHINE = {"device": "cpu", "gpu": "none", "cpu": "Abacus 3000", "cores": 2, "torch": "2.13.0"}
SETTINGS = {"cuda": False, "stop_reward": 17.0, "max_frames": 0, "run_dir": "runs", "amp": False}
OUTCOME = ("frames", "updates", "episodes", "seconds", "fps", "avg_reward", "solved")


def write_run(
    folder: Path,
    script: str,
    seed: int = 0,
    episodes: Sequence[tuple[float, int, float]] = (),  # seconds, frames, avg_reward
    train: Sequence[tuple[float, int, float]] = (),  # seconds, frames, avg_fps
    outcome: dict[str, float] | None = None,
    evaluation: Sequence[float] = (),
    trial: Sequence[float] = (),
    machine: dict = MACHINE,
    **settings: float | str,
) -> Path:
    """Write the events of a run as the rungs do; without an outcome it is not finished."""
    run = folder / f"2026-01-01T00-00-00-pong-{script}-seed{seed}-{len(list(folder.glob('*')))}"
    writer = SummaryWriter(run)
    values = SETTINGS | settings | {"seed": seed, "script": script} | machine
    experiment, begin, end = hparams(values, {f"outcome/{name}": 0 for name in OUTCOME})
    writer.file_writer.add_summary(experiment)
    writer.file_writer.add_summary(begin)
    curves = {
        "train": (("time_passed", "frames", "avg_fps"), train),
        "episodes": (
            ("time_passed", "frames", "avg_reward", "reward", "steps"),
            [(*values, values[-1], 1_000) for values in episodes],
        ),
        "evaluation": (("reward",), [(reward,) for reward in evaluation]),
        "trial": (("won",), [(won,) for won in trial]),
    }
    for tag, (names, points) in curves.items():
        for number, values in enumerate(points, start=1):
            for name, value in zip(names, values, strict=True):
                writer.add_scalar(f"{tag}/{name}", value, number)
    if outcome is not None:
        for name, value in outcome.items():
            writer.add_scalar(f"outcome/{name}", value)
        writer.file_writer.add_summary(end)
    writer.close()
    return run


def solved_run(
    folder: Path, script: str, seed: int = 0, minutes: float = 1, fps: float = 100, **more: Any
) -> Path:
    frames = int(minutes * 60 * fps)
    episodes = [(minutes * 20, frames // 3, -20.0), (minutes * 60, frames, 17.1)]
    outcome = {"frames": frames, "seconds": minutes * 60, "fps": fps, "solved": 1.0}
    return write_run(folder, script, seed, episodes, outcome=outcome, **more)


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def table_of(folder: Path, *flags: str) -> dict[str, dict[str, str]]:
    """The table of the runs in a folder, written there, by what its lines are called."""
    assert main(["table", str(folder), *flags]) == 0
    return {row["rung"]: row for row in rows_of(folder / "table.csv")}


def column(table: dict[str, dict[str, str]], name: str) -> list[str]:
    return [row[name] for row in table.values()]


def test_medians_ranges_and_the_ratio_to_01(tmp_path: Path) -> None:
    for seed, (minutes, fps) in enumerate([(100, 150), (120, 160), (90, 170)]):
        solved_run(tmp_path, "01_baseline", seed, minutes, fps)
    for seed, (minutes, fps) in enumerate([(50, 320), (60, 310), (40, 330)]):
        games = (18 + seed, 20 + seed)
        run = solved_run(tmp_path, "03_parallel", seed, minutes, fps, evaluation=games)
    (run / "commit.txt").write_text("1a2b3c4-dirty\n")
    (tmp_path / "commit.txt").write_text("5d6e7f8\n")  # of all runs that do not tell their own
    table = table_of(tmp_path)
    baseline, parallel = table["01_baseline"], table["03_parallel"]
    assert baseline == baseline | {
        "seeds": "0-2",
        "solved": "3 of 3",
        "FPS": "160 (150 to 170)",
        "FPS / 01's": "1.00",
        "minutes": "100.0 (90.0 to 120.0)",
        "evaluation": "",
    }
    assert parallel == parallel | {
        "FPS": "320 (310 to 330)",
        "FPS / 01's": "1.88 (1.82 to 1.94)",  # the last run of 01 began last
        "minutes": "50.0 (40.0 to 60.0)",
        "frames": "960,000 (792,000 to 1,116,000)",
        "avg_reward": "17.1",
        "evaluation": "20.0 (19.0 to 21.0)",
        "book: FPS": "402 (+152 %); 290 (+27 %)",
        "book: minutes": "59 (-43 %); 31.2 (-40 %)",
    }
    assert "machine" not in parallel  # there is one
    text = (tmp_path / "table.md").read_text()
    assert "cpu Abacus 3000, cores 2, torch 2.13.0\n" in text
    assert "commit 1a2b3c4-dirty, 5d6e7f8\n" in text
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
    runs = rows_of(tmp_path / "runs.csv")
    assert [run["evaluation"] for run in runs] == [""] * 3 + ["19.000", "20.000", "21.000"]
    assert [run["evaluation_sd"] for run in runs] == [""] * 3 + ["1.000"] * 3
    assert {run["fps_to_01"] for run in runs[:3]} == {"1.000"}


def test_runs_that_did_not_solve_say_how_far_they_came(tmp_path: Path) -> None:
    games = [(60, 1_000, -20.9), (1_000, 49_000, -19.3)]
    limit = {"frames": 50_000, "seconds": 1_200, "fps": 41.5, "solved": 0}
    write_run(tmp_path, "00_slow_grads", 0, games, outcome=limit, max_frames=50_000)
    write_run(tmp_path, "01_baseline", 0, [(60, 900, -21.0)], [(120, 12_000, 44.0)])  # killed
    write_run(tmp_path, "02_n_envs")  # killed at once
    filled = {"frames": 200, "updates": 0, "seconds": 1, "fps": 900, "solved": 0}
    write_run(tmp_path, "03_parallel", outcome=filled, max_frames=200)  # these FPS are not training
    # Stopped by Ctrl-C: there is an outcome, but it was not to end there.
    stopped = {"frames": 99, "seconds": 9, "fps": 11, "solved": 0}
    write_run(tmp_path, "05_new", outcome=stopped)
    table = table_of(tmp_path)
    unfinished = "0 of 1, 1 unfinished"
    assert column(table, "solved") == ["0 of 1", unfinished, unfinished, "0 of 1", unfinished]
    # One was to run for so many frames; the others to 17, and so count as 2 million frames.
    assert column(table, "frames")[:2] == ["50,000", "> 2,000,000"]
    assert column(table, "minutes")[:2] == ["20.0", f"> {2 * 2_000_000 / 12_000:.1f}"]
    assert column(table, "avg_reward")[:4] == ["-19.3", "-21.0", "", ""]
    assert column(table, "FPS")[:4] == ["41.5", "44.0", "", ""]
    assert table["00_slow_grads"]["FPS / 01's"] == "0.94"
    assert "Runs: 5, 3 of them unfinished" in (tmp_path / "table.md").read_text()


def test_runs_that_did_not_solve_it_count_as_the_limit(tmp_path: Path) -> None:
    limit = {"max_frames": 2_000_000}
    for seed in range(8):
        solved_run(tmp_path, "07_speedrun", seed, 4, 2_000, **limit)
    for seed in (8, 9):
        outcome = {"frames": 2_000_400, "seconds": 16 * 60, "fps": 2_000, "solved": 0}
        write_run(tmp_path, "07_speedrun", seed, outcome=outcome, **limit)
    (row,) = table_of(tmp_path).values()
    assert row["solved"] == "8 of 10"
    assert row["frames"] == "480,000 (480,000 to > 2,000,400)"
    assert row["minutes"] == "4.0 (4.0 to > 16.0)"
    # The two are in the quarter that is left out, but not in every resample.
    assert row["frames: IQM (95 %)"].startswith("480,000 (480,000 to > ")


def test_an_agent_that_trained_on_until_it_won_its_trial_was_at_17_before(tmp_path: Path) -> None:
    ends = {"frames": 9_000, "seconds": 180, "fps": 50, "solved": 1}
    at_17 = {"reached_frames": 6_000, "reached_minutes": 2}
    write_run(tmp_path, "08_recompiled_pong", outcome=ends | at_17, trial=[60, 64])
    write_run(tmp_path, "01_baseline", outcome=ends | {"reached_frames": float("nan")})
    table = table_of(tmp_path)
    assert column(table, "frames") == ["9,000", "6,000"]
    assert column(table, "minutes") == ["3.0", "2.0"]
    assert column(table, "minutes: trial won") == ["", "3.0"]


def test_interquartile_mean_and_its_interval_by_hand() -> None:
    # Of ten runs the two lowest and the two highest go: (3 + 4 + 5 + 6 + 7 + 8) / 6.
    assert interquartile_mean(np.array([9, 1, 2, 10_000, 3, 4, 5, 6, 7, 8])) == 5.5
    assert list(interquartile_mean(np.array([[0, 4, 8], [1, 1, 1]]))) == [4, 1]  # nothing to leave
    # Resamples of (0, 0, 0, 12) hold k twelves, k of the binomial distribution (4, 1/4). The mean
    # of the middle two is 0 for k < 2 (73.8 % of the resamples), 6 for k = 2 (94.9 % with
    # those before), 12 above.
    for confidence, end in ((0.95, 12.0), (0.80, 6.0), (0.40, 0.0)):
        assert bootstrap_interval(np.array([0.0, 12.0, 0.0, 0.0]), confidence) == (0.0, end)


def test_seeds_say_whether_they_were_held_out(tmp_path: Path) -> None:
    ran = {
        "01_baseline": ((7, 0, 2, 1, 7), "0-2, 7, 7"),  # what was run twice is seen
        "02_n_envs": ((1_000, 1_001, 1_002), "1000-1002 (held out)"),  # published earlier
        "03_parallel": ((2_009, 2_000), "2000, 2009 (held out)"),
        "07_speedrun": ((5, 1_000), "5, 1000"),
        "08_recompiled_pong": ((1_010, 2_010), "1010, 2010"),
    }
    for rung, (seeds, _) in ran.items():
        for seed in seeds:
            solved_run(tmp_path, rung, seed)
    assert column(table_of(tmp_path), "seeds") == [told for _, told in ran.values()]


@pytest.mark.parametrize(("later", "ratio"), [(60, 40), (8_000, 25), (20_000, None)])
def test_fps_are_held_against_01_of_the_same_hour(
    later: int, ratio: float | None, tmp_path: Path
) -> None:
    started = {
        solved_run(tmp_path / "early", "01_baseline", 0, 1, 50): 0,
        solved_run(tmp_path / "late", "01_baseline", 0, 1, 80): 9_000,
        solved_run(tmp_path / "other settings", "01_baseline", 0, 1, 7, amp=True): later,
        solved_run(tmp_path / "run", "07_speedrun", 0, 1, 2_000): later,
    }
    records = [
        dataclasses.replace(record, started=1_000_000 + started[record.folder])
        for record in read_records(tmp_path)
    ]
    (run,) = (record for record in records if record.script == "07_speedrun")
    assert fps_to_01(run, records) == (ratio and pytest.approx(ratio, abs=0.005))


def test_an_unfinished_run_gives_way_to_its_repetition(tmp_path: Path) -> None:
    write_run(tmp_path, "01_baseline", train=[(1, 500, 5.0)])
    write_run(tmp_path, "01_baseline", train=[(1, 300, 3.0)])
    assert column(table_of(tmp_path), "FPS") == ["5.0"]
    solved_run(tmp_path, "01_baseline", 0, 10, 100)
    assert column(table_of(tmp_path), "FPS") == ["100"]
    assert "Left out: 2 unfinished runs" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (["steps 4", "steps 2"], ["07 (steps 4)", "07 (steps 2)"]),  # none is usual
        (["stack 2", "stack 4", "stack 2 gamma 0.97"], ["07", "07 (stack 4)", "07 (gamma 0.97)"]),
    ],
)
def test_other_settings_are_another_line(
    settings: list[str], lines: list[str], tmp_path: Path
) -> None:
    solved_run(tmp_path, "01_baseline", 0, 40, 100)
    for told in settings:
        names, values = told.split()[::2], map(float, told.split()[1::2])
        values = {"gamma": 0.99} | dict(zip(names, values, strict=True))
        solved_run(tmp_path, "07", 0, 10, 200, **values)
    table = table_of(tmp_path)
    assert list(table) == ["01_baseline", *lines]
    assert column(table, "FPS / 01's")[1:] == ["2.00"] * len(lines)


def test_any_runs_from_any_folders_on_any_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(charts, "reward_chart", lambda _, groups, about: drawn.extend(dict(groups)))
    gpu = MACHINE | {"device": "cuda", "gpu": "Voodoo 2"}
    first = solved_run(tmp_path / "a", "01_baseline", 7, 10, 100)
    solved_run(tmp_path / "b" / "c", "03_parallel", 8, 5, 300, machine=gpu)
    solved_run(tmp_path / "b", "03_parallel", 8, 5, 200)
    solved_run(tmp_path / "b", "01_baseline", 8, 5, 150, machine=gpu)
    solved_run(tmp_path / "d", "03_parallel", 9, 5, 300)
    # A folder that is named twice, or lies in another one, makes no run twice.
    folders = [str(first), str(tmp_path / "b"), str(tmp_path / "a")]
    assert main(["table", *folders, "--out", str(tmp_path / "out")]) == 0
    rows = rows_of(tmp_path / "out" / "table.csv")
    told = [" ".join(map(row.get, ("rung", "machine", "seeds", "FPS / 01's"))) for row in rows]
    assert told[:2] == ["01_baseline 1 7 1.00", "01_baseline 2 8 1.00"]
    assert told[2:] == ["03_parallel 1 8 2.00", "03_parallel 2 8 2.00"]
    text = (tmp_path / "out" / "table.md").read_text()
    assert "Machine 1: device cpu" in text
    assert "Machine 2: device cuda, gpu Voodoo 2" in text
    assert drawn == [f"{n}, machine {m}" for n in ("01_baseline", "03_parallel") for m in "12"]


def take_off(folder: Path, seed: int, rewards: list[float], **settings: float) -> Path:
    """A run of 400,000 frames with a game in the middle of each 100,000, and one at each end."""
    games = [(60.0 * n, 50_000 * n, reward) for n, reward in enumerate(np.repeat(rewards, 2), 1)]
    end = {"frames": 400_000, "seconds": 480, "fps": 833, "solved": 0}
    settings["max_frames"] = 400_000
    return write_run(folder, "07_speedrun", seed, games, outcome=end, **settings)


def test_learning_curves_by_frames(tmp_path: Path) -> None:
    for seed, rewards in enumerate(([-20, -19, -5, 5], [-20, -17, -4, 7], [-20, -15, -9, 3])):
        take_off(tmp_path, seed, rewards, gamma=0.97)
    take_off(tmp_path, 0, [-20, -10, 3, 15], gamma=0.99)
    assert main(["table", str(tmp_path), "--every", "100000"]) == 0
    middle, *runs, other = rows_of(tmp_path / "table.csv")
    assert {run["rung"] for run in (middle, *runs)} == {"07_speedrun (gamma 0.97)"}
    # A game belongs to where it ended; the one at 200,000 frames to the columns before.
    assert [run["200-300"] for run in runs] == ["-5.0 / 1,000", "-4.0 / 1,000", "-9.0 / 1,000"]
    assert (middle["seeds"], middle["solved"]) == ("0-2", "0 of 3")
    assert middle["100-200"] == "-17.0 (-19.0 to -15.0) / 1,000"
    assert middle["300-400"] == "5.0 (3.0 to 7.0) / 1,000"
    assert (other["rung"], other["300-400"]) == ("07_speedrun (gamma 0.99)", "15.0 / 1,000")


def test_a_median_of_the_curve_is_always_one_of_all_runs(tmp_path: Path) -> None:
    games = [(1, 50_000, -20), (9, 150_000, 18)], [(1, 50_000, -20), (9, 150_000, -10)]
    games[1].append((15, 250_000, 6))
    for seed, (frames, solved) in enumerate([(150_000, 1.0), (250_000, 0.0)]):
        end = {"frames": frames, "seconds": 9, "solved": solved}
        write_run(tmp_path, "07_speedrun", seed, games[seed], outcome=end, max_frames=400_000)
    take_off(tmp_path, 2, [-20, -20, -20, -20])
    assert main(["table", str(tmp_path), "--every", "100000"]) == 0
    middle, one, other, _ = rows_of(tmp_path / "table.csv")
    assert (one["200-300"], other["300-400"]) == ("-", "-")
    assert middle["200-300"] == "6.0 (-20.0 to 18.0) / 1,000"  # the solved run stays
    assert middle["300-400"] == "-"  # nobody knows how the other one would have gone on


def test_a_truncated_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    episodes = [(float(n), n * 100, -21.0 + n) for n in range(1, 30)]
    run = write_run(tmp_path, "01_baseline", episodes=episodes)
    (file,) = run.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * 0.75)])
    record = read_record(run)
    assert record is not None
    known = len(record.curves.frames)
    assert 0 < known < 29
    assert len(record.curves.seconds) == len(record.curves.avg_reward) == known
    assert record.avg_reward == pytest.approx(-21.0 + known)
    assert record.frames >= known * 100
    assert list(table_of(tmp_path)) == ["01_baseline"]


def test_what_is_no_run_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("not a run")
    for name, content in [("zero", b""), ("noise", b"\x00\xff" * 500)]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.out.tfevents.1.host.1.0").write_bytes(content)
    with SummaryWriter(tmp_path / "other") as writer:
        writer.add_scalar("loss", 1.0, 1)
    assert read_records(tmp_path) == []
    solved_run(tmp_path / "deep" / "down", "01_baseline", 3, 10, 100)
    (record,) = read_records(tmp_path)
    assert (record.script, record.seed, record.solved) == ("01_baseline", 3, True)


@pytest.mark.parametrize(
    ("folder", "flags", "message"),
    [
        ("empty", [], "no run of a rung"),
        ("runs", ["--every", "1"], "--every 1 makes 6000 columns"),
    ],
)
def test_what_cannot_be_told_is_one_line_and_exit_code_2(
    folder: str, flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solved_run(tmp_path / "runs", "01_baseline")
    assert main(["table", str(tmp_path / folder), *flags, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert message in err
    assert not (tmp_path / "out").exists()


def test_seeds_are_brought_to_a_common_grid() -> None:
    short = Curve(np.array([0.0, 10.0]), np.array([0.0, 10.0]), holds=True)
    long = Curve(np.array([2.0, 20.0]), np.array([2.0, 20.0]), holds=True)
    x, low, middle, high = common_grid([short, long])
    assert (x[0], x[-1]) == (2.0, 20.0)
    assert (low[-1], middle[-1], high[-1]) == (10.0, 15.0, 20.0)  # the solved run stays
    x, *_ = common_grid([short._replace(holds=False), long])
    assert x[-1] == 10.0  # nobody knows how the other one would have gone on
