"""Every rung as a program, on real Pong."""

import ast
import os
import re
import runpy
import shutil
import signal
import sys
from dataclasses import fields, replace
from types import SimpleNamespace
from unittest.mock import Mock

from lib.envs import gpu_vector_env, vector_env
from lib.envs.experience import Transitions
from lib.learning.dqn_model import DuelingDQN
from lib.learning.schedules import LinearSchedule
from lib.seeds import game_seeds
from lib.training.checkpoints import find_checkpoint, read_checkpoint, write_checkpoint
from lib.training.evaluation import read_agent
from lib.training.flags import parse
from lib.training.hparams import NUMBERS, TEXTS
from lib.training.launch import make_folder
from lib.training.options import CommonOptions

import numpy as np
import psutil
import pytest
import torch
from conftest import (
    BEYOND,
    PARALLEL,
    ROOT,
    RUNGS,
    SERIAL,
    SPEEDRUNS,
    curves,
    frames_of,
    one_line,
    options_of,
    read_events,
    run_python,
    short_run,
)
from helpers import QUICK, start


@pytest.mark.parametrize("script", [*SERIAL, *PARALLEL, *BEYOND])
def test_trains_and_leaves_its_record(script, trained):
    result, frames = trained(script), frames_of(script)
    assert (result.code, result.error) == (0, "")
    begin = rf"run folder \S+ {script} in b?float\d+ on device cpu.* threads 1, .* torch 2\."
    assert re.match(begin, " ".join(result.out.split()))
    begins = re.findall(r"; ([a-z ]+) ran at [\d,]+ FPS, without updates", result.out)
    assert begins == ["first rollout" if script in SPEEDRUNS else "filling"]
    assert "left out" not in result.out  # 08 is compiled, and learns what it learns uncompiled
    assert re.search(r"episode +1 +reward +-?\d+ +avg +-.* \d:\d\d:\d\d$", result.out, re.MULTILINE)
    assert result.out.splitlines()[-1].startswith("frame limit reached in 0:0")

    name = rf"{script}-pong-\S*epsframes400\S*-seed5-\d{{4}}-\d\d-\d\dT\d\d-\d\d-\d\d"
    assert re.fullmatch(name, result.folder.name)
    events = read_events(result.folder)
    first = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    assert frames <= first["outcome/frames"] < frames + 12
    assert first["outcome/updates"] > (10 if script in PARALLEL else 90)
    assert first["outcome/solved"] == 0.0
    expected = {"episodes/reward", "episodes/avg_reward", "episodes/steps"}
    if script not in PARALLEL:  # whose player may be slower than these few updates
        expected |= {f"train/{name}" for name in ("loss", "avg_loss", "epsilon", "fps", "avg_fps")}
    assert expected <= first.keys()
    if script in SPEEDRUNS:  # avg_reward was there, but the agent loses
        assert first["outcome/reached_frames"] < frames
        assert first["trial/won"] == 0
        assert "training goes on" in result.out


@pytest.mark.parametrize("script", ["06_compiled_update", "08_recompiled_pong"])
def test_same_seed_same_run_bit_for_bit(script, trained, program, tmp_path):
    whole = curves(trained(script).folder)
    result = program(script, "--run-dir", tmp_path, *short_run(script))
    assert result.code == 0, result.error
    assert curves(*tmp_path.iterdir()) == whole
    assert any(tag == "train/loss" for tag, _, _ in whole)


def test_same_seed_same_run_if_it_is_killed_and_terminated(trained, tmp_path, program):
    """While a checkpoint is written, which leaves the one before, and while it trains."""
    script = "01_baseline"
    process = start(script, tmp_path, *short_run(script), "--checkpoint-every", "20")
    (run,) = tmp_path.iterdir()
    files = [run / "checkpoints" / f"latest.{kind}" for kind in ("pt", "pt.tmp")]
    while not all(file.exists() for file in files):
        assert process.poll() is None
    process.kill()
    process.communicate()
    assert read_checkpoint(find_checkpoint(run, "latest", "previous"))["progress"]["frames"] > 900

    process = start(script, tmp_path, "--resume", str(run), "--max-frames", "0")
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "")
    frames = read_checkpoint(find_checkpoint(run, "latest"))["progress"]["frames"]
    assert f"{frames:,} frames and" in out.split("interrupted in")[1]

    result = program(script, "--resume", run, "--max-frames", frames_of(script))
    assert result.code == 0, result.error
    assert not [*files[0].parent.glob("*.tmp")]
    assert curves(*tmp_path.iterdir()) == curves(trained(script).folder)


