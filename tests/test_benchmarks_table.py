"""The table and its chart, from event files with known answers."""

import dataclasses
import os
import time
from pathlib import Path

from benchmarks.__main__ import main
from benchmarks.records import read_record, read_records
from benchmarks.table import fps_to_01
from lib.training.hparams import write_settings

from conftest import ROOT, read_csv
from tensorboard.backend.event_processing import event_accumulator
from torch.utils.tensorboard import SummaryWriter

KEPT = ROOT / "results/epyc-zen5-2core/solved"
MACHINE = {"device": "cpu", "gpu": "none", "cpu": "Abacus 3000", "cores": 2, "torch": "2.13.0"}
SETTINGS = {"cuda": False, "stop_reward": 17.0, "max_frames": 0, "run_dir": "runs", "amp": False}
TRAINED = {"time_passed": (60.0, 120.0), "frames": (6_000.0, 12_000.0), "avg_fps": (30.0, 44.0)}
TRAINED = {f"train/{name}": values for name, values in TRAINED.items()}


def write_run(
    folder, script, seed=0, episodes=(), outcome=None, machine=MACHINE, scalars=None, **settings
) -> Path:
    """Write the events of a run as the rungs do; without an outcome it is not finished.

    Of each episode: seconds, frames and avg_reward at its end.
    """
    run = folder / f"{script}-pong-seed{seed}-{len(list(folder.glob('*')))}"
    games = zip(*((*values, values[-1], 1_000) for values in episodes), strict=True)
    curves = dict(zip(["time_passed", "frames", "avg_reward", "reward", "steps"], games))  # noqa: B905
    tags = {f"episodes/{name}": values for name, values in curves.items()} | (scalars or {})
    with SummaryWriter(run) as writer:
        write_settings(run, SETTINGS | settings | {"seed": seed, "script": script} | machine)
        for tag, values in tags.items():
            for number, value in enumerate(values, start=1):
                writer.add_scalar(tag, value, number)
        for name, value in (outcome or {}).items():
            writer.add_scalar(f"outcome/{name}", value)
    return run


