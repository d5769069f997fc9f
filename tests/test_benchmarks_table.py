"""The table and the figures, from event files with known answers."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from benchmarks.__main__ import main
from benchmarks.plots import Curve, common_grid, rung_colour
from benchmarks.records import read_record, read_records
from benchmarks.runner import find_rungs

MACHINE = {
    "device": "cpu",
    "gpu": "none",
    "cpu": "Abacus 3000",
    "cores": 2,
    "threads": 2,
    "python": "3.11.7",
    "torch": "2.13.0",
}
SETTINGS = {"cuda": False, "stop_reward": 17.0, "max_frames": 0, "run_dir": "runs", "amp": False}
OUTCOME = ("frames", "updates", "episodes", "seconds", "fps", "avg_reward", "solved")
PICTURES = ("reward_over_time.png", "reward_over_frames.png", "fps.png")


def write_run(
    folder: Path,
    script: str,
    seed: int = 0,
    episodes: Sequence[tuple[float, int, float]] = (),  # seconds, frames, avg_reward
    train: Sequence[tuple[float, int, float]] = (),  # seconds, frames, avg_fps
    outcome: dict[str, float] | None = None,
    evaluation: Sequence[float] = (),
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
    for number, (seconds, frames, avg_fps) in enumerate(train, start=1):
        writer.add_scalar("train/avg_fps", avg_fps, 100 * number)
        writer.add_scalar("train/frames", frames, 100 * number)
        writer.add_scalar("train/time_passed", seconds, 100 * number)
    for number, (seconds, frames, avg_reward) in enumerate(episodes, start=1):
        writer.add_scalar("episodes/avg_reward", avg_reward, number)
        writer.add_scalar("episodes/frames", frames, number)
        writer.add_scalar("episodes/reward", avg_reward, number)
        writer.add_scalar("episodes/steps", 1_000, number)
        writer.add_scalar("episodes/time_passed", seconds, number)
    for number, reward in enumerate(evaluation, start=1):
        writer.add_scalar("evaluation/reward", reward, number)
    if outcome is not None:
        for name, value in outcome.items():
            writer.add_scalar(f"outcome/{name}", value)
        writer.file_writer.add_summary(end)
    writer.close()
    return run


def solved_run(
    folder: Path, script: str, seed: int, minutes: float, fps: float, **more: Any
) -> Path:
    frames = int(minutes * 60 * fps)
    return write_run(
        folder,
        script,
        seed,
        episodes=[(minutes * 20, frames // 3, -20.0), (minutes * 60, frames, 17.1)],
        outcome={"frames": frames, "seconds": minutes * 60, "fps": fps, "solved": 1.0},
        **more,
    )


def table_of(folder: Path, name: str = "table.csv") -> dict[str, dict[str, str]]:
    with open(folder / name, newline="") as file:
        return {row["script"]: row for row in csv.DictReader(file)}


def test_median_spread_and_change_over_seeds(tmp_path: Path) -> None:
    for seed, (minutes, fps) in enumerate([(100, 150), (120, 160), (90, 170)]):
        solved_run(tmp_path, "01_baseline", seed, minutes, fps)
    for seed, (minutes, fps) in enumerate([(50, 320), (60, 310), (40, 330)]):
        games = (18 + seed, 20 + seed)
        solved_run(tmp_path, "03_parallel", seed, minutes, fps, evaluation=games)
    assert main(["table", str(tmp_path)]) == 0
    table = table_of(tmp_path)
    baseline, parallel = table["01_baseline"], table["03_parallel"]
    assert baseline["seeds"] == "0, 1, 2"
    assert baseline["FPS"] == "160 (150-170)"
    assert baseline["minutes to solve"] == "100 (90-120)"
    assert baseline["change in FPS"] == baseline["change in time"] == ""
    assert parallel["FPS"] == "320 (310-330)"
    assert parallel["change in FPS"] == "+100 %"
    assert parallel["minutes to solve"] == "50.0 (40.0-60.0)"
    assert parallel["change in time"] == "-50 %"
    assert parallel["frames"] == "960,000 (792,000-1,116,000)"
    assert parallel["evaluation"] == "20.0 (19.0-21.0)"
    assert baseline["evaluation"] == ""
    assert parallel["2nd ed. FPS"] == "402 (+152 %)"
    assert parallel["2nd ed. minutes"] == "59 (-43 %)"
    assert parallel["3rd ed. FPS"] == "290 (+27 %)"
    text = (tmp_path / "table.md").read_text()
    assert "cpu Abacus 3000, cores 2" in text
    assert "torch 2.13.0" in text
    for name in PICTURES:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 7
    with open(tmp_path / "runs.csv", newline="") as file:
        runs = list(csv.DictReader(file))
    assert [run["evaluation"] for run in runs] == [""] * 3 + ["19.000", "20.000", "21.000"]
    assert [run["evaluation_sd"] for run in runs] == [""] * 3 + ["1.000"] * 3


def test_runs_that_did_not_solve_say_how_far_they_came(tmp_path: Path) -> None:
    write_run(
        tmp_path,
        "00_slow_grads",
        episodes=[(60, 1_000, -20.9), (1_000, 49_000, -19.3)],
        outcome={"frames": 50_000, "seconds": 1_100, "fps": 41.5, "solved": 0},
        max_frames=50_000,
    )
    write_run(  # as left behind by a run that was killed
        tmp_path, "01_baseline", episodes=[(60, 900, -21.0)], train=[(100, 12_000, 44.0)]
    )
    write_run(tmp_path, "02_n_envs")  # killed at once
    write_run(  # nothing was trained: the FPS are those of filling
        tmp_path,
        "03_parallel",
        outcome={"frames": 200, "updates": 0, "seconds": 1, "fps": 900, "solved": 0},
        max_frames=200,
    )
    write_run(  # stopped by Ctrl-C: there is an outcome, but it was not to end there
        tmp_path, "05_new", outcome={"frames": 99, "seconds": 9, "fps": 11, "solved": 0}
    )
    assert main(["table", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    table = table_of(tmp_path / "out")
    time = {script: row["minutes to solve"] for script, row in table.items()}
    assert time["00_slow_grads"] == "not solved, avg_reward -19.3 at 50,000 frames"
    assert time["01_baseline"] == "unfinished, avg_reward -21.0 at 12,000 frames"
    assert time["02_n_envs"] == "unfinished, no game completed in 0 frames"
    assert time["03_parallel"] == "not solved, no game completed in 200 frames"
    assert time["05_new"] == "unfinished, no game completed in 99 frames"
    fps = {script: row["FPS"] for script, row in table.items()}
    assert fps["00_slow_grads"] == "41.5"
    assert fps["01_baseline"] == "44.0"
    assert fps["02_n_envs"] == fps["03_parallel"] == ""
    assert table["00_slow_grads"]["change in FPS"] == "-6 %"
    assert "Runs: 5, 3 of them unfinished" in (tmp_path / "out" / "table.md").read_text()


def test_lucky_seeds_are_not_the_time_to_solve(tmp_path: Path) -> None:
    solved_run(tmp_path, "01_baseline", 0, 10, 100)
    solved_run(tmp_path, "02_n_envs", 0, 5, 200)
    write_run(tmp_path, "02_n_envs", 1, episodes=[(60, 8_000, -20.0)])
    main(["table", str(tmp_path)])
    row = table_of(tmp_path)["02_n_envs"]
    assert row["minutes to solve"] == (
        "5.0 in 1 of 2 runs; the others unfinished, avg_reward -20.0 at 8,000 frames"
    )
    assert row["change in time"] == ""


def test_an_unfinished_run_gives_way_to_its_repetition(tmp_path: Path) -> None:
    write_run(tmp_path, "01_baseline", train=[(1, 500, 5.0)])
    write_run(tmp_path, "01_baseline", train=[(1, 300, 3.0)])
    main(["table", str(tmp_path)])
    assert table_of(tmp_path)["01_baseline"]["FPS"] == "5.0"
    solved_run(tmp_path, "01_baseline", 0, 10, 100)
    main(["table", str(tmp_path)])
    assert table_of(tmp_path)["01_baseline"]["FPS"] == "100"
    assert "Left out: 2 unfinished runs" in (tmp_path / "table.md").read_text()


def test_other_settings_are_another_line(tmp_path: Path) -> None:
    solved_run(tmp_path, "03_parallel", 0, 10, 300, steps=4)
    solved_run(tmp_path, "03_parallel", 0, 20, 200, steps=2)
    solved_run(tmp_path, "01_baseline", 0, 40, 100)
    main(["table", str(tmp_path)])
    table = table_of(tmp_path)
    assert list(table) == ["01_baseline", "03_parallel (steps 4)", "03_parallel (steps 2)"]
    assert table["03_parallel (steps 2)"]["change in FPS"] == "+100 %"


def test_labels_name_what_is_unusual(tmp_path: Path) -> None:
    for number, settings in enumerate([{}, {"stack": 4}, {"gamma": 0.97}]):
        known = {"stack": 2, "gamma": 0.99} | settings
        solved_run(tmp_path, "07_speedrun", number, 10, 100, **known)
    main(["table", str(tmp_path)])
    assert list(table_of(tmp_path)) == [
        "07_speedrun",
        "07_speedrun (stack 4)",
        "07_speedrun (gamma 0.97)",
    ]


def test_every_machine_has_its_own_table(tmp_path: Path) -> None:
    gpu = MACHINE | {"device": "cuda", "gpu": "Voodoo 2"}
    solved_run(tmp_path, "01_baseline", 0, 100, 40)
    solved_run(tmp_path, "01_baseline", 1, 100, 40)
    solved_run(tmp_path, "01_baseline", 0, 10, 400, machine=gpu, cuda=True)
    solved_run(tmp_path, "03_parallel", 0, 5, 800, machine=gpu, cuda=True)
    solved_run(tmp_path, "03_parallel", 1, 5, 800, machine=gpu, cuda=True)
    main(["table", str(tmp_path)])
    assert table_of(tmp_path)["03_parallel"]["change in FPS"] == "+100 %"
    assert "Voodoo 2" in (tmp_path / "table.md").read_text()
    assert list(table_of(tmp_path, "table-2.csv")) == ["01_baseline"]
    assert "Voodoo" not in (tmp_path / "table-2.md").read_text()
    assert (tmp_path / "fps-2.png").exists()


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
    assert not record.finished
    assert main(["table", str(tmp_path)]) == 0


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


@pytest.mark.parametrize("folder", ["", "missing"])
def test_without_runs_there_is_one_line_and_exit_code_2(
    tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["table", str(tmp_path / folder)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "no run of a rung" in err
    assert list(tmp_path.iterdir()) == []


def test_seeds_are_brought_to_a_common_grid() -> None:
    short = Curve(np.array([0.0, 10.0]), np.array([0.0, 10.0]), holds=True)
    long = Curve(np.array([2.0, 20.0]), np.array([2.0, 20.0]), holds=True)
    x, low, middle, high = common_grid([short, long])
    assert (x[0], x[-1]) == (2.0, 20.0)
    assert (low[-1], middle[-1], high[-1]) == (10.0, 15.0, 20.0)  # the solved run stays
    x, *_ = common_grid([short._replace(holds=False), long])
    assert x[-1] == 10.0  # nobody knows how the other one would have gone on


def test_rungs_have_colours_of_their_own() -> None:
    rungs = list(find_rungs())
    assert len({rung_colour(name) for name in rungs}) == min(len(rungs), 10)
    assert rung_colour("99_unknown") == rung_colour("99_unknown")
