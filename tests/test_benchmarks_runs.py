"""What the benchmarks start, and how they end it; what they make of what it wrote."""

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks import breakdown, ladder, techniques
from benchmarks.__main__ import main
from benchmarks.records import read_records

ROOT = Path(__file__).parent.parent


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_real_run_is_recorded_and_not_repeated(tmp_path, capfd, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["ladder", "--rungs", "01", "--seeds", "0", "--vary", "batch-size", "2"]
    command += ["--run-dir", str(tmp_path), "--", "--replay-initial", "200", "--max-frames", "320"]
    assert main(command) == 0
    (record,) = read_records(tmp_path)
    assert (record.script, record.finished, record.solved) == ("01_baseline", True, False)
    assert record.settings["batch_size"] == 2
    assert record.settings["epsilon_frames"] == 1  # else actions would be random, and free
    assert record.frames == 320
    assert record.fps
    assert record.machine["cpu"]
    assert record.commit == ladder.commit()
    assert main(command) == 0
    assert "1 of 1 runs are complete" in capfd.readouterr().out
    assert len(read_records(tmp_path)) == 1


@pytest.fixture
def rungs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Path]:
    """Takes the place of the rungs; those added are programs that say their name."""
    made: dict[str, Path] = {}
    monkeypatch.setattr(ladder, "find_rungs", lambda: made)
    for name in ("01_baseline", "02_n_envs", "07_speedrun"):
        made[name] = tmp_path / f"{name}.py"
        made[name].write_text("import sys\nprint(*sys.argv[1:-2])\n")
    return made


def test_seeds_run_through_all_rungs_and_values(rungs, tmp_path, capsys) -> None:
    flags = ["--solve", "--seeds", "5-6", "6", "--vary", "max-pool", "off", "on", "--beside-01"]
    folder = ["--run-dir", str(tmp_path / "runs")]
    assert main(["ladder", "--rungs", "02", "07", *flags, *folder, "--", "--amp"]) == 0
    runs = [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()[:-1]]
    solve = [f"--max-frames 2000000 --{no}max-pool --amp" for no in ("no-", "")]
    beside = "--max-frames 4000 --epsilon-frames 1 --replay-initial 2000"
    told = (beside, *solve, *solve)  # two rungs
    assert runs == [f"{flags} --seed {seed}" for seed in (5, 6) for flags in told]