def test_several_environments_are_resumed_without_a_difference(trained, program, tmp_path):
    script, frames = "02_n_envs", frames_of("02_n_envs")
    early = (*short_run(script), "--run-dir", tmp_path, "--max-frames", frames - 61)
    assert program(script, *early).code == 0
    (run,) = tmp_path.iterdir()
    assert program(script, "--resume", run, "--max-frames", frames).code == 0
    assert curves(run) == curves(trained(script).folder)


def test_slow_gradients_change_no_number(trained):
    """00 does the arithmetic of 01: what it leaves on costs time and memory, nothing else."""
    slow, usual = (curves(trained(script).folder) for script in SERIAL[:2])
    assert slow == usual  # bit for bit; avg_loss is made of every loss
    assert len({value for tag, _, value in usual if tag == "train/avg_loss"}) == 2


@pytest.mark.parametrize("script", ["06_compiled_update", "07_speedrun", "10_thousands_of_games"])
def test_other_rungs_are_resumed(script, trained, program, tmp_path, monkeypatch):
    run = shutil.copytree(trained(script).folder, tmp_path / "run")
    before = read_checkpoint(find_checkpoint(run, "latest"))
    frames, seeds = frames_of(script) + 100, Mock(side_effect=game_seeds)
    for module in (vector_env, gpu_vector_env):
        monkeypatch.setattr(module, "game_seeds", seeds)
    result = program(script, "--resume", run, "--max-frames", frames)
    assert result.code == 0, result.error
    after = read_checkpoint(find_checkpoint(run, "latest"))
    assert after["progress"]["frames"] >= frames
    # Its games are new ones, and not again those of the start.
    assert [call.args[0] for call in seeds.call_args_list][:1] not in ([], [5])
    played, updates = (
        after["progress"][name] - before["progress"][name] for name in ("frames", "iteration")
    )
    assert updates > 0
    if script in SPEEDRUNS:  # the first new rollout comes before it is learned from, once
        assert updates <= (played - 16 * 2) / 16 + 1
    assert after["speed"]["seconds"] > before["speed"]["seconds"]


@pytest.mark.parametrize("script", PARALLEL)
def test_a_resumed_player_does_not_play_its_first_game_again(script):
    """Actions are random here, as those of an agent that knows nothing, in 400 frames."""
    rung, steps = runpy.run_path(str(ROOT / f"{script}.py"), run_name=script), list[Transitions]()

    def put(step: Transitions) -> None:
        steps.append(step)
        if len(steps) % 400 == 0:
            raise EOFError  # the trainer is gone

    arguments = SimpleNamespace(put=put), rung["Options"](seed=5), lambda states: states
    for frames in (0, 0, 1_000, 2_000):
        with pytest.raises(EOFError):
            rung["player_process"](*arguments, LinearSchedule(1.0, 1.0, 1), frames)
    first, again, resumed, later = np.split(np.concatenate([s.actions for s in steps]), 4)
    assert (first == again).all()
    for one, other in ((first, resumed), (first, later), (resumed, later)):
        assert (one == other).mean() < 0.5


@pytest.mark.parametrize(
    ("script", "source"),
    [("01_baseline", BEYOND[1]), (BEYOND[1], "01_baseline"), SPEEDRUNS[:1] * 2],
)
def test_a_new_run_begins_with_trained_weights(script, source, trained, program, tmp_path):
    flags = ("--init-from", trained(source).folder, "--run-dir", tmp_path, "--max-frames", 1)
    result = program(script, *flags)
    assert result.code == 0, result.error
    (run,) = tmp_path.iterdir()
    if script == "01_baseline":
        assert "1 frame and 0 updates" in result.out
        assert "nan" not in result.out
        assert "initial weights: " in result.out
        again = program(script, "--resume", run, "--max-frames", 2).out
        assert "initial weights: " not in again
    (before, _), (now, _) = map(read_agent, (trained(source).folder, run))
    kept = read_checkpoint(find_checkpoint(run))
    target = kept.get("target_net", kept["net"].get("weights"))
    for name, weight in before.state_dict().items():
        assert torch.equal(now.state_dict()[name], weight)
        assert torch.equal(target[name], weight.to(target[name].dtype))


@pytest.mark.parametrize("script", ["01_baseline", "07_speedrun"])
def test_weights_of_another_network_are_refused(script, trained, program, tmp_path):
    """This one sees a single frame; with its kernel repeated it would fit into that of 07."""
    kept = read_checkpoint(find_checkpoint(trained("07_speedrun").folder))
    network = DuelingDQN((1, 30, 42), 3)
    kept["settings"]["network"]["arguments"] = network.arguments
    write_checkpoint(tmp_path / "agent.pt", kept | {"net": network.state_dict()})
    flags = ("--init-from", tmp_path / "agent.pt", "--run-dir", tmp_path / "runs")
    result = program(script, *flags, "--max-frames", 1)
    assert (result.code, f"does not fit {script}" in one_line(result.error)) == (1, True)


