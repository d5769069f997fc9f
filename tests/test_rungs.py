"""Every rung as a program, on real Pong."""

import os
import re
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
from conftest import (
    BEYOND,
    PARALLEL,
    ROOT,
    SERIAL,
    SPEEDRUNS,
    curves,
    envs_of,
    frames_of,
    read_events,
    run_rung,
    short_run,
)

from lib.running.flags import parse
from lib.running.hparams import NUMBERS, TEXTS
from lib.running.options import CommonOptions, ReplayOptions

QUICK = ("--replay-initial", "300", "--replay-size", "1000", "--batch-size", "4")


@pytest.mark.parametrize("script", [*SERIAL, *PARALLEL, *BEYOND])
def test_trains_and_leaves_its_record(script, trained):
    result, frames = trained(script), frames_of(script)
    assert (result.returncode, result.stderr) == (0, "")
    assert re.match(
        rf"{script} in b?float\d+ on device cpu.* threads \d+.* torch 2\.", result.stdout
    )
    assert result.stdout.count("training begins at frame") == 1
    assert re.search(r"episode +1 +reward +-?\d+ +avg_reward", result.stdout)
    assert result.stdout.splitlines()[-1].startswith("frame limit reached after ")

    events, name = read_events(result.folder.parent), result.folder.name
    assert re.fullmatch(rf"{script}-pong-seed5-\d{{4}}-\d\d-\d\dT\d\d-\d\d-\d\d", name)
    tags = set(events.Tags()["scalars"])
    assert {f"episodes/{name}" for name in ("reward", "avg_reward", "steps")} <= tags
    outcome = {name: events.Scalars(f"outcome/{name}")[0].value for name in ("frames", "updates")}
    assert frames <= outcome["frames"] < frames + 12
    assert outcome["updates"] > (30 if script in PARALLEL else 200)
    if outcome["updates"] >= 100:
        names = ("loss", "avg_loss", "epsilon", "fps", "avg_fps", "frames", "time_passed")
        assert {f"train/{name}" for name in names} <= tags
    assert events.Scalars("outcome/solved")[0].value == 0.0
    settings = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"learning_rate" in settings
    assert script.encode() in settings
    assert "_hparams_/session_end_info" in events.summary_metadata


@pytest.mark.parametrize("script", [*SERIAL, *PARALLEL, *BEYOND, "09_many_machines"])
def test_the_columns_of_a_rung_are_those_of_all_rungs(script):
    settings = {entry.name for entry in fields(options_of(script))}
    common = {entry.name for entry in fields(CommonOptions)}
    assert settings - common <= {*NUMBERS, *TEXTS}


def test_solved_is_exit_code_0(tmp_path):
    long = ("--replay-initial", "1000", "--replay-size", "1000")  # the game is over before
    result = run_rung("01_baseline", tmp_path, *long, "--stop-reward", "-21")
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1].startswith("solved after")
    assert read_events(tmp_path).Scalars("outcome/solved")[0].value == 1.0


@pytest.mark.parametrize("script", ["01_baseline", "06_compiled_update", "08_recompiled_pong"])
def test_same_seed_same_run_bit_for_bit_even_if_it_was_interrupted(script, trained, tmp_path):
    flags = short_run(script)
    if script in SERIAL:
        first = ("--max-frames", str(frames_of(script) - 150 * envs_of(script)))
        assert run_rung(script, tmp_path, *flags, *first).returncode == 0
        (run,) = tmp_path.iterdir()
        flags = ["--resume", str(run), "--stop-reward", "100"]
        flags += ["--max-frames", str(frames_of(script))]
    result = run_rung(script, tmp_path, *flags)
    assert result.returncode == 0, result.stderr
    whole = curves(trained(script).folder.parent)
    assert whole == curves(tmp_path)
    assert any(tag == "train/loss" for tag, _, _ in whole)


def test_slow_gradients_change_no_number(trained):
    """00 does the arithmetic of 01: what it leaves on costs time and memory, nothing else."""
    slow, usual = (curves(trained(script).folder.parent) for script in SERIAL[:2])
    assert slow == usual  # bit for bit; avg_loss is made of every loss
    assert len({value for tag, _, value in usual if tag == "train/avg_loss"}) == 3


def options_of(script: str) -> type:
    """The settings of a rung, without running it."""
    module = runpy.run_path(str(ROOT / f"{script}.py"), run_name=script)
    return module.get("Options", ReplayOptions)