def solved_run(folder, script, seed=0, minutes=1, fps=100, **more) -> Path:
    frames = int(minutes * 60 * fps)
    episodes = [(minutes * 20, frames // 3, -20.0), (minutes * 60, frames, 17.1)]
    outcome = {"frames": frames, "seconds": minutes * 60, "fps": fps, "solved": 1.0}
    return write_run(folder, script, seed, episodes, outcome=outcome, **more)


def table_of(folder: Path, *flags: str) -> list[dict[str, str]]:
    """The table of the runs in a folder, written there."""
    assert main(["table", str(folder), *flags]) == 0
    return read_csv(folder / "table.csv")


def column(table: list[dict[str, str]], name: str) -> list[str]:
    return [row[name] for row in table]


def test_medians_ranges_and_the_ratio_to_01(tmp_path: Path) -> None:
    for seed, (minutes, fps) in enumerate([(100, 150), (120, 160), (90, 170)]):
        solved_run(tmp_path, "01_baseline", seed, minutes, fps)
    for seed, (minutes, fps) in enumerate([(50, 320), (60, 310), (40, 330)]):
        games = {"evaluation/reward": (18 + seed, 20 + seed)}
        run = solved_run(tmp_path, "03_parallel", seed, minutes, fps, scalars=games)
    (run / "commit.txt").write_text("1a2b3c4-dirty\n")
    (tmp_path / "commit.txt").write_text("5d6e7f8\n")  # of all runs that do not tell their own
    assert table_of(tmp_path)[1] == {
        "rung": "03_parallel",
        "seeds": "0-2",
        "solved": "3 of 3",
        "FPS": "320 (310 to 330)",
        "FPS / 01's": "1.88 (1.82 to 1.94)",  # the last run of 01 began last
        "frames": "960,000 (792,000 to 1,116,000)",
        "minutes": "50.0 (40.0 to 60.0)",
        "avg_reward": "17.1",
        "evaluation": "20.0 (19.0 to 21.0)",
        "book: FPS (/ 01's)": "402 (2.53); 290 (1.27)",
        "book: minutes (/ 01's)": "59 (0.56); 31.2 (0.60)",
    }
    assert "commit 1a2b3c4-dirty, 5d6e7f8\n" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


def test_runs_that_did_not_solve_say_how_far_they_came(tmp_path: Path) -> None:
    games = [(60, 1_000, -20.9), (1_000, 49_000, -19.3)]
    limit = {"frames": 50_000, "seconds": 1_200, "fps": 41.5, "solved": 0}
    write_run(tmp_path, "00_slow_grads", 0, games, outcome=limit, max_frames=50_000)
    write_run(tmp_path, "01_baseline", 0, [(60, 900, -21.0)], scalars=TRAINED)  # killed
    filled = {"frames": 200, "updates": 0, "seconds": 1, "fps": 900, "solved": 0}
    write_run(tmp_path, "03_parallel", outcome=filled, max_frames=200)  # these FPS are not training
    # Stopped by Ctrl-C: there is an outcome, but it was not to end there.
    write_run(tmp_path, "05_new", outcome={"frames": 99, "seconds": 9, "fps": 11, "solved": 0})
    # Killed while the buffer filled, and after a game; its avg_reward was there, its trial lost.
    filling = {"filling/time_passed": [60.0], "filling/frames": [1_000.0]}
    write_run(tmp_path, "06_filling", scalars=filling)
    write_run(tmp_path, "06_game", 0, [(300, 20_000, -21.0)], scalars=TRAINED)
    reached = {"frames": 9_000, "seconds": 180, "reached_frames": 6_000, "reached_minutes": 2}
    write_run(tmp_path, "06_tried", outcome=reached)
    table, unfinished = table_of(tmp_path), "0 of 1, 1 unfinished"
    assert column(table, "solved") == ["0 of 1", unfinished, "0 of 1", *[unfinished] * 4]
    # One was to run for so many frames; the others to 17, which they would have reached later.
    frames = "50,000; > 12,000; 200; > 99; > 1,000; > 20,000; > 9,000"
    assert "; ".join(column(table, "frames")) == frames
    assert "; ".join(column(table, "minutes")) == "20.0; > 2.0; 0.0; > 0.1; > 1.0; > 5.0; > 3.0"
    assert column(table, "avg_reward")[:3] == ["-19.3", "-21.0", "no game ended"]
    assert column(table, "FPS")[:3] == ["41.5", "44.0", "did not train"]


def test_held_out_runs_that_did_not_solve_it_count_as_the_limit(tmp_path: Path) -> None:
    for seed in (1_000, 1_001):
        solved_run(tmp_path, "07_speedrun", seed, 4, 2_000, max_frames=2_000_000)
    outcome = {"frames": 2_000_400, "seconds": 16 * 60, "fps": 2_000, "solved": 0}
    write_run(tmp_path, "07_speedrun", 1_003, outcome=outcome, max_frames=2_000_000)
    ends = {"frames": 9_000, "seconds": 180, "fps": 50, "solved": 1}
    at_17 = {"reached_frames": 6_000, "reached_minutes": 2}  # and trained on for its trial
    write_run(tmp_path, "08_recompiled_pong", outcome=ends | at_17, scalars={"trial/won": [60, 64]})
    row, tried = table_of(tmp_path)
    assert (tried["frames"], tried["minutes: trial won"]) == ("6,000", "3.0")
    assert row["seeds"] == "1000-1001, 1003 (held out)"
    solved_run(tmp_path, "07_speedrun", 0, 4, 2_000, max_frames=2_000_000)
    again = os.path.relpath(tmp_path), "--out", str(tmp_path)  # each run counts once
    assert table_of(tmp_path, *again)[0]["seeds"] == "0, 1000-1001, 1003"
    assert (row["solved"], row["frames"]) == ("2 of 3", "480,000 (480,000 to > 2,000,400)")
    assert row["minutes"] == "4.0 (4.0 to > 16.0)"


def test_fps_are_held_against_01_of_the_same_hour(tmp_path: Path) -> None:
    (run,) = read_records(solved_run(tmp_path, "07_speedrun", fps=2_000))
    baseline = dataclasses.replace(run, script="01_baseline")
    for later, ratio in ((60, 40), (8_000, 25), (20_000, None)):
        records = [
            dataclasses.replace(baseline, fps=fps, started=started, **others)
            for fps, started, others in [
                *((50, 0, {}), (80, 9_000, {})),
                *((7, later, {"settings": {"amp": 1.0}}), (6, later, {"machine": {"cores": 4.0}})),
            ]
        ]
        assert fps_to_01(dataclasses.replace(run, started=later), records) == ratio


def test_lines_tell_machines_and_unusual_settings_apart(tmp_path: Path) -> None:
    solved_run(tmp_path, "02", steps=4.0)  # none is usual
    solved_run(tmp_path, "02", steps=2.0)
    for settings in ({}, {"stack": 4.0}, {"gamma": 0.97}):
        solved_run(tmp_path, "07", **{"stack": 2.0, "gamma": 0.99} | settings)
    for number, threads in enumerate((1, 2, 2)):  # and one that was resumed is as the others
        others = dict.fromkeys(("run_dir", "resume", "checkpoint_every"), f"runs/{number}")
        solved_run(tmp_path, "09", machine=MACHINE | {"threads": threads}, **others)
    solved_run(tmp_path, "10", machine=MACHINE | {"cpu": "another"})
    table = table_of(tmp_path)
    labels = ["02 (steps 4)", "02 (steps 2)", "07", "07 (stack 4)", "07 (gamma 0.97)"]
    assert column(table, "rung") == [*labels, "09 (threads 1)", "09 (threads 2)", "10"]
    assert column(table, "machine") == ["1"] * 7 + ["2"]  # one and two threads are one machine


def test_a_row_names_game_and_settings_that_are_not_compared(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    pong = {"batch_size": 32.0, "gamma": 0.98, "env": "PongNoFrameskip-v4"}
    for fps, settings in ((100, {}), (50, {"env": "BreakoutNoFrameskip-v4"})):
        solved_run(tmp_path, "01_baseline", fps=fps, **pong | settings)
    for settings in ({}, {"envs": 6.0}, {"batch_size": 64.0, "learning_rate": 2e-4}):
        solved_run(tmp_path, "02_n_envs", fps=200, **{"envs": 3.0} | pong | settings)
    table, rung = table_of(tmp_path, "--curves"), "02_n_envs"
    changed = f"{rung} (batch_size 64, learning_rate 0.0002)"
    rungs = ["01_baseline", "01_baseline (Breakout)", rung, f"{rung} (envs 6)", changed]
    assert column(table, "rung") == rungs
    assert column(table, "FPS / 01's") == ["1.00", "1.00", "2.00", "2.00", ""]
    assert "book: FPS (/ 01's)" not in table[0]  # gamma is none of the book's
    out = capsys.readouterr().out
    assert "in all runs that have them: gamma 0.98" in out
    assert "\n02_n_envs" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80
    lines = read_csv(tmp_path / "runs.csv")
    assert (lines[-1]["learning_rate"], lines[0]["learning_rate"]) == ("0.0002", "")
    (*_, curve) = sorted((tmp_path / "curves").iterdir())
    episodes = "seconds,frames,avg_reward,reward,steps\n20.0,4000.0,-20.0,-20.0,1000.0\n"
    assert curve.read_text().startswith(episodes)


def test_learning_curves_by_frames(tmp_path: Path) -> None:
    """A solved run stays in the median with its last column; one that ended ends it."""
    runs = [(9, 150_000, 18)], [(9, 200_000, -10), (15, 250_000, 6)]
    runs += ([(2, 150_000, -19), (3, 250_000, -18), (4, 400_000, -17)],)
    for seed, games in enumerate(runs):
        end = {"frames": games[-1][1], "seconds": 9, "solved": seed == 0}
        write_run(tmp_path, "07_speedrun", seed, games, outcome=end, max_frames=400_000)
    middle, one, other, _ = table_of(tmp_path, "--every", "100000")
    # A game belongs to where it ended; the one at 200,000 frames to the columns before.
    assert middle["100-200"] == "-10.0 (-19.0 to 18.0) / 1,000"
    assert (one["200-300"], other["300-400"]) == ("-", "-")
    assert middle["200-300"] == "6.0 (-18.0 to 18.0) / 1,000"
    assert middle["300-400"] == "-"


def test_a_resumed_run_has_its_last_settings_and_gives_way_to_a_finished_one(tmp_path) -> None:
    run = write_run(tmp_path, "01_baseline", scalars=TRAINED, max_frames=9)
    resumed = time.time()
    write_settings(run, SETTINGS | {"script": "01_baseline", "seed": 0} | MACHINE)
    (record,) = read_records(tmp_path)
    assert record.settings["max_frames"] == 0
    assert record.started < resumed
    assert column(table_of(tmp_path), "FPS") == ["44.0"]
    solved_run(tmp_path, "01_baseline", 0, 10, 100)
    assert column(table_of(tmp_path), "FPS") == ["100"]
    assert "Left out: 1 unfinished runs" in (tmp_path / "table.md").read_text()


def test_kept_runs_whose_settings_are_among_the_curves_make_the_kept_table(tmp_path) -> None:
    assert main(["table", str(KEPT / "runs"), "--every", "100000", "--out", str(tmp_path)]) == 0
    for name in ("table.csv", "table.md"):
        assert (tmp_path / name).read_text() == (KEPT / name).read_text()
    lines, kept = (read_csv(folder / "runs.csv") for folder in (tmp_path, KEPT))
    assert all(old.items() <= new.items() for old, new in zip(kept, lines, strict=True))


def test_a_truncated_file_is_read_as_far_as_it_goes(tmp_path, capsys, monkeypatch) -> None:
    episodes = [(float(n), n * 100, -21.0 + n) for n in range(1, 30)]
    run = write_run(tmp_path, "01_baseline", episodes=episodes)
    file = max(run.iterdir(), key=lambda file: file.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1_000])
    # TensorBoard keeps 10,000 points of a curve by default, here 5; the others are not lost.
    monkeypatch.setitem(event_accumulator.DEFAULT_SIZE_GUIDANCE, "scalars", 5)
    record = read_record(run)
    assert record is not None
    assert 0 < len(record.curves.frames) < 29
    assert record.avg_reward == -21.0 + len(record.curves.frames)
    (run / "events.out.tfevents.0.hparams").write_bytes(b"\x00\xff" * 500)
    assert main(["table", str(tmp_path)]) == 2
    assert "no run of a rung" in capsys.readouterr().err


def test_it_says_when_precisions_stand_side_by_side(tmp_path: Path) -> None:
    solved_run(tmp_path / "both", "01_baseline")
    solved_run(tmp_path / "both", "07_speedrun", precision="bfloat16")
    solved_run(tmp_path / "one", "01_baseline", amp=True)
    solved_run(tmp_path / "one", "07_speedrun", precision="bfloat16")
    for folder, expected in (("both", True), ("one", False)):
        rungs = column(table_of(tmp_path / folder), "rung")
        assert rungs == ["01_baseline" + " (amp 1)" * (not expected), "07_speedrun"]
        notes = (tmp_path / folder / "table.md").read_text()
        assert ("07_speedrun in bfloat16, the others in float32" in notes) == expected
    table_of(tmp_path, "--curves")  # runs of one name
    assert len([*(tmp_path / "curves").iterdir()]) == 4
