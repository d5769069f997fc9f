"""Resumed runs: which runs can be resumed, and with what."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Ended, everything, frames_of, one_line, read_events
from test_rungs import options_of

from lib.devices import has_bfloat16_units
from lib.running.checkpoints import find_checkpoint, read_checkpoint, write_checkpoint
from lib.running.flags import parse

# What another machine would have chosen.
FOREIGN = "float32" if has_bfloat16_units(torch.device("cpu")) else "bfloat16"


@pytest.fixture
def refused(ends: Callable[..., Ended]) -> Callable[..., str]:
    """Tries to resume a run, which changes nothing in its folder; the one line that says why."""

    def refused(script: str, run: Path, *flags: str) -> str:
        before = everything(run)
        result = ends(lambda: parse(options_of(script), ""), script, "--resume", run, *flags)
        assert (result.code, result.out) == (2, "")
        assert everything(run) == before
        return one_line(result.error)

    return refused


def change(run: Path, **hyperparameters: object) -> None:
    """Change what the latest checkpoint says of its settings."""
    file = find_checkpoint(run, "latest")
    kept = read_checkpoint(file)
    kept["settings"]["hyperparameters"] |= hyperparameters
    write_checkpoint(file, kept)


def test_what_cannot_be_resumed_is_refused(trained_copy, refused, tmp_path):
    run = trained_copy("01_baseline")
    assert "is a run of 01_baseline.py" in refused("02_n_envs", run)
    assert "--learning-rate" in refused("01_baseline", run, "--learning-rate", "1e-4")
    assert "--seed" in refused("01_baseline", run, "--seed", "3")
    assert "no checkpoint in a folder" in refused("01_baseline", tmp_path)
    change(run, dropout=0.5)
    assert "no setting dropout: an earlier version" in refused("01_baseline", run)
    for foreign in ({"model": torch.zeros(2)}, {"settings": Path("/")}):  # the last has code in it
        torch.save(foreign, run / "checkpoints" / "latest.pt")
        (run / "checkpoints" / "previous.pt").unlink(missing_ok=True)
        assert "latest.pt" in refused("01_baseline", run)


def test_what_another_machine_chose_is_kept_and_threads_may_change(trained_copy, monkeypatch):
    run = trained_copy("07_speedrun")
    change(run, precision=FOREIGN)
    monkeypatch.setattr("sys.argv", ["07_speedrun.py"])
    for threads in (0, 2):
        resumed = ["--resume", str(run), "--threads", str(threads)]
        options = parse(options_of("07_speedrun"), "", resumed)
        assert (options.precision, options.threads) == (FOREIGN, threads)


@pytest.mark.parametrize("script", ["06_compiled_update", "07_speedrun"])
def test_other_rungs_resume_without_a_seam(script, trained_copy, program):
    """No point of a curve may be there twice, or before an earlier one."""
    run = trained_copy(script)
    before = read_checkpoint(find_checkpoint(run, "latest"))
    frames = frames_of(script) + 100
    result = program(script, "--resume", run, "--max-frames", frames)
    assert result.code == 0, result.error
    assert list(run.parent.iterdir()) == [run]
    after = read_checkpoint(find_checkpoint(run, "latest"))
    assert after["progress"]["frames"] >= frames
    assert after["progress"]["iteration"] > before["progress"]["iteration"]
    assert after["speed"]["seconds"] > before["speed"]["seconds"]
    kept, resumed = (state["settings"]["hyperparameters"] for state in (before, after))
    changed = {name for name in kept if kept[name] != resumed[name]}
    assert changed == {"max_frames", "resume", "run_dir"}  # where it was copied to
    events = read_events(run.parent)
    for tag in events.Tags()["scalars"]:
        points = events.Scalars(tag)
        steps = [point.step for point in points]
        assert steps == sorted(set(steps)), tag
        if tag.endswith("time_passed"):
            assert [point.value for point in points] == sorted(point.value for point in points)
    assert len(events.Scalars("outcome/frames")) == 1


def test_the_average_of_a_speedrun_is_resumed(trained_copy, program):
    run = trained_copy("07_speedrun")
    file = find_checkpoint(run, "latest")
    # Without a rollout to learn from it makes no update in so few frames.
    kept = {name: part for name, part in read_checkpoint(file).items() if name != "buffer"}
    write_checkpoint(file, kept)
    frames = frames_of("07_speedrun") + 10
    result = program("07_speedrun", "--resume", run, "--max-frames", frames)
    assert result.code == 0, result.error
    resumed = read_checkpoint(file)["net"]["average"]
    assert resumed.keys() == kept["net"]["weights"].keys()
    for name, average in kept["net"]["average"].items():
        assert torch.equal(resumed[name], average)
