"""The subcommands techniques, breakdown and peers, end to end at a tiny size."""

import csv
import gzip
import json
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks import peers, timeline
from benchmarks.__main__ import main
from benchmarks.breakdown import rung, stopwatch
from benchmarks.breakdown.verdict import verdict
from benchmarks.techniques.measuring import Alternative, measure
from benchmarks.techniques.replay import BUFFERS, transitions

GPU = torch.cuda.is_available()


def call(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_techniques(tmp_path: Path) -> None:
    only = ["memory-format", "optimizer", "copies", "environments", "replay", "denormals"]
    tiny = ["--repeats", 1, "--milliseconds", 1, "--batch-size", 2, "--transitions", 20]
    assert call("techniques", "--only", *only, *tiny, "--envs", 2, "--out", tmp_path) == 0
    measured: dict[str, set[str]] = {}
    for row in read(tmp_path / "techniques.csv"):
        measured.setdefault(row["technique"], set()).add(row["median"].replace(",", ""))
    assert list(measured) == only
    assert measured.pop("copies") == {f"not run: {'without --cuda' if GPU else 'no GPU'}"}
    assert all(float(value) >= 0 for values in measured.values() for value in values)
    assert (tmp_path / "techniques.png").stat().st_size > 1_000
    assert "Machine: " in (tmp_path / "techniques.md").read_text()


def test_alternatives_take_turns_and_a_failing_one_is_left_out() -> None:
    calls: list[str] = []

    def alternative(name: str, value: float, unit: str = "ms") -> Alternative:
        def once() -> float:
            calls.append(name)
            if name == "broken":
                raise RuntimeError("no such\nthing")
            return value

        return Alternative("work", name, lambda: once, unit)

    three = [alternative("a", 4.0), alternative("b", 2.0), alternative("broken", 1.0)]
    first, second, broken = measure("technique", three, repeats=3)
    assert calls == ["a", "b", "broken", "b", "a", "a", "b"]
    assert (first.gains, second.gains) == ([1.0] * 3, [2.0] * 3)
    assert (broken.values, broken.reason) == ([], "RuntimeError: no such thing")
    rates = [alternative(name, fps, "frames per second") for name, fps in (("a", 4.0), ("b", 8.0))]
    assert [rate.gains for rate in measure("technique", rates, repeats=1)] == [[1.0], [2.0]]


def test_object_buffers_hold_the_same_as_the_replay_buffer() -> None:
    *buffers, lib = (make(30, "cpu") for make in BUFFERS.values())
    for transition in transitions(30):
        for buffer in (*buffers, lib):
            buffer.append(transition)
    states = {state.numpy().tobytes() for state in lib.sample(500).states}
    for buffer in buffers:
        batch = buffer.sample(20)
        assert batch.states.shape == (20, 4, 84, 84)
        assert {state.numpy().tobytes() for state in batch.states} <= states


@pytest.mark.parametrize("name", ["01_baseline", "03_parallel"])
def test_breakdown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rung, "WARM_UP", 2)
    monkeypatch.setattr(rung, "PROFILED", 1)
    tiny = ["--updates", 2, "--repeats", 1, "--replay-initial", 40, "--out", tmp_path]
    assert call("breakdown", name, *tiny) == 0
    rows = read(tmp_path / "breakdown.csv")
    parts = {row["part"] for row in rows if row["process"] == "trainer"}
    assert {"sample", "forward", "backward", "optimizer", "insert"} <= parts
    player = {row["part"] for row in rows if row["process"] == "player"}
    playing = {"environment", "wrappers", "action selection"}
    assert playing <= (player if name == "03_parallel" else parts)
    rates = [row["what if"] for row in read(tmp_path / "breakdown-what-if.csv")]
    assert rates == [*rung.WHAT_IFS, "filling the buffer"]
    assert (tmp_path / "breakdown.png").read_bytes().startswith(b"\x89PNG")
    assert "aten::" in (tmp_path / f"operators-{name}.txt").read_text()
    (trace,) = (tmp_path / f"trace-{name}").glob("*.pt.trace.json.gz")
    with gzip.open(trace) as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"sample", "forward", "backward", "optimizer"} <= names
    assert f"{name} is bound by " in (tmp_path / "breakdown.md").read_text()
    (limit,) = read(tmp_path / "breakdown-limit.csv")
    # The Nature network needs 18.7 MFLOP per sample. An update takes nearly four times as many: two
    # passes forward, one for the gradients of weights, one for those of all inputs but the first.
    batch = 128 if name == "03_parallel" else 32
    assert float(limit["GFLOP per update"]) == pytest.approx(batch * 0.0682, rel=0.02)
    assert 0 < float(limit["share"]) <= float(limit["while updating"])


