"""The handlers on a scripted stream of episodes, and what TensorBoard gets of it."""

import re
import signal
import weakref
from contextlib import nullcontext
from dataclasses import dataclass

from lib.learning.replay_buffer import ReplayBuffer
from lib.learning.schedules import LinearSchedule
from lib.learning.weights import AveragedWeights
from lib.training import handlers
from lib.training.evaluation import Trial, evaluate
from lib.training.handlers import attach_handlers
from lib.training.launch import launch
from lib.training.options import ReplayOptions
from lib.training.play import PlayEvents, batch_generator
from lib.training.run import Failure, Run, end_on_signals

import pytest
import torch
from conftest import read_events
from helpers import curve, play_episodes, small, stream
from ignite.engine import Engine, Events, State


def test_episodes_are_smoothed_from_the_first_one_on(tmp_path):
    state, fired = play_episodes(tmp_path, [-20.0, -10.0, -21.0])
    assert fired == ["episode_completed"] * 3
    averages = [-20.0, -20.0 * 0.98 - 10.0 * 0.02]
    averages.append(averages[-1] * 0.98 - 21.0 * 0.02)
    assert state.avg_reward == pytest.approx(averages[-1])
    assert curve(tmp_path, "episodes/reward") == [(1, -20.0), (2, -10.0), (3, -21.0)]
    steps, values = zip(*curve(tmp_path, "episodes/avg_reward"), strict=True)
    assert steps == (1, 2, 3)
    assert values == pytest.approx(averages)
    assert curve(tmp_path, "by_frames/avg_reward") == list(zip((10, 20, 30), values, strict=True))
    assert curve(tmp_path, "episodes/steps") == [(1, 10.0), (2, 10.0), (3, 10.0)]
    assert curve(tmp_path, "episodes/frames") == [(1, 10.0), (2, 20.0), (3, 30.0)]


@pytest.mark.parametrize(("initial", "limit", "updates"), [(20, 43, 23), (90, 50, 0), (90, 0, 0)])
def test_who_never_trained_has_no_fps_and_who_failed_no_outcome(initial, limit, updates, tmp_path):
    """Without a limit the stream ends by itself, as that of a player that is lost."""
    state, _ = play_episodes(tmp_path, [0.0] * 5, replay_initial=initial, max_frames=limit)
    assert (state.frames, state.iteration) == (limit or 50, updates)
    assert state.phase == ("training" if updates else "filling")
    assert state.update_due or not updates
    tags = read_events(tmp_path).Tags()["scalars"]
    assert ("outcome/frames" in tags, "outcome/fps" in tags) == (limit > 0, updates > 0)
    assert not limit or curve(tmp_path, "outcome/updates") == [(0, updates)]


@pytest.mark.parametrize(("goal", "solved"), [(17.0, 30), (None, 0)])
def test_nothing_is_solved_before_the_first_update_or_without_a_goal(goal, solved, tmp_path):
    state, _ = play_episodes(tmp_path, [20.0] * 5, stop_reward=goal)
    assert (state.solved, state.frames) == (bool(solved), solved or 50)


@pytest.mark.parametrize("averaged", [False, True])
def test_a_network_whose_first_layer_stands_still_has_died(averaged, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(handlers, "CHECK_EVERY", 10)
    dqn = small()
    net = AveragedWeights(dqn, torch.float32, 1e-4) if averaged else dqn
    first = net.weights["low"] if averaged else dqn.conv[0].weight.data

    def learn(update: int) -> float:
        first.add_(update <= 15)
        return 1.0

    play_episodes(tmp_path, [0.0] * 8, learn, net=net)
    assert capsys.readouterr().out.count("the network died within 30 updates and learns") == 1


def test_curves_of_both_phases(tmp_path):
    state, _ = play_episodes(tmp_path, [0.0] * 260, replay_initial=2_200, losses=float)
    assert [step for step, _ in curve(tmp_path, "filling/fps")] == [1_000, 2_000]
    assert curve(tmp_path, "filling/epsilon") == [(1_000, 0.0), (2_000, 0.0)]
    updates = [100, 200, 300, 400]
    assert (state.iteration, state.update_due) == (401, False)
    assert curve(tmp_path, "train/loss") == [(update, float(update)) for update in updates]
    assert curve(tmp_path, "train/frames") == [(update, 2_199.0 + update) for update in updates]
    average = 1.0
    for update in range(2, 101):
        average = 0.98 * average + 0.02 * update
    assert curve(tmp_path, "train/avg_loss")[0][1] == pytest.approx(average, rel=1e-4)
    assert curve(tmp_path, "train/epsilon") == [(update, 0.0) for update in updates]  # by frames


@dataclass(frozen=True)
class Many(ReplayOptions):
    envs = 512


def test_of_many_games_every_second_is_logged_and_trials_are_rarer(tmp_path, capsys):
    agents = iter([(2.0, -1.0), (1.0, 2.0)])  # what they score
    trial = lambda agent, engine, run: Trial(2, agent, 1.5)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handlers, "run_trial", trial)
        rewards, agent = [20.0] * 140, agents.__next__
        state, _ = play_episodes(tmp_path, rewards, agent=agent, kind=Many)
    assert state.frames == 10 * (3 + 128)
    logged = [*range(2, 131, 2)]
    assert [game for game, _ in curve(tmp_path, "episodes/reward")] == logged
    lines = re.findall(r"^episode +(\d+)", capsys.readouterr().out, re.MULTILINE)
    assert [*map(int, lines)] == logged


