"""The programs that the benchmarks start and end, and what they measure."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import Mock

from benchmarks import charts, ladder, measuring, report, techniques
from benchmarks.__main__ import main
from benchmarks.breakdown import REST, Span, innermost
from benchmarks.peers import last_fps
from benchmarks.records import read_records
from benchmarks.report import commit

import pytest
import torch
from conftest import ROOT, read_csv
from fake_gpu import NAME, in_place_of_cuda
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text


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


def test_a_changed_file_makes_a_commit_dirty(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(report, "ROOT", tmp_path)
    assert commit() == ""
    (tmp_path / "kept").write_text("kept")
    who = ("-c", "user.name=tests", "-c", "user.email=tests")
    for command in (("init", "-q"), ("add", "kept"), (*who, "commit", "-qm", "kept")):
        subprocess.run(("git", *command), cwd=tmp_path, check=True)
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
    shared, player = {"waiting", REST}, {"environment", "wrappers", "choosing actions", "sending"}
    learner = {"storing", "sampling", "forward", "backward", "optimizer", "update"}
    learner |= {"logging and handlers"}
    assert {part for who, part in found if who == "main process"} == learner | shared
    assert {part for who, part in found if who == "player process"} == player | shared
    assert min(found.values()) > 0
    out = capsys.readouterr().out
    assert re.search(r"^ +\d+\.\d\d% +aten::convolution_backward", out, re.M), out
    assert "GPU busy: no GPU here. The longest operators" in out
    for picture in ("timeline.png", "breakdown.png"):
        assert (tmp_path / picture).stat().st_size > 10_000


@pytest.fixture
def rungs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that takes the place of the repository; its rungs say their flags."""
    monkeypatch.setattr(ladder, "ROOT", tmp_path)
    for name in ("01_baseline", "02_n_envs", "07_speedrun"):
        buffer = "ReplayBuffer()" * (name < "07")
        (tmp_path / f"{name}.py").write_text(f"import sys\nprint(*sys.argv[1:-2])  # {buffer}\n")
    return tmp_path


def test_seeds_run_through_all_rungs_and_values(rungs, capfd) -> None:
    flags = ["--seeds", "5-6", "6", "--vary", "max-pool", "off", "on"]
    folder = ["--run-dir", str(rungs / "runs")]
    assert main(["ladder", "--rungs", "02", "07", *flags, *folder, "--", "--amp"]) == 0
    found = [line for line in capfd.readouterr().out.splitlines() if line.startswith("--")]
    short = "--max-frames 10000 --epsilon-frames 1"
    filled = f"{short} --replay-initial 2000"
    values = [f"{flags} --{no}max-pool --amp" for flags in (filled, short) for no in ("no-", "")]
    assert found == [f"{flags} --seed {seed}" for seed in (5, 6) for flags in values]
    assert not ladder.has_replay_buffer(ROOT / "10_thousands_of_games.py")  # real, as 06
    assert ladder.has_replay_buffer(ROOT / "06_compiled_update.py")
    # One seed where something varies; how many runs, and how long, is told before they start.
    command = ["ladder", "--rungs", "02", "--vary", "envs", "1", "2", "--solve", *folder]
    for limit, length in (("0", "7 hours"), ("100000", "45 minutes")):
        assert main([*command, "--", "--max-frames", limit]) == 0
        out = capfd.readouterr().out
        assert out.index(f"2 to do, about {length} on two CPU cores") < out.index("[1/2]")
        assert out.count("--seed 0\n") == 4  # each is said twice: by the ladder, and by the rung


@pytest.mark.parametrize(("code", "resumes"), [(130, True), (143, True), (1, False)])
def test_what_was_interrupted_is_resumed(code, resumes, rungs, capfd, monkeypatch) -> None:
    monkeypatch.setattr(ladder, "commit", Mock(side_effect=["one", "two", "three"]))
    (rungs / "01_baseline.py").write_text(f"""
import sys
from pathlib import Path
print(*sys.argv[1:])
if "--resume" not in sys.argv:
    for name in ("01_baseline-pong-seed0-now", "01_baseline-pong-seed0-of another ladder"):
        Path(sys.argv[-1], name).mkdir(exist_ok=True)
    sys.exit({code})
""")
    (runs := rungs / "runs").mkdir()
    command = ["ladder", "--rungs", "01", "--seeds", "0", "--solve", "--run-dir", str(runs)]
    assert [main(command) for _ in range(3)] == [1, 1 - resumes, 1 - resumes]
    flags = "--max-frames 5000000 --seed 0"
    out = capfd.readouterr().out
    told = "interrupted" if code == 130 else f"failed (exit code {code})"
    assert f"{told}: 01_baseline.py {flags}\n" in out
    assert (f"\n{flags} --resume {runs}/01_baseline-pong-seed0-now\n" in out) == resumes
    assert ("1 of 1 runs are complete" in out) == resumes
    (file,) = runs.glob("*/commit.txt")
    assert file.read_text() == ("one, two\n" if resumes else "one\n")


def test_what_cannot_be_resumed_is_run_anew_once(rungs) -> None:
    """An older version began it: it stays, and is not tried again."""
    script = "import sys\nfrom pathlib import Path\nrefused = '--resume' in sys.argv\n"
    script += "parts = () if refused else [*Path(sys.argv[-1]).iterdir()]\n"
    script += "refused or Path(sys.argv[-1], f'01_baseline-seed0-{len(parts)}').mkdir()\n"
    script += "sys.exit(2 if refused else 0 if parts else 130)\n"
    (rungs / "runs").mkdir()
    (rungs / "01_baseline.py").write_text(script)
    command = ["ladder", "--rungs", "01", "--seeds", "0", "--run-dir", str(rungs / "runs")]
    assert [main(command), main(command), main(command)] == [1, 0, 0]


def test_a_rung_that_fails_or_lacks_something_is_told_and_the_others_go_on(rungs, capfd) -> None:
    (rungs / "01_baseline.py").write_text("import sys\nsys.exit('the reason')\n")
    (rungs / "02_n_envs.py").write_text("import sys\nsys.exit(2)\n")
    command = ["ladder", "--run-dir", str(rungs / "runs"), "--seeds", "0-1", "--solve", "--rungs"]
    assert main([*command, "01", "02", "07"]) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[-6:-1] == [
        "[6/6] 07_speedrun.py --max-frames 5000000 --seed 1",
        "--max-frames 5000000 --seed 1",
        "failed (exit code 1): 01_baseline.py --max-frames 5000000 --seed 0",
        "left out: 02_n_envs.py --max-frames 5000000 --seed 0",  # once
        "failed (exit code 1): 01_baseline.py --max-frames 5000000 --seed 1",
    ]
    assert err == "the reason\n" * 2
    assert main([*command, "02"]) == 2
    (rungs / "02_n_envs.py").write_text("import sys\nsys.exit(2 * ('512' in sys.argv))\n")
    assert main([*command, "02", "--vary", "envs", "512", "2"]) == 0
    assert capfd.readouterr().out.count("--envs 2 --seed") == 2  # one value is refused, not both


def test_a_ladder_that_is_asked_to_end_ends_its_rung(tmp_path) -> None:
    rung = "import os, signal\nprint(os.getpid(), flush=True)\nsignal.alarm(90)\nsignal.pause()\n"
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
WAYS |= {"details": (9, 0), "calls": (4, 1)}


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