def test_timeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rung, "WARM_UP", 2)
    monkeypatch.setattr(timeline, "REPLAY_INITIAL", 40)
    monkeypatch.delitem(timeline.RUNGS, "08_recompiled_pong")  # it compiles for a minute
    tiny = ["--updates", 3, "--milliseconds", 60_000, "--epsilon", 0, "--out", tmp_path]
    assert call("timeline", *tiny) == 0
    spans: dict[str, list[dict[str, str]]] = {}
    for span in read(tmp_path / "timeline.csv"):
        spans.setdefault(f"{span['rung'][:2]} {span['who']}", []).append(span)
    did = {who: {span["does"] for span in done} for who, done in spans.items()}
    acts, learns = {"chooses actions", "other"}, {"learns", "waits", "other"}
    assert did == {
        "01 main process": {"plays", "learns"} | acts,
        "03 main process": learns,
        "03 player process": {"plays", "waits"} | acts,
        "05 main process": learns | acts,
        "05 ALE's threads": {"plays"},
    }
    for who in ("01 main process", "03 player process"):  # nothing is counted twice, or missing
        assert all(a["end_ms"] == b["begin_ms"] for a, b in pairwise(spans[who]))
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "parts", "says"),
    [
        ("01_baseline", {"forward": 3.0, "environment": 1.0}, "02_n_envs.py"),
        ("01_baseline", {"forward": 1.0, "wrappers": 3.0}, "03_parallel.py"),
        ("03_parallel", {stopwatch.WAITING: 3.0, "forward": 1.0}, "04_new_wrappers_parallel.py"),
        ("04_new_wrappers_parallel", {"forward": 3.0}, "06_compiled_update.py"),
        ("06_compiled_update", {"forward": 3.0}, "--amp"),
    ],
)
def test_verdict(name: str, parts: dict[str, float], says: str) -> None:
    assert says in verdict(name, parts)


def test_clock_charges_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr(stopwatch, "now", lambda device: next(times))
    clock = stopwatch.Clock("cpu")
    with clock.part("outer"), clock.part("inner"):
        pass
    assert clock.spans == [
        (stopwatch.REST, 0.0, 1.0),
        ("outer", 1.0, 3.0),
        ("inner", 3.0, 6.0),
        ("outer", 6.0, 10.0),
    ]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["breakdown", "99_none"], "99_none cannot be taken apart"),
        (["peers", "--python", "none"], "requirements-peers.txt"),
        (["breakdown", "--replay-initial", 10**6], "--replay-initial is more than --replay-size"),
        (["techniques", "--cuda"], "no usable GPU"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    command: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--cuda" in command and GPU:
        pytest.skip("needs a machine without a GPU")
    assert call(*command, "--out", tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"  # the peers' interpreter, as far as anybody looks
    python.touch()
    last = "frame limit reached after 3,000 frames; avg_reward -20.00, 1,000.0 FPS\n"
    commands: list[list[str]] = []

    def program(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        said = "500.0\n" if command[0] == str(python) else last
        return subprocess.CompletedProcess(command, 0, said, "")

    monkeypatch.setattr(subprocess, "run", program)
    command = ["peers", "--python", python, "--rounds", 2, "--out", tmp_path]
    assert call(*command) == 0
    rows = read(tmp_path / "peers.csv")
    assert len(rows) == len(peers.CONTENDERS)
    ratios = {row["who"]: row["the ladder is faster by (x)"] for row in rows}
    theirs = dict.fromkeys([peers.PTAN, peers.SB3, peers.CLEANRL], "2.00")
    assert ratios == {peers.LADDER: "1.00"} | theirs
    assert (tmp_path / "peers.png").exists()
    assert call(*command, "--amp") == 0
    assert sum("--amp" in command for command in commands) == 2 * len(peers.CONTENDERS)
    assert (tmp_path / "peers-amp.csv").exists()
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nImportError: no ptan\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **named: failed)
    assert call(*command) == 1
    assert capsys.readouterr().err.strip().endswith("ImportError: no ptan")
