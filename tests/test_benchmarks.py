"""The benchmarks: what they start and end, what they measure, and their table of runs."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import Mock

from benchmarks import Failed, breakdown, charts, ladder, measuring, report, techniques
from benchmarks.__main__ import main
from benchmarks.breakdown import REST, Span, Worker, innermost
from benchmarks.peers import last_fps, measure
from benchmarks.records import read_record, read_records
from benchmarks.report import commit
from benchmarks.table import fps_to_01, minutes_to_01
from lib.training.hparams import write_settings

import pytest
import torch
from conftest import ROOT, read_csv
from fake_gpu import NAME, in_place_of_cuda
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text
from tensorboard.backend.event_processing import event_accumulator
from torch.utils.tensorboard import SummaryWriter


def test_a_real_run_is_recorded_and_not_repeated(tmp_path, capfd, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["ladder", "--rungs", "01", "--seeds", "0", "--vary", "batch-size", "2"]
    command += ["--run-dir", str(tmp_path), "--", "--replay-initial", "200", "--max-frames", "320"]
    assert main(command) == 0
    (record,) = read_records(tmp_path)
    assert (record.script, record.finished, record.frames) == ("01_baseline", True, 320)
    assert record.settings["batch_size"] == 2
    assert record.settings["epsilon_frames"] == 1  # else actions would be random, and free
    assert record.commit == commit()
    assert last_fps(capfd.readouterr().out) == round(record.fps, 1)
    assert main(command) == 0
    assert "1 of 1 runs are complete" in capfd.readouterr().out
    assert len(read_records(tmp_path)) == 1


def test_a_peer_does_not_inherit_how_our_threads_wait(tmp_path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ${GOMP_SPINCOUNT:-0} FPS\n")
    python.chmod(0o755)
    args = Namespace(python=python, cuda=False, amp=False, frames=1)
    assert os.environ["GOMP_SPINCOUNT"]
    assert measure("ptan", is_rung=False, args=args, seed=0) == 0


def test_a_changed_file_makes_a_commit_dirty(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(report, "ROOT", tmp_path)
    assert commit() == ""
    (tmp_path / "kept").write_text("kept")
    for command in ("init -q", "add kept", "-c user.name=a -c user.email=b commit -qm kept"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    clean = commit()
    (tmp_path / "new").write_text("no part of it")
    assert commit() == clean != ""
    (tmp_path / "kept").write_text("changed")
    assert commit() == f"{clean}-dirty"


@pytest.mark.slow
def test_a_rung_is_taken_apart(tmp_path, capsys) -> None:
    command = ["breakdown", "03", "--updates", "5", "--out", str(tmp_path)]
    assert main([*command, "--", "--batch-size", "2"]) == 0
    rows = read_csv(tmp_path / "breakdown.csv")
    found = {(row["who"], row["part"]): float(row["ms per frame"]) for row in rows}
    player = {"environment", "wrappers", "choosing actions", "sending", "waiting", REST}
    learner = {"storing", "sampling", "forward", "backward", "optimizer", "update", "waiting", REST}
    expected = {("main process", part) for part in learner | {"logging and handlers"}}
    assert found.keys() == expected | {("player process", part) for part in player}
    assert min(found.values()) > 0
    out = capsys.readouterr().out
    assert re.search(r"^ +\d+\.\d\d% +aten::convolution_backward", out, re.M), out
    assert "The longest operators" in out
    for picture in ("timeline.png", "breakdown.png"):
        assert (tmp_path / picture).stat().st_size > 10_000


def test_a_rung_that_cannot_be_taken_apart_is_left_out(tmp_path, monkeypatch) -> None:
    def profile_rung(script: Path, *_: object) -> list[Worker]:
        if script.stem == "01_baseline":
            raise Failed("01_baseline: no memory")
        return [Worker(script.stem, 50.0, 10, "main process", [Span("forward", 0, 9)])]

    monkeypatch.setattr(breakdown, "profile_rung", profile_rung)
    for rungs, lines in (("01", False), ("01 03", True)):
        out = tmp_path / rungs
        assert main(["breakdown", *rungs.split(), "--out", str(out)]) == 1
        assert (out / "breakdown.csv").exists() == lines
    assert "Left out: 01_baseline: no memory" in (out / "breakdown.md").read_text()


@pytest.fixture
def rungs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that takes the place of the repository; its rungs say their flags."""
    monkeypatch.setattr(ladder, "ROOT", tmp_path)
    for name in ("01_baseline", "02_n_envs", "07_speedrun"):
        buffer = "ReplayBuffer()" * (name < "07")
        (tmp_path / f"{name}.py").write_text(f"import sys\nprint(*sys.argv[1:-2])  # {buffer}\n")
    return tmp_path


