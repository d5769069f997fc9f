"""The ladder and a sweep end to end on real Pong."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.__main__ import main
from benchmarks.records import read_records
from benchmarks.runner import Job, progress, run_suite
from benchmarks.sweep import SWEEPS, cannot_run, cases

ROOT = Path(__file__).parent.parent
# Small batches: these tests are about what is run and recorded, not about speed.
TINY = ["--seeds", "0", "--frames", "320", "--replay-initial", "200"]
CHEAP = ["--", "--batch-size", "2"]
DEADLINE_SECONDS = 120


def test_runs_are_recorded_with_their_settings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "ladder", "--rungs", "01", "02", *TINY]
    threads = os.environ | {"OMP_NUM_THREADS": "1"}  # two rungs may run at a time
    command += ["--run-dir", str(tmp_path), *CHEAP]
    subprocess.run(command, cwd=ROOT, env=threads, check=True, timeout=DEADLINE_SECONDS)
    records = read_records(tmp_path)
    assert [record.script for record in records] == ["01_baseline", "02_n_envs"]
    for record in records:
        assert record.finished
        assert not record.solved
        assert 320 <= record.frames < 325
        assert record.fps
        assert record.settings["batch_size"] == 2  # what follows -- comes through
        assert record.settings["replay_initial"] == 200
        assert record.settings["epsilon_frames"] == 1  # else actions would be random, and free
        assert record.machine["cpu"]
        assert "run_dir" not in record.settings
        assert record.commit
    events = EventAccumulator(str(records[0].folder)).Reload()
    told = {"outcome/frames", "outcome/fps", "outcome/solved", "train/loss", "train/fps"}
    assert told | {"train/epsilon"} <= set(events.Tags()["scalars"])
    assert [(point.step, point.value) for point in events.Scalars("train/frames")] == [(100, 299)]


def test_sweep_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    whole = cases("wrappers")
    chosen = [case for case in whole if case.label in ("4 stacked frames", "resize: Pillow-SIMD")]
    monkeypatch.setattr("benchmarks.sweep.cases", lambda sweep: [whole[0], *chosen])
    command = ["sweep", "wrappers", *TINY, "--run-dir", str(tmp_path / "runs")]
    command += ["--out", str(tmp_path / "out"), *CHEAP]
    assert main(command) == 0
    with open(tmp_path / "out" / "sweep-wrappers.csv", newline="") as file:
        as_they_are, stacked, simd = csv.DictReader(file)
    assert as_they_are["FPS"]
    assert (as_they_are["change in FPS"], as_they_are["book: FPS"]) == ("", "445")
    assert stacked["flags"] == "04_new_wrappers_n_env --stack 4"
    assert stacked["change in FPS"].endswith(" %")
    assert simd["FPS"].startswith("not run: ")
    assert (tmp_path / "out" / "sweep-wrappers.png").stat().st_size > 0
    ran = sorted((tmp_path / "runs").iterdir())
    assert main(command) == 0
    assert "2 of 2 runs are complete" in capsys.readouterr().out
    assert sorted((tmp_path / "runs").iterdir()) == ran


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_give_flags_that_the_rungs_accept(name: str, tmp_path: Path) -> None:
    can_run = [case for case in cases(name) if not cannot_run(case, cuda=False)]
    assert can_run
    assert len({case.label for case in cases(name)}) == len(cases(name))
    jobs = [
        Job(ROOT / f"{case.script}.py", 0, ["--run-dir", str(tmp_path), *case.command[1:]])
        for case in can_run
    ]
    assert all(job.settings for job in jobs)
    distinct = {(job.script.stem, *sorted((job.settings or {}).items())) for job in jobs}
    assert len(distinct) == len(jobs)  # no two cases are the same run


def test_a_failed_rung_is_told_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, fine = tmp_path / "07_broken.py", tmp_path / "08_fine.py"
    broken.write_text("import sys\nsys.exit('one\\nthe reason')\n")
    fine.write_text("if __name__ == '__main__':\n    print('it ran')\n")
    jobs = [Job(broken, 0, []), Job(fine, 0, [])]
    assert run_suite(jobs, tmp_path / "runs") == 1
    assert capsys.readouterr().out.splitlines() == [
        "[1/2] 07_broken seed 0: failed (exit code 1): the reason",
        "[2/2] 08_fine seed 0: it ran",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    rung = tmp_path / "09_long.py"
    rung.write_text(
        "import os, time\n"
        "if __name__ == '__main__':\n"
        f"    os.symlink(str(os.getpid()), {str(tmp_path / 'pid')!r})\n"  # there at once
        "    time.sleep(600)\n"
    )
    suite = (
        "import signal, sys; from pathlib import Path; import benchmarks.ladder as ladder\n"
        "from benchmarks.__main__ import main\n"
        # These tests may have been started with SIGINT ignored, which children inherit.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"ladder.choose = lambda _: [Path({str(rung)!r})]\n"
        f"sys.exit(main(['ladder', '--run-dir', {str(tmp_path / 'runs')!r}]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", suite], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (tmp_path / "pid").is_symlink():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number
    with pytest.raises(ProcessLookupError):  # the rung ended before its suite
        os.kill(int(os.readlink(tmp_path / "pid")), 0)


def jobs_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[Job]:
    """What the ladder would run."""
    noted: list[Job] = []
    monkeypatch.setattr("benchmarks.ladder.run_suite", lambda jobs, run_dir: noted.extend(jobs))
    assert main(["ladder", "--run-dir", "runs/nowhere", *arguments]) == 0
    return noted


def test_held_out_seeds_and_01_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.runner.commit", lambda: "1a2b3c4")
    flags = ["--rungs", "07", "--solve", "--held-out", "--beside-01", "--", "--stack", "3"]
    jobs = jobs_of(monkeypatch, *flags)
    assert [job.seed for job in jobs] == [seed for seed in range(2_000, 2_010) for _ in range(2)]
    beside, speedrun = jobs[:2]
    assert beside.script.stem == "01_baseline"
    assert beside.settings == beside.defaults | {
        "max_frames": 4_000,
        "epsilon_frames": 1,
        "replay_initial": 2_000,
    }
    assert speedrun.settings == speedrun.defaults | {"max_frames": 2_000_000, "stack": 3}


def test_a_rung_that_cannot_run_here_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    jobs = jobs_of(monkeypatch, "--rungs", "01", "09", "--seeds", "0")
    assert [job.script.stem for job in jobs] == ["01_baseline"]
    out = capsys.readouterr().out
    assert "09_many_machines is left out: Ray is not installed" in out
    assert main(["ladder", "--rungs", "09"]) == 2


def test_chosen_rungs_interleave_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--solve", "--max-frames", "400000", "--seeds", "5-6", "6", "20"]
    jobs = jobs_of(monkeypatch, "--rungs", "04_new_wrappers_p", "01", *flags)
    rungs = ("01_baseline", "04_new_wrappers_parallel")
    assert [str(job) for job in jobs] == [f"{rung} seed {n}" for n in (5, 6, 20) for rung in rungs]
    assert {job.settings["max_frames"] for job in jobs if job.settings} == {400_000}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rungs", "99"], "--rungs 99"),
        (["--frames", "100"], "nothing to train"),
        (["--frames", "0"], "not a whole number"),
        (["--seeds", "x"], "not a seed"),
        (["--seeds", "9-0"], "not a seed"),
        (["--seeds", "1", "--held-out"], "not allowed with"),
        (["--max-frames", "9000"], "--max-frames is for --solve"),
        (["--rungs", "01", "--", "--steps", "2"], "01_baseline.py: unrecognized arguments"),
        (["--rungs", "01", "--", "--gamma", "7"], "01_baseline.py: argument --gamma: 7"),
        (["--rungs", "01", "--solve", "--held-out"], "changes that are not committed"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.runner.commit", lambda: "1a2b3c4-dirty")
    try:
        code: Any = main(["ladder", "--run-dir", str(tmp_path), *arguments])
    except SystemExit as end:
        code = end.code
    assert code == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_progress_of_a_run() -> None:
    line = "episode    9  reward   -20  avg_reward -20.81  steps   812  frames     5,120  training"
    assert progress(line, {"max_frames": 10_240.0, "stop_reward": 17.0}) == 0.5
    assert progress(line, {"stop_reward": 17.0}) == pytest.approx(0.19 / 38)
    assert progress("training begins at frame 200", {}) == 0.0