def test_the_precision_that_another_machine_chose_is_kept(trained, tmp_path, monkeypatch):
    run = shutil.copytree(trained("07_speedrun").folder, tmp_path / "run")
    kept = read_checkpoint(find_checkpoint(run, "latest"))
    settings = kept["settings"]["hyperparameters"]
    settings["precision"] = {"float32": "bfloat16", "bfloat16": "float32"}[settings["precision"]]
    write_checkpoint(run / "checkpoints" / "latest.pt", kept)
    monkeypatch.setattr(sys, "argv", ["07_speedrun.py"])
    resumed = parse(options_of("07_speedrun"), "", ["--resume", str(run), "--threads", "2"])
    assert (resumed.precision, resumed.threads) == (settings["precision"], 2)


BAD = """
01_baseline --learning-rate -1
01_baseline --stop-reward nan
01_baseline --replay-size 10
01_baseline --replay-size 100000000
01_baseline --env ALE/Pong-v5
01_baseline --epsilon-final 1.0 --epsilon-start 0.5
01_baseline --device cuda:99
01_baseline --no-cuda --device cuda
01_baseline --cuda --device cpu
02_n_envs --replay-size 10 --replay-initial 10
05_vector_env --batch-size 65536
03_parallel --play-device cuda:99
04_new_wrappers_n_env --resize magic
06_compiled_update --precision float16
07_speedrun --precision float32 --amp
07_speedrun --epochs inf
07_speedrun --env BreakoutNoFrameskip-v4
08_recompiled_pong --env BreakoutNoFrameskip-v4
08_recompiled_pong --rollout 1024 --envs 1024 --stack 16
10_thousands_of_games --envs 16385
10_thousands_of_games --batch-size 65537
09_many_machines --replay-size 100000 --envs 256 --message-steps 400
09_many_machines --address somewhere
09_many_machines --address :6379
"""


@pytest.mark.parametrize("command", BAD.strip().splitlines())
def test_bad_arguments_are_refused_in_one_line(command, tmp_path, ends):
    script, *flags = command.split()
    place = tmp_path / "runs"
    result = ends(lambda: parse(options_of(script), ""), script, *flags, "--run-dir", place)
    assert (result.code, result.out) == (2, "")
    assert flags[0] in one_line(result.error)
    assert not place.exists()


def test_what_is_typed_by_habit_is_accepted_or_corrected(ends, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["02_n_envs.py"])
    options, usual = options_of("02_n_envs"), ["--replay_size=1E5", "--max-frames", "7,000,000"]
    run = parse(options, "", [*usual, "--dev=cpu", "--replay-initial", "10_000", "--gamma=1"])
    assert run == replace(options(), max_frames=7_000_000, gamma=1.0).resolved()
    assert run.stop_reward == 17
    other = parse(options, "", ["--env=BreakoutNoFrameskip-v4", "--max-frames=1"])
    assert other.stop_reward is None
    long, too_long = "a" * 300, "[Errno 36] File name too long"
    for flags, message in (
        (("--lr", "1e-4"), "did you mean --learning-rate?"),
        (("--step", "1"), "did you mean --steps?"),
        (("--gpu",), "did you mean --cuda?"),
        (("--cpu",), "did you mean --device cpu?"),
        (("--env-id", "x"), "did you mean --env?"),  # names of other libraries
        (("--logdir", "x"), "did you mean --run-dir?"),
        (("--n-steps", "1"), "there is no --n-steps (--help"),  # which steps does not mean
        (("--render",), "there is no --render (--help"),
        (("--resume", ""), "--resume: must not be empty"),
        (("--resume", "nothere"), "--resume: there is no folder nothere"),
        (("--resume", __file__), f"a new run can begin with --init-from {__file__}"),
        (("--init-from", __file__), "--init-from: " + __file__ + " is damaged, or not a check"),
        (("--env", "ALE/Breakout-v5"), "for example BreakoutNoFrameskip-v4"),
        (("--replay-size", "1,5"), "'1,5' is not a whole number"),
        (("--stop-reward", "17,500"), "'17,500' is not a number"),
        (("--envs", "1.55e1"), "'1.55e1' is not a whole number"),
        (("--envs", "1e3"), "must be 1 to 256, not 1e3"),
        (("--max-frames", "-1"), "must be 0 or more, not -1"),
        (("--max-frames", "9" * 400), "must be 0 or more, not 999"),
        (("--run-dir", long), f"--run-dir: {too_long}"),
        (("--resume", long), f"--resume: {too_long}"),
        (("--init-from", long), f"--init-from: {too_long}"),
    ):
        assert message in one_line(ends(lambda: parse(options, ""), "02_n_envs.py", *flags).error)


