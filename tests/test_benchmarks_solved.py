"""The protocol: robust figures, runs that did not solve the game, and scaled minutes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import UserError, calibration
from benchmarks.calibration import Calibration, Speed
from benchmarks.records import Curves, Record
from benchmarks.robust import bootstrap_interval, interquartile_mean
from benchmarks.solved import HEADER, Reference, frames_to_solve, reference_of, row

NO_GAMES = Curves(*[np.array([])] * 5)


def record(script: str = "07_speedrun", **values: Any) -> Record:
    known = {
        "folder": Path("nowhere"),
        "seed": 0,
        "settings": {"max_frames": 2_000_000.0},
        "machine": {"device": "cpu"},
        "curves": NO_GAMES,
        "fps": 2_000.0,
        "minutes": 5.0,
        "frames": 600_000,
        "avg_reward": 17.0,
        "evaluation": [],
        "solved": True,
        "finished": True,
        "started": 0.0,
        "calibration": None,
    }
    return Record(script=script, **(known | values))


def speed(updates: float, one_core: float, emulated: float) -> Speed:
    return Speed(updates, one_core, emulated, "2026-01-01T00:00:00Z")


def cells(runs: list[Record], reference: Reference | None = None) -> dict[str, str]:
    return dict(zip(HEADER, row("07", runs, reference or Reference([])), strict=True))


def test_interquartile_mean_by_hand() -> None:
    # Of ten runs the two lowest and the two highest go: (3 + 4 + 5 + 6 + 7 + 8) / 6.
    assert interquartile_mean(np.array([9, 1, 2, 10_000, 3, 4, 5, 6, 7, 8])) == 5.5
    assert interquartile_mean(np.array([1.0, 2.0, 6.0])) == 3.0  # nothing to leave out
    assert list(interquartile_mean(np.array([[0, 4, 8, 90], [1, 1, 1, 1]]))) == [6, 1]


def test_bootstrap_interval_by_hand() -> None:
    # Resamples of (0, 0, 0, 12) hold k twelves, k of the binomial distribution (4, 1/4). The mean
    # of the middle two is 0 for k < 2 (73.8 % of the resamples), 6 for k = 2 (94.9 % with
    # those before), 12 above.
    runs = np.array([0.0, 12.0, 0.0, 0.0])
    assert bootstrap_interval(runs, confidence=0.95) == (0.0, 12.0)
    assert bootstrap_interval(runs, confidence=0.80) == (0.0, 6.0)
    assert bootstrap_interval(runs, confidence=0.40) == (0.0, 0.0)


def test_ten_solved_runs() -> None:
    runs = [record(seed=n, frames=100_000 * n, minutes=float(n)) for n in range(1, 11)]
    line = cells(runs)
    assert line["seeds"] == "1-10"
    assert line["solved"] == "10 of 10"
    assert line["frames: median"] == "550,000"
    assert line["frames: worst"] == "1,000,000"
    assert line["frames: IQM (95 %)"].startswith("550,000 (")
    assert line["minutes: worst"] == "10.0"
    assert ">" not in "".join(line.values())


def test_seeds_say_whether_they_were_held_out() -> None:
    def seeds(*numbers: int) -> str:
        return cells([record(seed=number) for number in numbers])["seeds"]

    assert seeds(7, 0, 2, 1, 7) == "0-2, 7, 7"  # what was run twice is seen
    assert seeds(*range(1_000, 1_010)) == "1000-1009 (held out)"
    assert seeds(5, 1_000) == "5, 1000"


def test_runs_that_did_not_solve_it_count_as_the_limit() -> None:
    solved = [record(seed=n, frames=500_000, minutes=4.0) for n in range(8)]
    lost = [record(seed=n, frames=2_000_400, minutes=16.0, solved=False) for n in (8, 9)]
    line = cells([*solved, *lost])
    assert line["solved"] == "8 of 10"
    assert line["frames: median"] == "500,000"
    assert line["frames: worst"] == "> 2,000,400"
    # The two are in the quarter that is left out, but not in every resample.
    assert line["frames: IQM (95 %)"].startswith("500,000 (500,000 to > ")
    assert line["minutes: median"] == "4.0"
    assert line["minutes: worst"] == "> 16.0"
    assert cells(lost)["frames: median"] == "> 2,000,400"


def test_interrupted_runs_count_as_not_solved_at_the_limit() -> None:
    stopped = record(frames=500_000, minutes=4.0, solved=False, finished=False)
    line = cells([stopped])
    assert line["solved"] == "0 of 1, 1 unfinished"
    assert line["frames: worst"] == "> 2,000,000"
    assert line["minutes: worst"] == "> 16.0"
    no_limit = record(frames=500_000, solved=False, finished=False, settings={"max_frames": 0.0})
    assert frames_to_solve(no_limit) == 2_000_000


def test_minutes_are_scaled_to_a_machine_on_which_01_runs_at_70_fps() -> None:
    # 01 ran at half of 70 FPS, so a machine at 70 FPS does twice as much: 80, 60 and 16,000.
    slow_hour = Calibration(speed(30, 30, 8_000), speed(50, 30, 8_000))
    baseline = record("01_baseline", fps=35.0, calibration=slow_hour)
    reference = reference_of([baseline, record()])
    assert reference.speed("updates") == 80
    # Then the machine was faster: 120 updates and 90 on one core, half as much again as at 70 FPS.
    fast_hour = Calibration(speed(120, 90, 20_000), speed(120, 90, 20_000))
    assert reference.scale(record("02_n_envs", calibration=fast_hour)) == 1.5
    assert reference.scale(record(calibration=fast_hour)) == 1.5
    # 07 waits for one core's updates or for the emulator: the longer time counts.
    emulating = Calibration(speed(10, 30, 24_000))
    assert reference.scale(record(calibration=emulating)) == 1.5
    assert reference.scale(record("06_compiled_update", calibration=emulating)) == 1 / 8
    assert reference.scale(baseline) == 0.5
    line = cells([record(minutes=4.0, calibration=fast_hour)], reference)
    assert line["minutes: median"] == "4.0"
    assert line["scaled minutes: median"] == line["scaled minutes: worst"] == "6.0"


def test_what_cannot_be_scaled_is_left_empty() -> None:
    around = Calibration(speed(40, 30, 8_000))
    reference = reference_of([record("01_baseline", fps=70.0, calibration=around)])
    assert reference.scale(record(calibration=around)) == 1.0
    assert reference.scale(record()) is None  # nothing was measured around it
    assert reference.scale(record(calibration=around, machine={"device": "cuda"})) is None
    assert reference.scale(record("09_many_machines", calibration=around)) is None
    assert Reference([]).scale(record(calibration=around)) is None
    line = cells([record(calibration=around), record(seed=1)], reference)
    assert line["scaled minutes: median"] == ""  # of one of two runs it would be no median
    mixed = record("01_baseline", fps=70.0, settings={"amp": 1.0}, calibration=around)
    assert reference_of([mixed]).runs == []


def test_fps_are_held_against_01_of_the_same_hour() -> None:
    early = record("01_baseline", fps=50.0, minutes=1.0, started=0.0)
    late = record("01_baseline", fps=80.0, minutes=1.0, started=9_000.0)
    reference = reference_of([early, late])
    assert reference.ratio(record(fps=2_000.0, started=60.0)) == 40.0
    assert reference.ratio(record(fps=2_000.0, started=8_000.0)) == 25.0
    assert reference.ratio(record(fps=2_000.0, started=20_000.0)) is None
    assert cells([record(started=60.0)], reference)["FPS / 01's"] == "40.0"


def test_calibrations_are_kept_with_the_run(tmp_path: Path) -> None:
    assert calibration.read(tmp_path) is None
    whole = Calibration(speed(1.5, 2.5, 3.5), speed(4.5, 5.5, 6.5), "1a2b3c4-dirty")
    for kept in (Calibration(speed(1, 2, 3)), whole):
        calibration.write(tmp_path, kept)
        assert calibration.read(tmp_path) == kept
    assert whole.mean("updates") == 3.0
    assert whole.change() == 3.0  # of the updates; the others changed less
    assert Calibration(speed(1, 2, 3)).change() == 1.0
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text()[:30])
    with pytest.raises(UserError, match=r"calibration\.json is not a calibration"):
        calibration.read(tmp_path)
