"""Resumed runs: which runs can be resumed, and with what."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import SPEEDRUNS, read_events, run_rung

from lib.devices import has_bfloat16_units
from lib.running.checkpoints import CheckpointError, find_checkpoint, read_checkpoint
from lib.running.flags import parse
from lib.running.options import ReplayOptions

# What another machine would have chosen.
FOREIGN = "float32" if has_bfloat16_units(torch.device("cpu")) else "bfloat16"
QUICK = ("--replay-initial", "300", "--replay-size", "1000", "--batch-size", "4")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of the baseline."""
    place = tmp_path_factory.mktemp("runs")
    result = run_rung(
        "01_baseline", place, *QUICK, "--max-frames", "900", "--learning-rate", "2e-4"
    )
    assert result.returncode == 0, result.stderr
    (folder,) = place.iterdir()
    return folder


def everything(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("script", "flags", "word"),
    [
        ("02_n_envs", (), "is a run of 01_baseline.py"),
        ("01_baseline", ("--learning-rate", "1e-4"), "--learning-rate"),
        ("01_baseline", ("--seed", "3"), "--seed"),
    ],
)
def test_another_script_or_setting_is_refused(run, script, flags, word):
    before = everything(run)
    result = run_rung(script, run.parent, "--resume", str(run), *flags)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert word in result.stderr
    assert everything(run) == before


def test_threads_are_kept_and_may_change(run, monkeypatch):
    monkeypatch.setattr("sys.argv", ["01_baseline.py"])
    resumed = ["--resume", str(run)]
    assert parse(ReplayOptions, "", resumed).threads == 0
    assert parse(ReplayOptions, "", [*resumed, "--threads", "2"]).threads == 2


def test_damaged_and_foreign_checkpoints_are_refused(run, tmp_path):
    whole = find_checkpoint(run, "latest")
    place = tmp_path / "run" / "checkpoints"
    place.mkdir(parents=True)
    with pytest.raises(CheckpointError, match="no checkpoint in a folder"):
        find_checkpoint(tmp_path, "latest")
    foreign = place / "latest-7.pt"
    damages = {
        "cut": lambda: foreign.write_bytes(whole.read_bytes()[:-50_000]),
        "empty": lambda: foreign.write_bytes(b""),
        "of another program": lambda: torch.save({"model": torch.zeros(2)}, foreign),
        "with code in it": lambda: torch.save({"settings": Path("/")}, foreign),
    }
    for damage in damages.values():
        damage()
        before = everything(tmp_path)
        result = run_rung("01_baseline", tmp_path, "--resume", str(place.parent))
        assert (result.returncode, result.stdout) == (2, ""), result.stderr
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
        assert "latest-7.pt" in result.stderr
        assert everything(tmp_path) == before


def test_a_checkpoint_holds_the_run(run):
    checkpoint = read_checkpoint(find_checkpoint(run, "latest"))
    assert checkpoint["settings"]["script"] == "01_baseline"
    assert checkpoint["settings"]["hyperparameters"]["learning_rate"] == 2e-4
    assert checkpoint["progress"]["frames"] == 900
    assert checkpoint["progress"]["iteration"] == 600  # the last frame ended the run
    assert checkpoint["speed"]["seconds"] > 0
    assert set(checkpoint["net"]) == set(checkpoint["target_net"])
    assert "buffer" not in checkpoint


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("03_parallel", QUICK),
        ("06_compiled_update", (*QUICK, "--envs", "2", "--checkpoint-replay")),
        (
            "07_speedrun",
            ("--rollout", "50", "--envs", "2", "--batch-size", "4", "--precision", FOREIGN),
        ),
    ],
)
def test_the_other_rungs_resume_too(script, flags, tmp_path):
    assert run_rung(script, tmp_path, *flags, "--max-frames", "900").returncode == 0
    (run,) = tmp_path.iterdir()
    before = read_checkpoint(find_checkpoint(run, "latest"))
    result = run_rung(script, tmp_path, "--resume", str(run), "--max-frames", "2500")
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.iterdir()) == [run]
    after = read_checkpoint(find_checkpoint(run, "latest"))
    assert after["progress"]["frames"] >= 2_500
    assert after["progress"]["iteration"] > before["progress"]["iteration"]
    assert after["speed"]["seconds"] > before["speed"]["seconds"]
    kept, resumed = (state["settings"]["hyperparameters"] for state in (before, after))
    changed = {name for name in kept if kept[name] != resumed[name]}
    assert changed == {"max_frames", "resume"}  # not the precision, which another machine chose
    events = read_events(tmp_path)
    for tag in events.Tags()["scalars"]:
        steps = [point.step for point in events.Scalars(tag)]
        assert steps == sorted(set(steps)), tag
    assert len(events.Scalars("outcome/frames")) == 1


@pytest.mark.parametrize("script", SPEEDRUNS)
def test_the_average_of_a_speedrun_is_resumed(script, tmp_path):
    flags = ("--rollout", "20", "--envs", "2", "--batch-size", "4", "--max-frames", "280")
    assert run_rung(script, tmp_path, *flags).returncode == 0
    (run,) = tmp_path.iterdir()
    kept = read_checkpoint(find_checkpoint(run, "latest"))["net"]
    assert kept["average"].keys() == kept["weights"].keys()
    result = run_rung(script, tmp_path, "--resume", str(run), "--max-frames", "281")
    assert result.returncode == 0, result.stderr
    resumed = read_checkpoint(find_checkpoint(run, "latest"))["net"]  # it made no update
    for name, average in kept["average"].items():
        assert torch.equal(resumed["average"][name], average)


def test_what_a_checkpoint_lacks_is_told_in_one_line(run, tmp_path):
    older = shutil.copytree(run, tmp_path / "older")
    newest = find_checkpoint(older, "latest")
    kept = read_checkpoint(newest)
    newest.unlink()  # it is mapped
    torch.save({name: kept[name] for name in kept if name != "agent"}, newest)
    result = run_rung("01_baseline", tmp_path, "--resume", str(older), "--max-frames", "1000")
    assert result.returncode == 1
    assert "has no agent: an earlier version saved it" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