def test_changed_settings_are_in_the_name_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda _: "now")
    many = dict.fromkeys(("replay_size", "envs", "steps", "stack", "noop_max"), 8)
    many |= {"replay_initial": 3, "target_sync": 2, "batch_size": 4}
    shown = "-steps8-envs8-stack8-noopmax8-targetsync2-replayinitial3-and2more"
    elsewhere = {"env": "BreakoutNoFrameskip-v4", "device": "cuda:1", "play_device": "cuda:0"}
    for script, settings, name in (
        ("n_env", {"threads": 1}, "04-pong-seed0-now"),
        ("n_env", {"threads": 2, "init_from": "agent.pt"}, "04-pong-seed0-now-2"),
        ("n_env", {"envs": 4, "clip_reward": False, "amp": True, "learning_rate": 1e-5},
         "04-pong-envs4-noclipreward-lr1e-05-amp-seed0-now"),
        ("n_env", many, f"04-pong{shown}-seed0-now"),
        ("parallel", elsewhere, "04-breakout-playdevicecuda0-cuda1-seed0-now"),
    ):  # fmt: skip
        options = options_of(f"04_new_wrappers_{script}")(run_dir=str(tmp_path), **settings)
        assert make_folder(options.resolved(), "04").name == name


@pytest.mark.parametrize("script", RUNGS)
def test_every_rung_explains_itself(script, ends):
    options, source = options_of(script), RUNGS[script]
    assert len(source.splitlines()) <= 115
    if script in SERIAL + PARALLEL:  # the reader of the book finds the handlers
        assert "    # These handlers smooth the rewards of whole games, stop at" in source
    description = ast.get_docstring(ast.parse(source))
    text = ends(lambda: parse(options, description), script, "--help").out
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"--seed INT .* in bfloat16 \(default: off\)", text, re.DOTALL)
    flags = re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)
    assert flags[:2] == ["--seed", "--max-frames"]
    assert len(flags) == len(fields(options))
    # TensorBoard's columns are those of all rungs.
    settings, common = ({entry.name for entry in fields(kind)} for kind in (options, CommonOptions))
    assert settings - common <= {*NUMBERS, *TEXTS}


@pytest.mark.slow
def test_a_new_rung_whose_idea_is_the_update_passes_its_tests(tmp_path):
    """What docs/add-a-rung.md says, done: a Double DQN with RMSprop."""
    source = RUNGS["01_baseline"]
    for part, idea in (
        ("import Adam", "import RMSprop"),
        ("Adam(net.parameters(), params.learning_rate, eps=params.adam_epsilon, fused=True)",
         "RMSprop(net.parameters(), params.learning_rate)"),
        ("next_q = target_net(batch.next_states)",
         "best = net(batch.next_states).argmax(1, keepdim=True)\n"
         "                next_q = target_net(batch.next_states).gather(1, best)"),
    ):  # fmt: skip
        assert source.count(part) == 1
        source = source.replace(part, idea)
    for name in ("lib", "pong_emulator", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for file in (*ROOT.glob("*.py"), ROOT / "pyproject.toml"):
        shutil.copy(file, tmp_path)
    (tmp_path / "11_double_dqn.py").write_text(source, encoding="utf-8")
    files = "tests/test_rungs.py", "tests/test_what_is_played.py"
    run = run_python("-m", "pytest", "-n", "0", "-k", "11_double_dqn", *files, cwd=tmp_path)
    assert re.search(r"\b3 passed", run.stdout), run.stdout


def wait_until_gone(below: list[psutil.Process]) -> list[psutil.Process]:
    """Those that are still there after five seconds."""
    _, alive = psutil.wait_procs(below, timeout=5)
    return [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


def test_interrupted_runs_leave_complete_records_and_no_process(tmp_path):
    """Ctrl-C, which all processes get; it is resumed, and the trainer killed."""
    process = start("03_parallel", tmp_path, *QUICK, "--amp", "--play-device", "cpu")
    below = psutil.Process(process.pid).children()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "interrupted in" in out
    (run,) = tmp_path.iterdir()
    frames = int(read_events(run).Scalars("outcome/frames")[0].value)
    assert wait_until_gone(below) == []

    more = ("--resume", str(run), "--max-frames", "20000")
    process = start("03_parallel", tmp_path, *more, after=frames - 1)  # its buffer is full
    below = psutil.Process(process.pid).children()
    assert any("spawn_main" in " ".join(child.cmdline()) for child in below)  # the player
    process.kill()
    process.communicate(timeout=60)
    assert wait_until_gone(below) == []