def climb(rungs: Path, flags: str) -> int:
    return main(["ladder", "--run-dir", str(rungs / "runs"), *flags.split()])


def test_seeds_run_through_all_rungs_and_values(rungs, capfd) -> None:
    assert climb(rungs, "--rungs 02 07 --seeds 5-6 6 --vary max-pool off on -- --amp") == 0
    found = [line for line in capfd.readouterr().out.splitlines() if line.startswith("--")]
    short = "--max-frames 10000 --epsilon-frames 1"
    filled = f"{short} --replay-initial 2000"
    values = [f"{flags} --{no}max-pool --amp" for flags in (filled, short) for no in ("no-", "")]
    assert found == [f"{flags} --seed {seed}" for seed in (5, 6) for flags in values]
    (rungs / "10_thousands_of_games.py").write_text("")
    assert climb(rungs, "--rungs 10 --seeds 0") == 0  # a rollout of 10 has 32,768 frames
    assert "--max-frames 200000 --epsilon-frames 1 --seed 0\n" in capfd.readouterr().out
    assert not ladder.has_replay_buffer(ROOT / "10_thousands_of_games.py")  # real, as 06
    assert ladder.has_replay_buffer(ROOT / "06_compiled_update.py")
    # One seed where something varies; how many runs, and how long, is told before they start.
    for limit, length in (("0", "7 hours"), ("100,000", "45 minutes"), ("1.0e5", "45 minutes")):
        assert climb(rungs, f"--rungs 02 --vary envs 1 2 --solve -- --max-frames {limit}") == 0
        out = capfd.readouterr().out
        assert out.index(f"2 to do, about {length} on two CPU cores") < out.index("[1/2]")
        assert out.count("--seed 0\n") == 4  # each is said twice: by the ladder, and by the rung


@pytest.mark.parametrize(
    ("code", "saved", "refused", "commits", "kept"),
    [
        (130, True, 0, ["one", "two"], ["one, two"]),
        (143, False, 0, ["one", "one"], ["one"]),
        (1, True, 0, ["one", "two"], ["one, two"]),
        (1, False, 0, ["one", "two"], ["one", "two"]),  # it may fail again at once
        (130, True, 2, ["one", "two", "three"], ["one", "three"]),  # an older version began it
    ],
)
def test_what_was_interrupted_is_resumed_or_run_anew_once(
    code, saved, refused, commits, kept, rungs, capfd, monkeypatch
) -> None:
    """Other ladders begin runs in the same folder."""
    now, then, run_rung = [""], iter(commits), ladder.run_rung
    monkeypatch.setattr(ladder, "commit", lambda: now[-1])
    monkeypatch.setattr(ladder, "run_rung", lambda *a: now.append(next(then)) or run_rung(*a))
    (rungs / "01_baseline.py").write_text(f"""
import sys
from pathlib import Path
print(*sys.argv[1:])
if "--resume" in sys.argv:
    sys.exit({refused})
runs = Path(sys.argv[-1])
number = len([*runs.iterdir()])
for name in ("envs9-seed5-1", "seed1-0", "seed5-0"):
    (runs / f"01_baseline-pong-{{name}}{{number}}" / "checkpoints").mkdir(parents=True)
if {saved}:
    (runs / f"01_baseline-pong-seed5-0{{number}}/checkpoints/latest.pt").touch()
sys.exit({code} * (number == 1))
""")
    (rungs / "runs/other").mkdir(parents=True)
    (rungs / "runs/other/interrupted.txt").write_text("01_baseline.py --seed 5")
    assert [climb(rungs, "--rungs 01 --seeds 5 --solve") for _ in range(3)] == [1, 0, 0]
    flags, out = "--max-frames 5000000 --seed 5", capfd.readouterr().out
    told = "interrupted" if code == 130 else f"failed (exit code {code})"
    assert f"{told}: 01_baseline.py {flags}\n" in out
    place = f"{rungs}/runs/01_baseline-pong-seed5-0"
    assert out.count(f"\n{flags} --resume {place}1\n") == (code != 1 or saved)
    assert "1 of 1 runs are complete" in out
    assert (f"some of them ran at {kept[-1]}: " in out) == (kept[-1] != commits[-1])
    files = sorted(rungs.glob("runs/01_baseline-pong-seed5-0*/commit.txt"))
    assert [file.read_text() for file in files] == [f"{text}\n" for text in kept]


