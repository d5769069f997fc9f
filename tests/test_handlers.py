"""The handlers on a scripted stream of episodes, and what TensorBoard gets of it."""

import re
import signal
from contextlib import nullcontext
from itertools import accumulate

from lib.learning.weights import AveragedWeights
from lib.training.evaluation import Trial
from lib.training.options import ReplayOptions
from lib.training.run import end_on_signals

import pytest
import torch
from conftest import read_events
from helpers import curve, play_episodes, small
from ignite.engine import Events


def test_curves_of_both_phases_and_of_all_games(tmp_path):
    rewards, smooth = [-20.0, -10.0, *[-21.0] * 258], lambda kept, new: 0.98 * kept + 0.02 * new
    averages = [*accumulate(rewards, smooth)]  # from the first episode on
    losses = [*accumulate(range(1, 402), smooth)]
    games, updates = range(1, 261), range(100, 401, 100)
    state = play_episodes(tmp_path, rewards, replay_initial=2_200, losses=float)
    assert (state.episodes, state.iteration, state.update_due) == (260, 401, False)
    for tag, expected in {
        "filling/frames": {1_000: 1_000, 2_000: 2_000},
        "filling/epsilon": {1_000: 0, 2_000: 0},
        "train/loss": {update: update for update in updates},
        "train/avg_loss": {update: losses[update - 1] for update in updates},
        "train/frames": {update: 2_199 + update for update in updates},
        "train/epsilon": dict.fromkeys(updates, 0),  # by frames
        "episodes/reward": dict(zip(games, rewards, strict=True)),
        "episodes/avg_reward": dict(zip(games, averages, strict=True)),
        "episodes/steps": dict.fromkeys(games, 10),
        "episodes/frames": {game: 10 * game for game in games},
        "by_frames/avg_reward": {10 * game: averages[game - 1] for game in games},
    }.items():
        assert dict(curve(tmp_path, tag)) == pytest.approx(expected, rel=1e-4), tag


@pytest.mark.parametrize(("initial", "limit", "updates"), [(20, 43, 23), (90, 50, 0), (90, 0, 0)])
def test_who_never_trained_has_no_fps_and_who_failed_no_outcome(initial, limit, updates, tmp_path):
    """Without a limit the stream ends by itself, as that of a player that is lost.

    Nothing is solved before the first update, or without a goal.
    """
    settings = {"max_frames": limit, "stop_reward": None if updates else 17.0}
    state = play_episodes(tmp_path, [20.0] * 5, replay_initial=initial, **settings)
    assert (state.frames, state.iteration) == (limit or 50, updates)
    assert state.phase == ("training" if updates else "filling")
    assert state.update_due or not updates
    tags = read_events(tmp_path).Tags()["scalars"]
    assert ("outcome/frames" in tags, "outcome/fps" in tags) == (limit > 0, updates > 0)
    assert not limit or curve(tmp_path, "outcome/updates") == [(0, updates)]


@pytest.mark.parametrize("averaged", [False, True])
def test_a_network_whose_first_layer_stands_still_has_died(averaged, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lib.training.handlers.CHECK_EVERY", 10)
    dqn = small()
    net = AveragedWeights(dqn, torch.float32, 1e-4) if averaged else dqn
    first = net.weights["low"] if averaged else dqn.conv[0].weight.data

    def learn(update: int) -> float:
        first.add_(update <= 15)
        return 1.0

    play_episodes(tmp_path, [0.0] * 8, learn, net=net)
    assert capsys.readouterr().out.count("the network died within 30 updates and learns") == 1


def test_of_many_games_every_second_is_logged_and_trials_are_rarer(tmp_path, monkeypatch, capsys):
    agents = iter([(2.0, -1.0), (1.0, 2.0)])  # what they score
    trial = lambda agent, *_: Trial(2, agent, 1.5)  # noqa: E731
    monkeypatch.setattr("lib.training.handlers.run_trial", trial)
    many = type("Many", (ReplayOptions,), {"envs": 512})
    state = play_episodes(tmp_path, [20.0] * 140, agent=agents.__next__, kind=many)
    assert state.frames == 10 * (3 + 128)
    logged = [*range(2, 131, 2)]
    assert [game for game, _ in curve(tmp_path, "episodes/reward")] == logged
    lines = re.findall(r"^episode +(\d+)", capsys.readouterr().out, re.MULTILINE)
    assert [*map(int, lines)] == logged


def test_a_signal_between_a_batch_and_its_update_waits_for_the_update(tmp_path, ends):
    updates, interrupt = [], lambda: signal.raise_signal(signal.SIGTERM)
    on = Events.ITERATION_STARTED(once=3), interrupt
    state = play_episodes(tmp_path, [0.0] * 10, losses=lambda n: updates.append(n) or 1.0, on=on)
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
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_a_warning_ends_the_program_unless_it_is_ignored_as_under_nohup(number, ignored, ends):
    signal.signal(number, signal.SIG_IGN if ignored else lambda *_: None)
    end_on_signals()
    with nullcontext() if ignored else pytest.raises(KeyboardInterrupt, match=f"^{number:d}$"):
        signal.raise_signal(number)
