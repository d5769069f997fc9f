"""The table and its charts, from event files with known answers."""

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from benchmarks.__main__ import main
from benchmarks.records import read_record, read_records
from benchmarks.table import bootstrap_interval, fps_to_01, interquartile_mean

MACHINE = {"device": "cpu", "gpu": "none", "cpu": "Abacus 3000", "cores": 2, "torch": "2.13.0"}
SETTINGS = {"cuda": False, "stop_reward": 17.0, "max_frames": 0, "run_dir": "runs", "amp": False}
Points = Sequence[tuple[float, ...]]


def write_run(
    folder: Path,
    script: str,
    seed: int = 0,
    episodes: Points = (),  # seconds, frames, avg_reward
    train: Points = (),  # seconds, frames, avg_fps
    outcome: dict[str, float] | None = None,
    evaluation: Sequence[float] = (),
    trial: Sequence[float] = (),
    machine: dict = MACHINE,
    **settings: float | str,
) -> Path:
    """Write the events of a run as the rungs do; without an outcome it is not finished."""
    run = folder / f"{script}-pong-seed{seed}-{len(list(folder.glob('*')))}"
    with SummaryWriter(run) as writer:
        values = SETTINGS | settings | {"seed": seed, "script": script} | machine
        experiment, begin, _ = hparams(values, {"outcome/frames": 0})
        writer.file_writer.add_summary(experiment)
        writer.file_writer.add_summary(begin)
        curves: dict[str, tuple[Sequence[str], Points]] = {
            "train": (("time_passed", "frames", "avg_fps"), train),
            "episodes": (
                ("time_passed", "frames", "avg_reward", "reward", "steps"),
                [(*values, values[-1], 1_000) for values in episodes],
            ),
            "evaluation": (("reward",), [(reward,) for reward in evaluation]),
            "trial": (("won",), [(won,) for won in trial]),
        }
        for tag, (names, points) in curves.items():
            for number, point in enumerate(points, start=1):
                for name, value in zip(names, point, strict=True):
                    writer.add_scalar(f"{tag}/{name}", value, number)
        for name, value in (outcome or {}).items():
            writer.add_scalar(f"outcome/{name}", value)
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


