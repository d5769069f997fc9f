"""The trial of the agent that would be saved: games on real Pong, and what they decide."""

from types import SimpleNamespace

import pytest
import torch
from conftest import read_events, run_rung
from ignite.engine import Engine
from ignite.handlers import TensorboardLogger
from test_handlers import curve, stream

from lib.learning.agents import LinearSchedule
from lib.learning.replay_buffer import ReplayBuffer
from lib.recipe import PONG_ROWS
from lib.running import handlers
from lib.running.events import replay_batches
from lib.running.handlers import attach_handlers
from lib.running.options import ReplayOptions
from lib.running.run import Run
from lib.running.speedrun_options import EmulatorOptions
from lib.running.trial import Trial, try_agent

STAY, UP, DOWN = range(3)
BALL, OWN_PADDLE, GROUND = 236, 147, 87  # grey levels of Pong


def plays_badly(states: torch.Tensor) -> torch.Tensor:
    return torch.tensor([[1.0, 0.0, 0.0]]).expand(len(states), 3)


def engine_at(frames: int) -> SimpleNamespace:
    return SimpleNamespace(state=SimpleNamespace(frames=frames), should_terminate=False)


@pytest.fixture
def run(tmp_path):
    options = EmulatorOptions(trial_games=3)
    with TensorboardLogger(tmp_path) as tensorboard:
        yield Run(options, torch.device("cpu"), tmp_path, tensorboard, "08_recompiled_pong")


def test_an_agent_that_loses_a_game_fails_at_once(console, run):
    trial = try_agent(plays_badly, engine_at(0), run)
    assert not trial.passed
    assert (trial.games, trial.won) == (3, 0)
    assert trial.lost >= 1
    assert trial.mean <= -19


def test_later_trials_play_other_games(console, run, monkeypatch):
    seeds = []

    def make_games(recipe, count, seed):
        assert recipe.rows == PONG_ROWS
        seeds.append(range(seed, seed + count))
        raise StopIteration

    monkeypatch.setattr("lib.running.trial.make_games", make_games)
    for frames in (0, 700_000, 740_000):
        with pytest.raises(StopIteration):
            try_agent(plays_badly, engine_at(frames), run)
    numbers = [number for seed in seeds for number in seed]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) > 1_000_100  # the games after training


def test_a_signal_ends_a_trial(console, run):
    engine = engine_at(0)
    engine.should_terminate = True
    trial = try_agent(plays_badly, engine, run)
    assert (trial.won, trial.lost, trial.passed) == (0, 0, False)


@pytest.mark.parametrize(
    ("won", "mean", "passed"), [(64, 18.0, True), (63, 19.0, False), (64, 17.9, False)]
)
def test_all_games_must_be_won_by_enough_points(won, mean, passed):
    assert Trial(games=64, won=won, lost=64 - won, mean=mean, bound=18.0).passed == passed


def test_training_goes_on_until_a_trial_is_passed(tmp_path, monkeypatch, capsys):
    trials = iter([Trial(64, 5, 1, 12.0, 18.0), Trial(64, 64, 0, 19.5, 18.0)])
    monkeypatch.setattr(handlers, "try_agent", lambda agent, engine, run: next(trials))
    options = ReplayOptions(replay_initial=20, stop_reward=17.0)
    engine = Engine(lambda engine, batch: torch.tensor(1.0))
    with TensorboardLogger(tmp_path) as tensorboard:
        run = Run(options, torch.device("cpu"), tmp_path, tensorboard, "08_recompiled_pong")
        attach_handlers(
            engine, run, LinearSchedule(1.0, 0.0, 1_000), {}, make_agent=lambda: plays_badly
        )
        buffer = ReplayBuffer(5_000, (2, 2, 2))
        state = engine.run(replay_batches(engine, stream([10.0] + [20.0] * 100), buffer, 20, 4))
    # The average of 10 and twenties is 17 after 60 games; the second trial comes 25 games later.
    first, second = (step for step, _ in curve(tmp_path, "trial/won"))
    assert second - first == 25 * 10
    assert (state.solved, state.frames) == (True, second)
    assert state.reached["frames"] == first
    assert curve(tmp_path, "trial/mean") == [(first, 12.0), (second, 19.5)]
    assert curve(tmp_path, "outcome/reached_frames")[0][1] == first
    out = capsys.readouterr().out
    assert f"avg_reward 17 after {first} frames" in out
    assert "won 5 and lost 1 of 64 new games, mean 12.0; training goes on" in out
    assert "won 64 and lost 0 of 64 new games, mean 19.5\n" in out


def test_a_rung_solves_only_with_an_agent_that_wins(tmp_path):
    flags = ["--rollout", "20", "--envs", "2", "--batch-size", "4", "--trial-games", "2"]
    flags += ["--stop-reward", "-21", "--max-frames", "2500"]
    result = run_rung("08_recompiled_pong", tmp_path, *flags)
    assert result.returncode == 0, result.stderr
    assert "avg_reward -21 after" in result.stdout
    assert "training goes on" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("frame limit reached")
    events = read_events(tmp_path)
    assert events.Scalars("outcome/solved")[0].value == 0
    assert events.Scalars("outcome/reached_frames")[0].value < 2_500
    assert events.Scalars("trial/won")[0].value == 0
