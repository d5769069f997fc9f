"""Resumed runs: which runs can be resumed, and with what."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, frames_of, read_events, run_rung
from test_rungs import options_of

from lib.devices import has_bfloat16_units
from lib.running.checkpoints import (
    CheckpointError,
    find_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from lib.running.flags import parse
from lib.running.options import ReplayOptions

# What another machine would have chosen.
FOREIGN = "float32" if has_bfloat16_units(torch.device("cpu")) else "bfloat16"


def everything(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def refused(monkeypatch, capsys) -> Callable[..., str]:
    """Tries to resume a run, which changes nothing in its folder; the one line that says why."""

    def refused(script: str, run: Path, *flags: str) -> str:
        before = everything(run)
        monkeypatch.setattr("sys.argv", [f"{script}.py"])
        with pytest.raises(SystemExit) as end:
            parse(options_of(script), "", ["--resume", str(run), *flags])
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (2, "")
        assert len(err.strip().splitlines()) == 1, err
        assert everything(run) == before
        return err

    return refused


def rewrite(run: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change what the latest checkpoint holds."""
    file = find_checkpoint(run, "latest")
    write_checkpoint(file, change(read_checkpoint(file)))


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda kept: {name: part for name, part in kept.items() if name not in names}


@pytest.mark.parametrize(
    ("script", "flags", "word"),
    [
        ("02_n_envs", (), "is a run of 01_baseline.py"),
        ("01_baseline", ("--learning-rate", "1e-4"), "--learning-rate"),
        ("01_baseline", ("--seed", "3"), "--seed"),
    ],
)
def test_another_script_or_setting_is_refused(script, flags, word, trained_copy, refused):
    run = trained_copy("01_baseline")
    assert word in refused(script, run, *flags)


def test_threads_are_kept_and_may_change(trained_copy, monkeypatch):
    monkeypatch.setattr("sys.argv", ["01_baseline.py"])
    run = trained_copy("01_baseline")
    resumed = ["--resume", str(run)]
    assert parse(ReplayOptions, "", resumed).threads == 0
    assert parse(ReplayOptions, "", [*resumed, "--threads", "2"]).threads == 2


def test_foreign_checkpoints_are_refused(refused, tmp_path):
    place = tmp_path / "run" / "checkpoints"
    place.mkdir(parents=True)
    with pytest.raises(CheckpointError, match="no checkpoint in a folder"):
        find_checkpoint(tmp_path, "latest")
    foreign = place / "latest.pt"
    damages = {
        "of another program": lambda: torch.save({"model": torch.zeros(2)}, foreign),
        "with code in it": lambda: torch.save({"settings": Path("/")}, foreign),
    }
    for damage in damages.values():
        damage()
        assert "latest.pt" in refused("01_baseline", place.parent)


def test_a_checkpoint_holds_the_run(trained):
    checkpoint = read_checkpoint(find_checkpoint(trained("01_baseline").folder, "latest"))
    assert checkpoint["settings"]["script"] == "01_baseline"
    assert checkpoint["settings"]["hyperparameters"]["learning_rate"] == 2e-4
    assert checkpoint["progress"]["frames"] == 1_100
    assert checkpoint["progress"]["iteration"] == 300  # the last frame ended the run
    assert checkpoint["speed"]["seconds"] > 0
    assert set(checkpoint["net"]) == set(checkpoint["target_net"])


def assert_no_seam(folder: Path) -> None:
    """No point of a curve may be there twice, or before an earlier one."""
    events = read_events(folder)
    for tag in events.Tags()["scalars"]:
        points = events.Scalars(tag)
        steps = [point.step for point in points]
        assert steps == sorted(set(steps)), tag
        if tag.endswith("time_passed"):
            assert [point.value for point in points] == sorted(point.value for point in points)
    assert len(events.Scalars("outcome/frames")) == 1


def resume(script: str, run: Path, more: int) -> None:
    """Let a run go on for so many frames."""
    before = read_checkpoint(find_checkpoint(run, "latest"))
    frames = frames_of(script) + more
    result = run_rung(script, run.parent, "--resume", str(run), "--max-frames", str(frames))
    assert result.returncode == 0, result.stderr
    assert list(run.parent.iterdir()) == [run]
    after = read_checkpoint(find_checkpoint(run, "latest"))
    assert after["progress"]["frames"] >= frames
    assert after["progress"]["iteration"] > before["progress"]["iteration"]
    assert after["speed"]["seconds"] > before["speed"]["seconds"]
    kept, resumed = (state["settings"]["hyperparameters"] for state in (before, after))
    changed = {name for name in kept if kept[name] != resumed[name]}
    assert changed == {"max_frames", "resume", "run_dir"}  # where it was copied to
    assert_no_seam(run.parent)


@pytest.mark.parametrize("script", ["03_parallel", "06_compiled_update"])
def test_the_other_rungs_resume_too(script, trained_copy):
    run = trained_copy(script)
    if script == "03_parallel":
        rewrite(run, without("buffer"))  # it is filled again
    resume(script, run, 1_000 if script == "03_parallel" else 100)


def test_the_precision_that_another_machine_chose_is_kept(trained_copy, monkeypatch):
    def elsewhere(kept: dict[str, Any]) -> dict[str, Any]:
        kept["settings"]["hyperparameters"]["precision"] = FOREIGN
        return kept

    run = trained_copy("07_speedrun")
    rewrite(run, elsewhere)
    monkeypatch.setattr("sys.argv", ["07_speedrun.py"])
    resumed = parse(options_of("07_speedrun"), "", ["--resume", str(run)])
    assert resumed.precision == FOREIGN


def test_the_average_of_a_speedrun_is_resumed(trained_copy):
    script = "07_speedrun"
    run = trained_copy(script)
    kept = read_checkpoint(find_checkpoint(run, "latest"))["net"]
    assert kept["average"].keys() == kept["weights"].keys()
    # Without a rollout to learn from it makes no update in so few frames.
    rewrite(run, without("buffer"))
    limit = str(frames_of(script) + 10)
    result = run_rung(script, run.parent, "--resume", str(run), "--max-frames", limit)
    assert result.returncode == 0, result.stderr
    resumed = read_checkpoint(find_checkpoint(run, "latest"))["net"]
    for name, average in kept["average"].items():
        assert torch.equal(resumed["average"][name], average)


@pytest.mark.usefixtures("signals")
def test_what_a_checkpoint_lacks_is_told_in_one_line(trained_copy, monkeypatch, capsys):
    run = trained_copy("07_speedrun")
    rewrite(run, without("explore"))
    monkeypatch.setattr("sys.argv", ["07_speedrun.py", "--resume", str(run)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "07_speedrun.py"), run_name="__main__")
    err = capsys.readouterr().err
    assert end.value.code == 1
    assert "has no explore: an earlier version saved it" in err
    assert len(err.strip().splitlines()) == 1, err