BAD = [
    ("01_baseline", ("--learning-rate", "-1")),
    ("01_baseline", ("--gamma", "1.5")),
    ("01_baseline", ("--batch-size", "0")),
    ("01_baseline", ("--batch-size", "many")),
    ("01_baseline", ("--seed", "-1")),
    ("01_baseline", ("--max-frames", "-5")),
    ("01_baseline", ("--stop-reward", "nan")),
    ("01_baseline", ("--replay-size", "10")),
    ("01_baseline", ("--replay-size", "100000000")),
    ("01_baseline", ("--epsilon-final", "1.0", "--epsilon-start", "0.5")),
    ("01_baseline", ("--env", "ALE/Pong-v5")),
    ("01_baseline", ("--no-such-flag",)),
    ("01_baseline", ("--envs", "3")),
    ("02_n_envs", ("--envs", "0")),
    ("02_n_envs", ("--envs", "1000000")),
    ("01_baseline", ("--env", "PongNoFrameskip-v0")),
    ("01_baseline", ("--threads", "-1")),
    ("02_n_envs", ("--batch-size", "4096", "--envs", "200")),
    ("05_vector_env", ("--batch-size", "65536")),
    ("02_n_envs", ("--replay-size", "10", "--replay-initial", "10")),
    ("03_parallel", ("--steps", "0")),
    ("03_parallel", ("--sync-frames", "-1")),
    ("03_parallel", ("--play-device", "toaster")),
    ("03_parallel", ("--play-device", "cuda:99")),
    ("04_new_wrappers_n_env", ("--resize", "magic")),
    ("04_new_wrappers_parallel", ("--stack", "0")),
    ("06_compiled_update", ("--precision", "float16")),
    ("06_compiled_update", ("--replay-size", "10", "--replay-initial", "10", "--envs", "8")),
    ("07_speedrun", ("--precision", "float32", "--amp")),
    ("07_speedrun", ("--env", "BreakoutNoFrameskip-v4")),
    ("07_speedrun", ("--epsilon-final", "0")),
    ("08_recompiled_pong", ("--env", "BreakoutNoFrameskip-v4")),
    ("01_baseline", ("--device", "cuda:99")),
    ("09_many_machines", ("--replay-size", "100000", "--envs", "256", "--message-steps", "400")),
]


@pytest.mark.parametrize(("script", "flags"), BAD, ids=lambda value: "".join(value))
def test_bad_arguments_are_refused_in_one_line(script, flags, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        parse(options_of(script), script, [*flags, "--run-dir", str(tmp_path / "runs")])
    out, err = capsys.readouterr()
    assert end.value.code == 2
    assert len(err.strip().splitlines()) == 1, err
    assert flags[0] in err
    assert out == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("script", [*SPEEDRUNS, "09_many_machines"])
def test_more_games_make_no_larger_batch(script, tmp_path):
    options = options_of(script)(envs=256, batch_size=65_536, run_dir=str(tmp_path))
    assert "--batch-size" not in (options.problem() or "")  # there may be no Ray


@pytest.mark.parametrize("script", [*SERIAL, *PARALLEL, *BEYOND])
def test_every_rung_explains_itself(script, capsys):
    source = (ROOT / f"{script}.py").read_text()
    description = source.split('"""')[1]
    assert ("The book ends before" if script in BEYOND else "The chapter measured") in description
    assert len(source.splitlines()) <= (115 if script in BEYOND else 100)
    with pytest.raises(SystemExit):
        parse(options_of(script), "", ["--help"])
    text = capsys.readouterr().out
    flags = re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)
    assert flags[:2] == ["--seed", "--max-frames"]
    assert {"--cuda", "--device", "--stop-reward", "--run-dir", "--amp"} <= set(flags)
    assert len(flags) == len(fields(options_of(script)))
    titles = re.findall(r"^(run|learning|playing|wrappers):", text, re.MULTILINE)
    assert titles[:3] == ["run", "learning", "playing"]


def start(script: str, folder: Path, *flags: str) -> subprocess.Popen:
    """Start a rung in a session of its own and wait until it trains."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / f"{script}.py"), "--run-dir", str(folder), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stdout:
        if line.startswith("training begins"):
            return process
    raise AssertionError(process.communicate()[1])


def children(process: subprocess.Popen) -> list[int]:
    """Players of a trainer (and the resource tracker that Python starts beside them)."""
    return [
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]


def is_player(pid: int) -> bool:
    return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()


def wait_until_gone(pids: list[int]) -> list[int]:
    """Those that are still there after five seconds."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        pids = [pid for pid in pids if Path(f"/proc/{pid}").exists() and not is_zombie(pid)]
        if not pids:
            break
    return pids


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("script", "number"), [("01_baseline", signal.SIGTERM), ("03_parallel", signal.SIGINT)]
)
def test_interrupted_runs_leave_complete_records_and_no_process(script, number, tmp_path):
    more = ("--amp", "--play-device", "cpu") if script == "03_parallel" else ()
    process = start(script, tmp_path, *QUICK, *more)
    below = children(process)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number, err
    assert "interrupted after" in out
    assert err == ""
    assert read_events(tmp_path).Scalars("outcome/frames")[0].value >= 300
    assert wait_until_gone(below) == []


def test_the_death_of_the_player_is_noticed(tmp_path):
    process = start("03_parallel", tmp_path, *QUICK)
    (player,) = filter(is_player, children(process))
    os.kill(player, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.strip() == "03_parallel: failed: the player was killed by SIGKILL"


def test_the_death_of_the_trainer_leaves_no_process(tmp_path):
    process = start("03_parallel", tmp_path, *QUICK)
    below = children(process)
    assert any(map(is_player, below))
    process.kill()
    process.communicate(timeout=30)
    assert wait_until_gone(below) == []