def test_medians_ranges_and_both_ratios_to_01(tmp_path: Path) -> None:
    for seed, (minutes, fps) in enumerate([(100, 150), (120, 160), (90, 170)]):
        run = solved_run(tmp_path, "01_baseline", seed, minutes, fps)
    (run / "calibration.json").write_text('{"commit": "5d6e7f8"}')  # of older runs
    for seed, (minutes, fps) in enumerate([(50, 320), (60, 310), (40, 330)]):
        games = (18 + seed, 20 + seed)
        run = solved_run(tmp_path, "03_parallel", seed, minutes, fps, evaluation=games)
    (run / "commit.txt").write_text("1a2b3c4-dirty\n")
    (tmp_path / "commit.txt").write_text("5d6e7f8\n")  # of all runs that do not tell their own
    table = table_of(tmp_path)
    assert table["03_parallel"] == {
        "rung": "03_parallel",
        "seeds": "0-2",
        "solved": "3 of 3",
        "FPS": "320 (310 to 330)",
        "FPS / 01's": "1.88 (1.82 to 1.94)",  # the last run of 01 began last
        "frames": "960,000 (792,000 to 1,116,000)",
        "frames: IQM (95 %)": "956,000 (792,000 to 1,116,000)",
        "minutes": "50.0 (40.0 to 60.0)",
        "minutes / 01's": "0.50",
        "minutes: IQM (95 %)": "50.0 (40.0 to 60.0)",
        "avg_reward": "17.1",
        "evaluation": "20.0 (19.0 to 21.0)",
        "book: FPS (/ 01's)": "402 (2.53); 290 (1.27)",
        "book: minutes (/ 01's)": "59 (0.56); 31.2 (0.60)",
    }
    assert column(table, "FPS / 01's")[0] == "1.00"
    text = (tmp_path / "table.md").read_text()
    assert "cpu Abacus 3000, cores 2, torch 2.13.0\n" in text
    assert "commit 1a2b3c4-dirty, 5d6e7f8\n" in text
    for picture in ("table.png", "fps.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    runs = rows_of(tmp_path / "runs.csv")
    assert [run["evaluation"] for run in runs] == [""] * 3 + ["19.000", "20.000", "21.000"]


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
    assert column(table, "avg_reward")[:3] == ["-19.3", "-21.0", "no game ended"]
    assert column(table, "FPS")[:4] == ["41.5", "44.0", "did not train", "did not train"]
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
    # Resamples of (0, 0, 0, 12) hold k twelves, k of the binomial distribution (4, 1/4). The mean
    # of the middle two is 0 for k < 2 (73.8 % of the resamples), 6 for k = 2 (94.9 % with
    # those before), 12 above.
    for confidence, end in ((0.95, 12.0), (0.80, 6.0), (0.40, 0.0)):
        assert bootstrap_interval(np.array([0.0, 12.0, 0.0, 0.0]), confidence) == (0.0, end)


def test_seeds_say_whether_they_were_held_out(tmp_path: Path) -> None:
    ran = {
        "01_baseline": ((7, 0, 2, 1, 7), "0-2, 7, 7"),  # what was run twice is seen
        "02_n_envs": ((1_000, 1_001, 2_009, 3_000), "1000-1001, 2009, 3000 (held out)"),
        "07_speedrun": ((5, 1_000), "5, 1000"),
    }
    for rung, (seeds, _) in ran.items():
        for seed in seeds:
            write_run(tmp_path, rung, seed, outcome={"frames": 9}, max_frames=9)
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


def test_another_machine_is_another_line_which_says_why_it_has_no_ratio(tmp_path: Path) -> None:
    solved_run(tmp_path, "01_baseline", machine=MACHINE | {"threads": 2})
    solved_run(tmp_path, "02_n_envs", machine=MACHINE | {"threads": 1})
    solved_run(tmp_path, "02_n_envs", machine=MACHINE | {"threads": 2})
    assert main(["table", str(tmp_path)]) == 0
    rows = rows_of(tmp_path / "table.csv")
    assert [row["machine"] for row in rows] == ["1", "2", "1"]
    for name in ("FPS / 01's", "minutes / 01's"):
        assert [row[name] for row in rows] == ["1.00", "01 ran on machine 1", "1.00"]
    assert "Machine 2: device cpu, " in (tmp_path / "table.md").read_text()


def test_an_unfinished_run_gives_way_to_its_repetition(tmp_path: Path) -> None:
    write_run(tmp_path, "01_baseline", train=[(1, 500, 5.0)])
    write_run(tmp_path, "01_baseline", train=[(1, 300, 3.0)])
    assert column(table_of(tmp_path), "FPS") == ["5.0"]
    solved_run(tmp_path, "01_baseline", 0, 10, 100)
    assert column(table_of(tmp_path), "FPS") == ["100"]
    assert "Left out: 2 unfinished runs" in (tmp_path / "table.md").read_text()


def test_lines_name_unusual_settings(tmp_path: Path) -> None:
    solved_run(tmp_path, "02", steps=4.0)  # none is usual
    solved_run(tmp_path, "02", steps=2.0)
    for settings in ({}, {"stack": 4.0}, {"gamma": 0.97}):
        solved_run(tmp_path, "07", **{"stack": 2.0, "gamma": 0.99} | settings)
    told = ["02 (steps 4)", "02 (steps 2)", "07", "07 (stack 4)", "07 (gamma 0.97)"]
    assert list(table_of(tmp_path)) == told


def test_learning_curves_by_frames(tmp_path: Path) -> None:
    """A solved run stays in the median with its last column; one that ended ends it."""
    games = [(1, 50_000, -20), (9, 150_000, 18)], [(1, 50_000, -20), (9, 200_000, -10)]
    games[1].append((15, 250_000, 6))
    for seed, (frames, solved) in enumerate([(150_000, 1.0), (250_000, 0.0)]):
        end = {"frames": frames, "seconds": 9, "solved": solved}
        write_run(tmp_path, "07_speedrun", seed, games[seed], outcome=end, max_frames=400_000)
    last = [(1, 50_000, -20), (2, 150_000, -19), (3, 250_000, -18), (4, 400_000, -17)]
    end = {"frames": 400_000, "seconds": 9, "solved": 0}
    write_run(tmp_path, "07_speedrun", 2, last, outcome=end, max_frames=400_000)
    assert main(["table", str(tmp_path), "--every", "100000"]) == 0
    middle, one, other, _ = rows_of(tmp_path / "table.csv")
    # A game belongs to where it ended; the one at 200,000 frames to the columns before.
    assert middle["100-200"] == "-10.0 (-19.0 to 18.0) / 1,000"
    assert (one["200-300"], other["300-400"]) == ("-", "-")
    assert middle["200-300"] == "6.0 (-18.0 to 18.0) / 1,000"
    assert middle["300-400"] == "-"


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
    assert record.avg_reward == pytest.approx(-21.0 + known)
    assert record.frames >= known * 100


@pytest.mark.parametrize(
    ("folder", "flags", "message"),
    [
        ("noise", [], "no run of a rung"),
        ("runs", ["--every", "1"], "--every 1 makes 6000 columns"),
    ],
)
def test_what_cannot_be_told_is_one_line_and_exit_code_2(
    folder: str, flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solved_run(tmp_path / "runs", "01_baseline")
    for name, content in [("zero", b""), ("noise", b"\x00\xff" * 500)]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.out.tfevents.1.host.1.0").write_bytes(content)
    assert main(["table", str(tmp_path / folder), *flags, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert message in err
    assert not (tmp_path / "out").exists()