def test_a_rung_that_fails_or_lacks_something_is_told_and_the_others_go_on(rungs, capfd) -> None:
    (rungs / "01_baseline.py").write_text("import sys\nsys.exit('the reason')\n")
    (rungs / "02_n_envs.py").write_text("import sys\nsys.exit(2)\n")
    assert climb(rungs, "--seeds 0-1 --solve --rungs 01 02 07") == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[-6:-1] == [
        "[6/6] 07_speedrun.py --max-frames 5000000 --seed 1",
        "--max-frames 5000000 --seed 1",
        "failed (exit code 1): 01_baseline.py --max-frames 5000000 --seed 0",
        "left out: 02_n_envs.py --max-frames 5000000 --seed 0",  # once
        "failed (exit code 1): 01_baseline.py --max-frames 5000000 --seed 1",
    ]
    assert err == "the reason\n" * 2
    assert climb(rungs, "--seeds 0-1 --rungs 02") == 2
    (rungs / "02_n_envs.py").write_text("import sys\nsys.exit(2 * ('512' in sys.argv))\n")
    assert climb(rungs, "--seeds 0-1 --rungs 02 --vary envs 512 2") == 0
    assert capfd.readouterr().out.count("--envs 2 --seed") == 2  # one value is refused, not both


def test_a_ladder_that_is_asked_to_end_ends_its_rung(tmp_path) -> None:
    """It has a process group of its own, so that Ctrl-C reaches the ladder alone."""
    rung = "import os, signal\nprint(os.getpgrp(), flush=True)\nsignal.alarm(90)\nsignal.pause()\n"
    (tmp_path / "09_long.py").write_text(rung)
    suite = (
        "import sys; from pathlib import Path; from benchmarks import __main__, ladder\n"
        f"ladder.ROOT = Path({str(tmp_path)!r})\n"
        f"sys.exit(__main__.main(['ladder', '--run-dir', {str(tmp_path / 'runs')!r}]))\n"
    )
    command = [sys.executable, "-c", suite]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        _, length, _, pid = (process.stdout.readline() for _ in range(4))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert re.fullmatch("3 to do, about 1 minutes on .*, plus 3 of unknown length\n", length)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_bad_arguments_are_one_line_and_exit_code_2(capsys) -> None:
    for command, message in {
        "ladder --rungs 99": "99: there are only 00_slow_grads",
        "ladder --vary envs": "name the values",
        "ladder --frames 2000": "--frames 2000: filling a replay buffer takes 2000",
        "ladder --rungs 01 -- --max-frames x": "'x' is not a whole number",
        "peers --python none": "requirements-peers.txt",
    }.items():
        assert main(command.split()) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_the_innermost_part_counts_but_choosing_actions_is_one() -> None:
    update = Span("update", 30, 90), Span("forward", 40, 60), Span("waiting", 0, 25)
    found = [(part, end) for part, _, end in innermost(update, 10, 80)]
    assert found == [("waiting", 15), (REST, 20), ("update", 30), ("forward", 50), ("update", 70)]
    chosen = Span("choosing actions", 0, 60), Span("forward", 10, 50), Span("environment", 60, 99)
    found = [part for part, _, _ in innermost(chosen, 0, 80)]
    assert found == ["choosing actions"] * 3 + ["environment"]


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be the fake GPU of other tests in this process, which no timer can wait for."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


def test_ways_take_turns_and_a_failing_one_is_left_out() -> None:
    calls: list[str] = []

    def way(name: str) -> measuring.Measure:
        return measuring.timed(lambda: calls.append(name) or 1 / (name != "broken"))

    ways = {name: partial(way, name) for name in ("a", "broken", "b")}
    measured, why_not = measuring.measure(ways, repeats=3, milliseconds=1)
    assert [*map(len, measured.values())] == [3, 0, 3]
    assert why_not == {"broken": "not run: division by zero"}
    turns = [a for a, b in zip(calls, [*calls[1:], ""], strict=True) if a != b]
    assert turns == ["a", "broken", "b", "a", "b", "a", "b"]


