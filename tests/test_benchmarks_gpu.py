"""An hour on a GPU, rehearsed on the CPU."""

from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.__main__ import main
from benchmarks.gpu.steps import Step


def step(name: str, *programs: str, least: float = 0, most: float = 1) -> Step:
    return Step(name, "", tuple(("-c", program) for program in programs), least, most)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Takes the place of the real steps."""
    plan: list[Step] = []
    monkeypatch.setattr(gpu, "steps", lambda out, **_: plan)
    monkeypatch.setattr(gpu, "GRACE_SECONDS", 5)
    return plan


def call(out: Path, *flags: str) -> int:
    return main(["gpu", "--rehearse", "--out", str(out), *flags])


def test_every_step_is_made_whatever_comes_of_the_others(planned, tmp_path):
    forever = (
        "import signal, time; signal.signal(signal.SIGINT, {}); print('ticking', flush=True)\n"
    )
    forever += "while True: time.sleep(1)"
    planned += [
        step("versions", "print('one'); raise SystemExit(3)", "print('a | b')"),
        step("tests", forever.format("signal.default_int_handler"), most=0.03),
        step("waits", forever.format("signal.SIG_IGN"), most=0.03),
        step("fps", "print('four')", least=2),
        step("techniques", "print('five')"),
    ]
    assert call(tmp_path, "--minutes", "1") == 1
    rows = (tmp_path / "summary.csv").read_text().splitlines()[1:]
    outcomes = {row.split(",")[0]: row.split(",")[1] for row in rows}
    assert outcomes == {
        "versions": gpu.FAILED,
        "tests": gpu.TOO_LONG,
        "waits": gpu.TOO_LONG,
        "fps": gpu.NO_TIME,
        "techniques": gpu.DONE,
    }
    assert "a / b" in (tmp_path / "summary.md").read_text()
    assert "KeyboardInterrupt" in (tmp_path / "tests.txt").read_text()
    assert (tmp_path / "waits.txt").read_text() == "ticking\n"
    assert "- Held: techniques" in (tmp_path / "summary.md").read_text()


def test_the_summary_is_written_after_each_step(planned, tmp_path):
    planned += [
        step("versions", "print('torch')"),
        step("tests", f"print(open({str(tmp_path / 'summary.csv')!r}).read())"),
        step("waits", "pass"),
    ]
    assert call(tmp_path, "--only", "versions", "tests") == 0
    assert "versions,held" in (tmp_path / "tests.txt").read_text()
    assert not (tmp_path / "waits.txt").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_is_one_line(tmp_path, capsys):
    assert main(["gpu", "--out", str(tmp_path)]) == 2
    assert "--rehearse" in capsys.readouterr().err


def test_a_rehearsal_of_a_real_step(tmp_path):
    assert call(tmp_path, "--only", "fps") == 0
    assert "01_baseline" in (tmp_path / "fps" / "table.md").read_text()