def test_a_rung_that_fails_or_lacks_something_is_told_and_the_others_go_on(
    rungs, tmp_path, capsys
) -> None:
    rungs["01_baseline"].write_text("import sys\nsys.exit('one\\nthe reason')\n")
    rungs["02_n_envs"].write_text("import sys\nprint('no Ray', file=sys.stderr)\nsys.exit(2)\n")
    command = ["ladder", "--run-dir", str(tmp_path / "runs"), "--seeds", "0-1", "--rungs"]
    assert main([*command, "01", "02", "07"]) == 1
    assert [line.split(": ", 1)[1] for line in capsys.readouterr().out.splitlines()[:-1]] == [
        "failed (exit code 1): the reason",
        "left out: no Ray",
        "--max-frames 10000 --epsilon-frames 1 --seed 0",
        "failed (exit code 1): the reason",
        "--max-frames 10000 --epsilon-frames 1 --seed 1",
    ]
    assert main([*command, "02"]) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_ladder_that_is_asked_to_end_ends_its_rung(number: signal.Signals, tmp_path) -> None:
    rung, pipe = tmp_path / "09_long.py", tmp_path / "pipe"
    os.mkfifo(pipe)
    rung.write_text(
        "import os, signal, sys\n"
        f"with open({str(pipe)!r}, 'w') as pipe: print(os.getpid(), file=pipe)\n"
        "signal.pause()\n"
    )
    suite = (
        "import signal, sys; from pathlib import Path; import benchmarks.ladder as ladder\n"
        "from benchmarks.__main__ import main\n"
        # These tests may have been started with signals ignored, which children inherit.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"ladder.find_rungs = lambda: {{'09': Path({str(rung)!r})}}\n"
        f"sys.exit(main(['ladder', '--run-dir', {str(tmp_path / 'runs')!r}]))\n"
    )
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", suite], cwd=ROOT, **silent) as process:
        pid = int(pipe.read_text())
        process.send_signal(number)
        assert process.wait(120) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("ladder --rungs 99", "--rungs 99"),
        ("ladder --frames 100", "nothing to train"),
        ("ladder --seeds 9-0", "not a seed"),
        ("ladder --vary envs", "name the values"),
        ("ladder --held-out", "changes that are not committed"),
        ("peers --python none", "requirements-peers.txt"),
        ("table . -- --amp", "nothing can follow --"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(command, message, monkeypatch, capsys) -> None:
    monkeypatch.setattr(ladder, "commit", lambda: "1a2b3c4-dirty")
    try:
        code: object = main(command.split())
    except SystemExit as end:
        code = end.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def write_trace(file: Path, thread: int, *events: tuple[str, float, float]) -> None:
    """Named parts and when they began and ended, in milliseconds."""
    told = [
        {"cat": "user_annotation", "name": n, "ts": b * 1e3, "dur": (e - b) * 1e3, "tid": thread}
        for n, b, e in events
    ]
    with gzip.open(file, "wt") as stream:
        json.dump({"traceEvents": told}, stream)


def test_breakdown_of_written_traces(tmp_path, monkeypatch) -> None:
    def program(command: list[str], who: str) -> None:
        folder = Path(command[3])
        (folder / "laps.json").write_text(json.dumps([[0, 0], [100, 2], [104, 3], [114, 4]]))
        update = ("update", 30, 90), ("forward", 40, 60), ("waiting", 0, 25)
        write_trace(folder / "trainer.json.gz", 1, ("measured", 10, 110), *update)
        chosen = ("choosing actions", 0, 60), ("forward", 10, 50), ("environment", 60, 200)
        write_trace(folder / "player.json.gz", 7, *chosen)

    monkeypatch.setattr(breakdown, "output_of", program)
    assert main(["breakdown", "03", "--milliseconds", "40", "--out", str(tmp_path)]) == 0
    rows = read(tmp_path / "breakdown.csv")
    assert {row["FPS"] for row in rows} == {"50.0"}
    assert [(row["who"], row["part"], row["ms per frame"]) for row in rows] == [
        ("main process", "waiting", "1.500"),
        ("main process", "forward", "2.000"),
        ("main process", "update", "4.000"),
        ("main process", breakdown.REST, "2.500"),
        ("player process", "environment", "5.000"),
        ("player process", "choosing actions", "5.000"),  # with its forward pass
    ]
    line = [
        (span["does"], span["begin_ms"], span["end_ms"]) for span in read(tmp_path / "timeline.csv")
    ]
    assert line[:4] == [
        ("waits", "0.0", "15.0"),
        ("other", "15.0", "20.0"),
        ("learns", "20.0", "30.0"),
        ("learns", "30.0", "40.0"),
    ]
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_ways_take_turns_and_a_failing_one_is_left_out() -> None:
    calls: list[str] = []

    def way(name: str) -> dict[str, Callable[[], object]]:
        return {"work": lambda: calls.append(name) or 1 / (name != "broken")}

    ways = {name: partial(way, name) for name in ("a", "broken", "b")}
    first, broken, _ = techniques.measure(ways, "work", repeats=3, milliseconds=1)
    assert first[::2] == ["a", "1.00"]
    assert broken == ["broken", "not run: division by zero", ""]
    turns = [a for a, b in zip(calls, [*calls[1:], ""], strict=True) if a != b]
    assert turns == ["a", "broken", "b", "a", "b", "a", "b"]


def test_peers_and_the_emulator_beside_programs_that_answer(tmp_path, monkeypatch, capsys) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ready\nwhile read line; do echo 500.0; done </dev/stdin\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    out = ["--out", str(tmp_path), "--python", str(python), "--rounds", "2"]
    assert main(["emulator", "--games", "1", "2", *out]) == 0
    rows = [list(row.values()) for row in read(tmp_path / "emulator.csv")]
    assert rows[0] == ["this emulator", "1", "500", "500"]
    assert ["EnvPool", "2", "", "500"] in rows
    python.write_text("#!/bin/sh\ncase $1 in *peer*) echo 500.0;; *) echo 9, 1,000.0 FPS;; esac\n")
    assert main(["peers", *out]) == 0
    ratios = {
        row["who"]: row["the ladder is faster by (x)"] for row in read(tmp_path / "peers.csv")
    }
    assert (ratios.pop("this ladder"), set(ratios.values())) == ("1.00", {"2.00"})
    python.write_text("#!/bin/sh\necho ImportError: no ptan >&2\nexit 1\n")
    assert main(["peers", *out]) == 1
    assert capsys.readouterr().err.strip().endswith("ImportError: no ptan")
    assert main(["emulator", "--games", "1", *out]) == 1