def test_a_picture_of_gains_cuts_no_text_and_shows_no_panel_without_gains(tmp_path, monkeypatch):
    figures: list[Figure] = []
    monkeypatch.setattr(charts, "save", lambda figure, _: figures.append(figure))
    gains, title = {"first": [1.0], "second": [1.5, 1.6]}, "profiler: 01 without a part, which " * 2
    panels = {"device": {"CPU": [1.0], "GPU": "not run: no GPU"}, "calls": gains, title: gains}
    charts.bar_panels(tmp_path, "Techniques", panels, "two cores")
    figures[0].draw_without_rendering()
    texts = {text.get_text(): text for text in figures[0].findobj(Text)}
    for name in (title, "calls", "second", figures[0].get_supxlabel()):
        for corner in texts[name].get_window_extent().corners():
            assert figures[0].bbox.contains(*corner), name
    assert texts.keys().isdisjoint(["device", "not run: no GPU"])
    plt.close(figures[0])


# Part -> ways that are measured on a CPU, and ways that need a GPU.
WAYS = {"device": (3, 3), "environments": (6, 0), "compilation": (6, 2), "precision": (6, 6)}
WAYS |= {"collection": (3, 0), "memory": (8, 0), "copies": (0, 6), "profiler": (4, 0)}
WAYS |= {"details": (7, 0), "calls": (4, 1)}