def test_a_signal_between_a_batch_and_its_update_waits_for_the_update(tmp_path, ends):
    updates = []

    def interrupted(engine: Engine) -> None:
        if engine.state.iteration == 3:
            signal.raise_signal(signal.SIGTERM)

    on = (Events.ITERATION_STARTED, interrupted)
    state, _ = play_episodes(tmp_path, [0.0] * 10, losses=lambda n: updates.append(n) or 1.0, on=on)
    assert (state.iteration, state.frames, updates) == (3, 22, [1, 2, 3])  # nor another frame


def test_a_second_ctrl_c_keeps_the_outcome_and_gives_the_signals_back(tmp_path, ends):
    def interrupted(update: int) -> float:
        if update == 7:
            signal.raise_signal(signal.SIGINT)  # finishes the update
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        play_episodes(tmp_path, [0.0] * 10, losses=interrupted)
    assert curve(tmp_path, "outcome/frames") == [(0, 26.0)]
    on = (Events.COMPLETED, lambda: signal.raise_signal(signal.SIGINT))  # when all is saved
    with pytest.raises(KeyboardInterrupt):
        play_episodes(tmp_path / "later", [0.0] * 5, max_frames=30, on=on)
    assert curve(tmp_path / "later", "outcome/frames") == [(0, 30.0)]
    for number in (signal.SIGINT, signal.SIGTERM):
        with pytest.raises(KeyboardInterrupt, match=f"^{number:d}$"):
            signal.raise_signal(number)


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_warning_ends_the_program_unless_it_is_ignored_as_under_nohup(number, ignored, ends):
    signal.signal(number, signal.SIG_IGN if ignored else lambda *_: None)
    end_on_signals()
    with nullcontext() if ignored else pytest.raises(KeyboardInterrupt, match=f"^{number:d}$"):
        signal.raise_signal(number)


@pytest.mark.parametrize(("error", "code"), [(Failure("it broke"), 1), (KeyboardInterrupt(), 130)])
def test_a_run_that_fails_gives_its_memory_back(error, code, tmp_path, ends):
    def train(options: ReplayOptions, run: Run) -> None:
        engine = Engine(lambda engine, batch: None)
        engine.network = engine  # they refer to each other
        weakref.finalize(engine, print, "freed")
        raise error

    run = ends(lambda: launch(train, ReplayOptions, ""), "01_baseline", "--run-dir", tmp_path)
    assert (run.code, run.out.splitlines()[-1]) == (code, "freed")


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGINT, "no games after training: the run was interrupted"),
        (signal.SIGTERM, "the games after training were cut short"),
    ],
)
def test_an_interrupted_run_that_is_solved_stays_solved(
    number, message, tmp_path, console, ends, monkeypatch
):
    """Ctrl-C arrives while it solves the game, and SIGTERM in the games after training."""

    def interrupting(states: torch.Tensor) -> torch.Tensor:
        (folder,) = tmp_path.iterdir()
        assert curve(folder, "outcome/solved") == [(0, 1.0)]  # before the games
        signal.raise_signal(number)
        raise AssertionError("the signal was swallowed")

    def train(options: ReplayOptions, run: Run) -> State:
        engine = Engine(lambda engine, batch: torch.tensor(0.0))
        weakref.finalize(engine, print, "freed")
        attach_handlers(engine, run, LinearSchedule(1.0, 0.0, 10), {"net": small()})
        if number == signal.SIGINT:
            engine.add_event_handler(PlayEvents.SOLVED, lambda: signal.raise_signal(number))
        buffer = ReplayBuffer(100, (2, 84, 84))
        state = engine.run(batch_generator(engine, stream([20.0]), buffer, 5, 4))
        evaluate(interrupting, run)
        return state

    monkeypatch.setenv("COLUMNS", "100")
    run = ends(lambda: launch(train, ReplayOptions, ""), "01_baseline", "--run-dir", tmp_path)
    (*games, line, freed, _, last) = run.out.splitlines()
    reached = games.index("avg_reward 17 after 10 frames and 0 seconds")
    assert games[reached - 1].startswith("episode     1  reward   20")
    assert games[reached - 1].endswith("  steps    10")  # a wide terminal has room for them
    assert (run.code, line, freed) == (0, message, "freed")
    assert last == "solved in 0:00:00, after 1 episode, 10 frames and 5 updates"
    (folder,) = tmp_path.iterdir()
    events = read_events(folder)
    assert "evaluation/reward" not in events.Tags()["scalars"]
    assert "_hparams_/session_end_info" in events.summary_metadata
