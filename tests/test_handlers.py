"""The handlers on a scripted stream of episodes, and what TensorBoard gets of it."""

import math
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from ignite.engine import Engine
from ignite.handlers import TensorboardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib.games.experience import Episode, Transition
from lib.learning.agents import LinearSchedule
from lib.learning.replay_buffer import ReplayBuffer
from lib.running.evaluation import evaluate
from lib.running.events import COUNTERS, PlayEvents, announce, replay_batches
from lib.running.handlers import attach_handlers
from lib.running.options import ReplayOptions
from lib.running.run import Failure, Run, Terminated, end_on_signals, launch

FRAME = np.zeros((1, 2, 2), np.uint8)


def stream(rewards: list[float], steps: int = 10):
    """Games of so many steps each, with these rewards."""
    for reward in rewards:
        for step in range(steps):
            last = step == steps - 1
            yield [
                Transition(
                    env=0,
                    action=0,
                    reward=0.0,
                    terminated=last,
                    frame=FRAME,
                    first_frame=FRAME if step == 0 else None,
                    episode=Episode(reward, steps) if last else None,
                )
            ]


def play(folder: Path, rewards: list[float], losses=lambda update: 1.0, **settings):
    """Run an engine over the stream; returns its state and the names of the events it fired."""
    options = ReplayOptions(**{"replay_initial": 20, "stop_reward": 17.0, **settings})
    buffer = ReplayBuffer(5_000, (2, 2, 2))
    fired: list[str] = []
    engine = Engine(lambda engine, batch: torch.tensor(losses(engine.state.iteration)))
    with TensorboardLogger(folder) as tensorboard:
        run = Run(options, torch.device("cpu"), folder, tensorboard, "01_baseline")
        attach_handlers(engine, run, LinearSchedule(1.0, 0.0, 1_000), {})
        for event in (PlayEvents.EPISODE_COMPLETED, PlayEvents.SOLVED):
            engine.add_event_handler(event, lambda _, name=event.value: fired.append(name))
        state = engine.run(
            replay_batches(engine, stream(rewards), buffer, options.replay_initial, 4)
        )
    return state, fired


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return [(point.step, point.value) for point in events.Scalars(tag)]


def test_episodes_are_smoothed_from_the_first_one_on(tmp_path):
    state, fired = play(tmp_path, [-20.0, -10.0, -21.0])
    assert fired == ["episode_completed"] * 3
    averages = [-20.0, -20.0 * 0.98 - 10.0 * 0.02]
    averages.append(averages[-1] * 0.98 - 21.0 * 0.02)
    assert state.avg_reward == pytest.approx(averages[-1])
    assert curve(tmp_path, "episodes/reward") == [(1, -20.0), (2, -10.0), (3, -21.0)]
    steps, values = zip(*curve(tmp_path, "episodes/avg_reward"), strict=True)
    assert steps == (1, 2, 3)
    assert values == pytest.approx(averages)
    assert curve(tmp_path, "episodes/steps") == [(1, 10.0), (2, 10.0), (3, 10.0)]
    assert curve(tmp_path, "episodes/frames") == [(1, 10.0), (2, 20.0), (3, 30.0)]


def test_solved_ends_the_run_at_once(tmp_path):
    state, fired = play(tmp_path, [10.0, 17.0, 500.0, 0.0, 0.0], stop_reward=17.0)
    assert state.episodes == 3
    assert state.frames == 30
    assert fired.count("solved") == 1


def test_a_bad_game_in_the_same_step_does_not_undo_the_solution(tmp_path):
    (good,) = next(stream([20.0], steps=1))
    bad = good._replace(env=1, episode=Episode(-500.0, 1))
    engine = Engine(lambda engine, batch: torch.tensor(0.0))
    with TensorboardLogger(tmp_path) as tensorboard:
        run = Run(ReplayOptions(), torch.device("cpu"), tmp_path, tensorboard, "01_baseline")
        attach_handlers(engine, run, LinearSchedule(1.0, 0.0, 10), {})
        buffer = ReplayBuffer(100, (2, 2, 2))
        state = engine.run(replay_batches(engine, [[good, bad]] * 3, buffer, 25, 4))
    assert (state.solved, state.frames, state.episodes) == (True, 2, 2)
    assert state.avg_reward < 17


def test_training_begins_when_enough_was_played(tmp_path):
    state, _ = play(tmp_path, [0.0] * 5)
    assert (state.frames, state.iteration, state.phase) == (50, 50 - 20 + 1, "training")
    assert curve(tmp_path, "outcome/updates") == [(0, 31.0)]
    state, _ = play(tmp_path, [0.0] * 5, replay_initial=100)
    assert (state.frames, state.iteration, state.phase) == (50, 0, "filling")
    assert state.avg_fps > 0