@pytest.mark.usefixtures("console")
@pytest.mark.parametrize("part", [*techniques.PARTS, "calls gpu", "compilation gpu", "copies gpu"])
def test_each_technique_is_measured_or_says_why_not(part, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda net: net)
    part, *gpu = part.split()
    command = f"techniques --only {part} --repeats 1 --milliseconds 1 --batch-size 2 --envs 2"
    with in_place_of_cuda() if gpu else nullcontext():
        if gpu:
            monkeypatch.setattr(techniques, "chosen_device", lambda cuda: torch.device(NAME))
        assert main([*command.split(), "--transitions", "60", "--out", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("techniques-*.csv")
    found = Counter()
    for row in read_csv(file):
        figure = re.fullmatch(r"[\d,]+\.\d{3}", row["measured"])
        found["" if figure and row["gain"] else row["measured"]] += 1
    measured, left_out = (sum(WAYS[part]), 0) if gpu else WAYS[part]
    assert found == Counter({"": measured, "not run: no GPU here": left_out})
    assert file.with_suffix(".png").stat().st_size > 10_000


@pytest.mark.usefixtures("console")
def test_the_emulator_plays_beside_ale(tmp_path) -> None:
    flags = ["--games", "1", "2", "--rounds", "1", "--milliseconds", "1", "--out", str(tmp_path)]
    assert main(["emulator", *flags]) == 0
    rows = [row.values() for row in read_csv(tmp_path / "emulator.csv")][:4]
    who, threads, one_game, two_games = zip(*rows, strict=True)
    assert who == ("this emulator",) * 2 + ("AtariVectorEnv",) * 2
    assert (threads, one_game[1::2]) == (("1", "2") * 2, ("", ""))  # a thread has a game at least
    assert all(float(rate.replace(",", "")) > 0 for rate in two_games)


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


def table_of(folder: Path, *flags: str) -> dict[str, list[str]]:
    """The columns of the table of the runs in a folder, written there."""
    assert main(["table", str(folder), *flags]) == 0
    rows = read_csv(folder / "table.csv")
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_medians_ranges_and_the_ratio_to_01(tmp_path: Path) -> None:
    for seed, (minutes, fps) in enumerate([(100, 150), (120, 160), (90, 170)]):
        solved_run(tmp_path, "01_baseline", seed, minutes, fps, cuda=True)
    for seed, (minutes, fps) in enumerate([(50, 320), (60, 310), (40, 330)]):
        games = {"evaluation/reward": (18 + seed, 20 + seed)}
        run = solved_run(tmp_path, "03_parallel", seed, minutes, fps, scalars=games, cuda=True)
        (run / "commit.txt").write_text("1a2b3c4-dirty\n")
    (tmp_path / "commit.txt").write_text("5d6e7f8\n")  # of all runs that do not tell their own
    assert {name: cells[1] for name, cells in table_of(tmp_path).items()} == {
        "rung": "03_parallel",
        "seeds": "0-2",
        "solved": "3 of 3",
        "FPS": "320 (310 to 330)",
        "FPS / 01's": "1.88 (1.82 to 1.94)",  # the last run of 01 began last
        "frames": "960,000 (792,000 to 1,116,000)",
        "minutes": "50.0 (40.0 to 60.0)",
        "minutes / 01's": "0.50 (0.44 to 0.50)",  # by seed
        "avg_reward": "17.1",
        "evaluation": "20.0 (19.0 to 21.0)",
        "book: FPS (/ 01's)": "402 (2.53); 290 (1.27)",
        "book: minutes (/ 01's)": "59 (0.56); 31.2 (0.60)",
    }
    _, what, _, book = re.findall("^- .+", (tmp_path / "table.md").read_text(), re.MULTILINE)
    assert what.endswith("solved: avg_reward reached 17; commit 1a2b3c4-dirty, 5d6e7f8")
    assert book.startswith("- The book: second edition")
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


def test_runs_that_did_not_solve_say_how_far_they_came(tmp_path: Path) -> None:
    games = [(60, 1_000, -20.9), (1_000, 49_000, -19.3)]
    limit = {"frames": 50_000, "seconds": 1_200, "fps": 41.5, "solved": 0}
    write_run(tmp_path, "00_slow_grads", 0, games, outcome=limit, max_frames=50_000)
    killed = [(60, 900, -21.0)]
    write_run(tmp_path, "01_baseline", 0, killed, scalars=TRAINED, max_frames=12_000)
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
    write_run(tmp_path, "07_limit", outcome=limit | {"frames": 5e6}, max_frames=5_000_000)
    table, unfinished = table_of(tmp_path), "0 of 1, 1 unfinished"
    assert table["solved"] == ["0 of 1", unfinished, "0 of 1", *[unfinished] * 4, "0 of 1"]
    # Three were to run for so many frames; the others to 17, which they would have reached later.
    frames = "50,000; 12,000; 200; > 99; > 1,000; > 20,000; > 9,000; > 5,000,000"
    assert "; ".join(table["frames"]) == frames
    minutes = "20.0; 2.0; 0.0; > 0.1; > 1.0; > 5.0; > 3.0; > 20.0"
    assert "; ".join(table["minutes"]) == minutes
    assert table["avg_reward"][:3] == ["-19.3", "-21.0", "no game ended"]
    assert table["FPS"][:3] == ["41.5", "44.0", "did not train"]
    assert '">" is a lower bound' in (tmp_path / "table.md").read_text()


def test_a_table_keeps_commits_apart_and_knows_no_goal_of_other_games(tmp_path: Path) -> None:
    game = {"env": "Breakout", "stop_reward": None, "max_frames": 3_000_000}
    outcome = {"frames": 3_000_000, "seconds": 600, "fps": 5_000, "solved": 0}
    for commit_then in ("1a2b3c4", "5d6e7f8"):
        run = write_run(tmp_path, "08_other", outcome=outcome, **game)
        (run / "commit.txt").write_text(commit_then)
    table = table_of(tmp_path)
    assert table["rung"] == ["08_other (commit 1a2b3c4)", "08_other (commit 5d6e7f8)"]
    assert table["frames"] == ["3,000,000"] * 2  # not a lower bound
    assert "solved: avg_reward" not in (tmp_path / "table.md").read_text()


def test_held_out_runs_that_did_not_solve_it_count_as_the_limit(tmp_path: Path) -> None:
    for seed in (1_000, 1_001):
        solved_run(tmp_path, "07_speedrun", seed, 4, 2_000, max_frames=1_000_000)
    outcome = {"frames": 1_000_400, "seconds": 16 * 60, "fps": 2_000, "solved": 0}
    write_run(tmp_path, "07_speedrun", 1_003, outcome=outcome, max_frames=1_000_000)
    ends = {"frames": 9_000, "seconds": 180, "fps": 50, "solved": 1}
    at_17 = {"reached_frames": 6_000, "reached_minutes": 2}  # and trained on for its trial
    write_run(tmp_path, "08_recompiled_pong", outcome=ends | at_17, scalars={"trial/won": [60, 64]})
    write_run(tmp_path, "08_recompiled_pong", 1, outcome=outcome)  # its trial did not begin
    table = table_of(tmp_path)
    assert table["seeds"][0] == "1000-1001, 1003 (held out)"
    assert table["solved"] == ["2 of 3", "1 of 2, 1 unfinished"]
    frames = "480,000 (480,000 to > 1,000,400)", "> 503,200 (6,000 to > 1,000,400)"
    assert table["frames"] == [*frames]
    assert table["minutes"] == ["4.0 (4.0 to > 16.0)", "> 9.0 (2.0 to > 16.0)"]
    assert table["minutes: trial won"] == ["", "> 9.5 (3.0 to > 16.0)"]
    assert read_csv(tmp_path / "runs.csv")[3]["minutes"] == "3.000"  # with its trial
    solved_run(tmp_path, "07_speedrun", 0, 4, 2_000, max_frames=1_000_000)
    again = os.path.relpath(tmp_path), "--out", str(tmp_path)  # each run counts once
    assert table_of(tmp_path, *again)["seeds"][0] == "0, 1000-1001, 1003"


def test_fps_are_held_against_01_of_the_same_hour(tmp_path: Path) -> None:
    (run,) = read_records(solved_run(tmp_path, "07_speedrun", fps=2_000, epsilon_frames=9))
    measured = {"settings": run.settings | {"epsilon_frames": 1.0}}  # by `ladder --frames`
    first = dataclasses.replace(run, script="01_baseline", fps=50, started=0, **measured)
    last = dataclasses.replace(first, fps=80, started=9_000, minutes=300.0)
    others = [{"machine": run.machine | other} for other in ({"cores": 4.0}, {"threads": 2.0})]
    others += [{"settings": {"amp": 1.0}}]
    # The hour begins when a run ends.
    for later, ratio in ((60, 40), (8_000, 25), (30_000, 25), (31_000, None)):
        near = [dataclasses.replace(first, fps=7, started=later, **other) for other in others]
        assert fps_to_01(dataclasses.replace(run, started=later), [first, last, *near]) == ratio


def test_minutes_are_held_against_solved_runs_of_01_with_the_same_seed(tmp_path: Path) -> None:
    (run,) = read_records(solved_run(tmp_path, "02_n_envs", minutes=3, gamma=0.99))
    same = dataclasses.replace(run, script="01_baseline", to_bar=(7, 12.0))
    others = [{"seed": 5}, {"solved": False}, {"settings": run.settings | {"gamma": 0.9}}]
    records = [dataclasses.replace(same, to_bar=(7, 1.0), **other) for other in others]
    assert minutes_to_01(run, records) is None
    assert minutes_to_01(run, [*records, same]) == 0.25
    assert minutes_to_01(dataclasses.replace(run, solved=False), [same]) is None


def test_lines_tell_machines_and_unusual_settings_apart(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(charts, "reward_chart", chart := Mock())
    solved_run(tmp_path, "02", steps=4.0)  # none is usual
    solved_run(tmp_path, "02", steps=2.0)
    for settings in ({}, {"stack": 4.0}, {"gamma": 0.97}):
        solved_run(tmp_path, "07", **{"stack": 2.0, "gamma": 0.99} | settings)
    shares = [{"threads": 1}, *[{"threads": 2}] * 2, {"threads": 2, "left_out": "a part"}]
    names = "run_dir", "resume", "checkpoint_every", "checkpoint_replay"
    for number, share in enumerate(shares):  # and one that was resumed is as the others
        others = dict.fromkeys(names, f"runs/{number}")
        solved_run(tmp_path, "09", machine=MACHINE | share, **others)
    for seed, cpu in enumerate(("Abacus 3000", "another")):
        solved_run(tmp_path, "10", seed, machine=MACHINE | {"cpu": cpu})
    table = table_of(tmp_path)
    labels = ["02 (steps 4)", "02 (steps 2)", "07", "07 (stack 4)", "07 (gamma 0.97)"]
    labels += ["09 (threads 1)", "09", "09 (left_out a part)", "10", "10"]
    machines = ["1"] * 9 + ["2"]  # one and two threads are one machine
    assert (table["rung"], table["machine"]) == (labels, machines)
    drawn = [f"{rung}, machine {one}" for rung, one in zip(labels, machines, strict=True)]
    assert [*chart.call_args.args[1]] == drawn


def test_the_book_stands_beside_its_own_settings(tmp_path) -> None:
    for settings in ({}, {"amp": True}, {"epsilon_frames": 1.0}, {"gamma": 0.9}):
        solved_run(tmp_path, "03_parallel", **settings)
    table = table_of(tmp_path)
    fps, minutes = (table[f"book: {what} (/ 01's)"] for what in ("FPS", "minutes"))
    assert [*map(bool, fps)] == [True, True, True, False]  # as `ladder --frames` measures them
    assert [*map(bool, minutes)] == [True, True, False, False]


def test_a_row_names_game_and_settings_that_are_not_compared(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    pong = {"batch_size": 32.0, "gamma": 0.98, "env": "PongNoFrameskip-v4", "stop_reward": 18.0}
    for fps, settings in ((100, {}), (50, {"env": "BreakoutNoFrameskip-v4"})):
        solved_run(tmp_path, "01_baseline", fps=fps, **pong | settings)
    for settings in ({}, {"envs": 6.0}, {"batch_size": 64.0, "learning_rate": 2e-4}):
        solved_run(tmp_path, "02_n_envs", fps=200, **{"envs": 3.0} | pong | settings)
    table, rung = table_of(tmp_path, "--curves"), "02_n_envs"
    changed = f"{rung} (batch_size 64, learning_rate 0.0002)"
    rungs = ["01_baseline", "01_baseline (Breakout)", rung, f"{rung} (envs 6)", changed]
    assert table["rung"] == rungs
    assert table["FPS / 01's"] == ["1.00", "1.00", "2.00", "2.00", ""]
    assert "book: FPS (/ 01's)" not in table  # gamma is none of the book's
    out = capsys.readouterr().out
    assert "in all runs that have them: gamma 0.98" in out
    assert "solved: avg_reward reached 18;" in (tmp_path / "table.md").read_text()
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
    for seed, games in zip((2, 3, 10), runs, strict=True):
        end = {"frames": games[-1][1], "seconds": 9, "solved": seed == 2}
        write_run(tmp_path, "07_speedrun", seed, games, outcome=end, max_frames=400_000)
    table = table_of(tmp_path, "--every", "100000")
    # A game belongs to where it ended; the one at 200,000 frames to the columns before.
    assert table["100-200"][0] == "-10.0 (-19.0 to 18.0) / 1,000"
    assert table["200-300"][:2] == ["6.0 (-18.0 to 18.0) / 1,000", "-"]
    assert table["300-400"] == ["-", "-", "-", "-17.0 / 1,000"]


def test_a_resumed_run_has_its_last_settings_and_gives_way_to_a_finished_one(tmp_path) -> None:
    run = write_run(tmp_path, "01_baseline", scalars=TRAINED, max_frames=9)
    resumed = time.time()
    write_settings(run, SETTINGS | {"script": "01_baseline", "seed": 0} | MACHINE)
    (record,) = read_records(tmp_path)
    assert record.settings["max_frames"] == 0
    assert record.started < resumed
    assert table_of(tmp_path)["FPS"] == ["44.0"]
    solved_run(tmp_path, "01_baseline", 0, 10, 100)
    assert table_of(tmp_path)["FPS"] == ["100"]
    assert "Left out: 1 unfinished runs" in (tmp_path / "table.md").read_text()
    write_run(tmp_path, "01_baseline", scalars=TRAINED)  # a later one
    assert table_of(tmp_path)["solved"] == ["1 of 2, 1 unfinished"]


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


def test_it_says_when_precisions_stand_side_by_side(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    solved_run(tmp_path / "both", "01_baseline")
    solved_run(tmp_path / "both", "07_speedrun", precision="bfloat16")
    solved_run(tmp_path / "one", "01_baseline", amp=True)
    solved_run(tmp_path / "one", "07_speedrun", precision="bfloat16")
    for folder, expected in (("both", True), ("one", False)):
        table = table_of(tmp_path / folder)
        assert table["rung"] == ["01_baseline" + " (amp 1)" * (not expected), "07_speedrun"]
        assert table["FPS / 01's"] == ["1.00", "1.00" * (not expected)]
        notes = (tmp_path / folder / "table.md").read_text()
        assert ("07_speedrun in bfloat16, the others in float32" in notes) == expected
    assert main(["table", "both", "one", "--curves"]) == 0  # runs of one name
    assert len([*(tmp_path / "runs/table/curves").iterdir()]) == 4
