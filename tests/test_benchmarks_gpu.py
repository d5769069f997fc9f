"""An hour on a GPU, rehearsed on the CPU."""

from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.__main__ import main
from benchmarks.gpu import check
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
        step("techniques", f"print(open({str(tmp_path / 'summary.csv')!r}).read())"),
        step("breakdown", "pass"),
    ]
    chosen = [step.name for step in planned[:-1]]
    assert call(tmp_path, "--minutes", "1", "--only", *chosen) == 1
    rows = (tmp_path / "summary.csv").read_text().splitlines()[1:]
    assert [row.split(",")[:2] for row in rows] == [
        ["versions", gpu.FAILED],
        ["tests", gpu.TOO_LONG],
        ["waits", gpu.TOO_LONG],
        ["fps", gpu.NO_TIME],
        ["techniques", gpu.DONE],
    ]
    assert "a / b" in (tmp_path / "summary.md").read_text()
    assert "KeyboardInterrupt" in (tmp_path / "tests.txt").read_text()
    assert (tmp_path / "waits.txt").read_text() == "ticking\n"
    assert "- Held: techniques" in (tmp_path / "summary.md").read_text()
    assert "fps,not run" in (tmp_path / "techniques.txt").read_text()  # written after each step


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_why(tmp_path, capsys):
    assert main(["gpu", "--out", str(tmp_path)]) == 2
    assert "--rehearse" in capsys.readouterr().err
    assert main(["gpu", "--check", "--out", str(tmp_path)]) == 1
    no_rung = f"No rung ran: torch {torch.__version__} cannot use"
    assert no_rung in (tmp_path / "check.md").read_text()


PROGRAMS = {
    "left": "print('left out: a | b: why\\nsolved after 1; avg_reward nan, 1,234.5 FPS')",
    "fails": "raise SystemExit('03: failed: no memory')",
    "hangs": "while True: pass",
}


def test_a_check_is_a_page_whatever_comes_of_the_rungs(monkeypatch, tmp_path, capsys):
    for name, program in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(program)
    monkeypatch.setattr("benchmarks.processes.ROOT", tmp_path)
    page = ""
    for names, seconds in ((("left", "fails"), 60), (("hangs",), 0.5)):
        monkeypatch.setattr(check, "RUNGS", dict.fromkeys(names, ()))
        monkeypatch.setattr(check, "SECONDS", seconds)
        assert call(tmp_path, "--check") == 1
        page += (tmp_path / "check.md").read_text()
    assert page.splitlines()[-1] in capsys.readouterr().out
    assert f"torch {torch.__version__}" in page
    assert "| left | done | 1,234.5 | left out: a / b: why; solved after" in page
    assert "| fails | exit code 1 |  | 03: failed: no memory |" in page
    assert "| hangs | stopped after" in page


def test_a_rehearsal_of_a_real_step(tmp_path):
    assert call(tmp_path, "--only", "fps") == 0
    assert "01_baseline" in (tmp_path / "fps" / "table.md").read_text()