def test_an_update_is_due_when_frames_have_arrived():
    engine = Engine(lambda engine, batch: None)
    engine.register_events(*PlayEvents, event_to_attr=COUNTERS)
    engine.state.update_due = False
    for frames, due in ((0, False), (1, True), (0, True)):
        announce(engine, frames, [])
        assert engine.state.update_due is due


def test_frame_limit(tmp_path):
    state, _ = play(tmp_path, [0.0] * 50, max_frames=123)
    assert state.frames == 123


def test_curves_of_both_phases(tmp_path):
    state, _ = play(tmp_path, [0.0] * 260, replay_initial=2_200, losses=float)
    assert [step for step, _ in curve(tmp_path, "filling/fps")] == [1_000, 2_000]
    assert curve(tmp_path, "filling/epsilon") == [(1_000, 0.0), (2_000, 0.0)]
    updates = [100, 200, 300, 400]
    assert state.iteration == 401
    assert curve(tmp_path, "train/loss") == [(update, float(update)) for update in updates]
    assert curve(tmp_path, "train/frames") == [(update, 2_199.0 + update) for update in updates]
    average = 1.0
    for update in range(2, 101):
        average = 0.98 * average + 0.02 * update
    assert curve(tmp_path, "train/avg_loss")[0][1] == pytest.approx(average, rel=1e-4)
    for tag in ("fps", "avg_fps", "time_passed", "epsilon"):
        assert [step for step, _ in curve(tmp_path, f"train/{tag}")] == updates
    times = [value for _, value in curve(tmp_path, "train/time_passed")]
    assert times == sorted(times)
    assert curve(tmp_path, "train/avg_fps")[-1][1] > 0


def test_a_second_ctrl_c_keeps_the_outcome_and_gives_the_signals_back(tmp_path, signals):
    def interrupted(update: int) -> float:
        if update == 7:
            signal.raise_signal(signal.SIGINT)  # finishes the update
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, [0.0] * 10, losses=interrupted)
    assert curve(tmp_path, "outcome/frames") == [(0, 26.0)]
    for number, error in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)):
        with pytest.raises(error):
            signal.raise_signal(number)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_ends_the_program_but_not_under_nohup(ignored, signals):
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    end_on_signals()
    with nullcontext() if ignored else pytest.raises(Terminated, match=str(int(signal.SIGHUP))):
        signal.raise_signal(signal.SIGHUP)


@pytest.mark.parametrize(
    ("number", "when"),
    [
        (signal.SIGHUP, "while it solves the game"),
        (signal.SIGTERM, "in the games after training"),
    ],
)
def test_an_interrupted_run_that_is_solved_stays_solved(
    when, number, tmp_path, console, signals, monkeypatch, capsys
):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever these tests were started with

    def interrupting(states: torch.Tensor) -> torch.Tensor:
        assert curve(run_folder(), "outcome/solved") == [(0, 1.0)]  # before the games
        signal.raise_signal(number)
        raise AssertionError("the signal was swallowed")

    def run_folder() -> Path:
        (folder,) = tmp_path.iterdir()
        return folder

    def train(options: ReplayOptions, run: Run):
        engine = Engine(lambda engine, batch: torch.tensor(0.0))
        attach_handlers(engine, run, LinearSchedule(1.0, 0.0, 10), {})
        if when == "while it solves the game":
            engine.add_event_handler(PlayEvents.SOLVED, lambda: signal.raise_signal(number))
        buffer = ReplayBuffer(100, (2, 2, 2))
        state = engine.run(replay_batches(engine, stream([20.0]), buffer, 5, 4))
        evaluate(interrupting, run)
        return state

    monkeypatch.setattr(sys, "argv", ["01_baseline.py", "--run-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        launch(train, ReplayOptions, "")
    *_, told, last = capsys.readouterr().out.splitlines()
    assert end.value.code == 0
    assert (
        told
        == {
            "while it solves the game": "no games after training: the run was interrupted",
            "in the games after training": "the games after training were cut short",
        }[when]
    )
    assert last.startswith("solved after 10 frames")
    events = EventAccumulator(str(run_folder())).Reload()
    assert "evaluation/reward" not in events.Tags()["scalars"]
    assert "_hparams_/session_end_info" in events.summary_metadata


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_fails_the_run(tmp_path, bad):
    with pytest.raises(Failure, match="loss became"):
        play(tmp_path, [0.0] * 100, losses=lambda update: bad if update == 7 else 1.0)


def test_a_failing_update_is_not_swallowed(tmp_path):
    def explode(update: int) -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(tmp_path, [0.0] * 10, losses=explode)
