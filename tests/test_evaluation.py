"""Evaluation on real Pong."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ale_py import AtariVectorEnv
from conftest import read_events, run_rung
from ignite.engine import Engine
from ignite.handlers import TensorboardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_handlers import curve, stream

import emulator
from lib.games.experience import Episode
from lib.learning.agents import LinearSchedule, QFunction
from lib.learning.dqn_model import DQN, NormalizedDQN
from lib.learning.replay_buffer import ReplayBuffer
from lib.recipe import PONG_ACTIONS, PONG_ROWS, Recipe
from lib.running import evaluation, handlers
from lib.running.checkpoints import (
    SETTINGS,
    CheckpointError,
    describe_settings,
    read_checkpoint,
)
from lib.running.evaluation import (
    Trial,
    load_agent,
    make_env,
    make_games,
    play_game,
    play_games,
    try_agent,
)
from lib.running.events import replay_batches
from lib.running.handlers import attach_handlers
from lib.running.options import ReplayOptions, WrapperOptions
from lib.running.run import Run
from lib.running.speedrun_options import EmulatorOptions, PongOptions

PONG = Recipe("PongNoFrameskip-v4", stack=2, rows=PONG_ROWS, actions=PONG_ACTIONS, half=True)


def evaluate(q_function: QFunction, folder: Path, recipe: Recipe, **known: Any) -> list[float]:
    """The games after the training of such an agent."""
    with TensorboardLogger(folder) as tensorboard:
        settings = SimpleNamespace(recipe=recipe)
        run = Run(settings, torch.device("cpu"), folder, tensorboard, "01_baseline", **known)
        return evaluation.evaluate(q_function, run)


def test_who_never_moves_loses_every_game(tmp_path, console, monkeypatch, capsys) -> None:
    monkeypatch.setattr(evaluation, "EPISODES", 3)
    seen = []

    def stays(states: torch.Tensor) -> torch.Tensor:
        assert states.shape[1:] == (2, 32, 42)
        seen.append(len(states))
        return torch.ones(1, requires_grad=True) * torch.tensor([[1.0, 0.0, 0.0]] * len(states))

    assert evaluate(stays, tmp_path, PONG) == [-21.0] * 3
    assert seen == sorted(seen, reverse=True)  # one pass for all games that are still played
    assert (seen[0], len(seen) < 1_000) == (3, True)
    out, err = capsys.readouterr()
    assert out.startswith("games after up to 30 no-ops, epsilon 0.01: 3 games, mean -21.00, ")
    assert err == ""  # no bar where nobody looks
    points = EventAccumulator(str(tmp_path)).Reload().Scalars("evaluation/reward")
    assert [(point.step, point.value) for point in points] == [(n, -21.0) for n in (1, 2, 3)]


def test_an_interrupted_run_plays_no_games(tmp_path, capsys) -> None:
    assert evaluate(lambda states: states, tmp_path, PONG, signal=2) == []
    assert capsys.readouterr().out == "no games after training: the run was interrupted\n"


def moves_seldom(states: torch.Tensor) -> torch.Tensor:
    """Whole numbers, so a state has the same values in every batch; loses soon."""
    sums = states.flatten(1).long() @ torch.arange(states[0].numel())
    return torch.stack([torch.full_like(sums, 5), sums % 7, sums // 7 % 7], dim=1)


@pytest.mark.parametrize("kind", ["console", "vector environment of ALE"])
def test_games_played_at_once_are_those_played_one_after_the_other(
    kind, console, monkeypatch
) -> None:
    if kind == "vector environment of ALE":
        monkeypatch.setattr(emulator, "missing", lambda: "Numba is missing")

    def play(count: int, seed: int) -> list[Episode]:
        played = play_games(make_games(PONG, count, seed), moves_seldom, 0.1, seed=seed)
        return [game for _, game in sorted(game for ended in played for game in ended)]

    alone = [play(1, seed)[0] for seed in (5, 6)]
    assert play(2, 5) == alone
    assert alone[0] != alone[1]


def test_a_game_of_a_single_environment_takes_its_seed() -> None:
    env = make_env(replace(PONG, noop_max=7))
    one, other, again = (play_game(env, moves_seldom, 0.1, seed) for seed in (5, 6, 5))
    assert one == again != other
    assert one.reward < 0


@pytest.mark.parametrize("game", ["Pong", "Breakout"])
def test_the_fast_games_show_what_the_wrappers_show(game) -> None:
    settings = {"noop_max": 0, "max_pool": False}
    fast = AtariVectorEnv(
        game.lower(), 1, stack_num=1, noop_max=0, maxpool=False, use_fire_reset=False
    )
    recipe = Recipe(f"{game}NoFrameskip-v4", stack=1, fire_reset=False, **settings)
    single = make_env(recipe)
    theirs, _ = fast.reset(seed=0)
    mine, _ = single.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(150):
        assert np.array_equal(mine, theirs[0])
        action = int(rng.integers(single.action_space.n))
        theirs, reward, *_ = fast.step(np.array([action]))
        mine, my_reward, *_ = single.step(action)
        assert my_reward == reward[0]


@pytest.mark.parametrize(
    ("network", "script", "options"),
    [
        (
            DQN((2, 84, 84), 6, channels=(4, 8, 8), hidden=16),
            "04_new_wrappers_n_env",
            WrapperOptions(),
        ),
        (NormalizedDQN((4, 32, 42), 3), "07_speedrun", PongOptions()),
    ],
)
def test_a_checkpoint_says_how_to_play_with_it(tmp_path, network, script, options):
    with TensorboardLogger(tmp_path) as tensorboard:
        run = Run(options, torch.device("cpu"), tmp_path, tensorboard, script)
        kept = {SETTINGS: describe_settings(run, network), "net": network.state_dict()}
    torch.save(kept, tmp_path / "latest-1.pt")
    loaded, recipe = load_agent(read_checkpoint(tmp_path / "latest-1.pt"))
    assert recipe == options.recipe
    assert recipe.max_pool == (script != "04_new_wrappers_n_env")
    assert (recipe.rows, recipe.actions) == (
        (PONG_ROWS, PONG_ACTIONS) if script == "07_speedrun" else ((0, 84), None)
    )
    env = evaluation.make_env(recipe)
    state, _ = env.reset(seed=0)
    frames = torch.from_numpy(np.asarray(state))[None]
    assert torch.equal(loaded(frames), network(frames))
    assert loaded(frames).shape == (1, env.action_space.n)

    # The average of a speedrun is its trained agent.
    average = {name: weight / 2 for name, weight in network.state_dict().items()}
    both = {"weights": network.state_dict(), "average": average}
    torch.save(kept | {"net": both}, tmp_path / "latest-2.pt")
    trained, _ = load_agent(read_checkpoint(tmp_path / "latest-2.pt"))
    assert all(torch.equal(trained.state_dict()[name], average[name]) for name in average)

    # An earlier version did not know how games begin.
    del kept[SETTINGS]["recipe"]["noop_max"], kept[SETTINGS]["recipe"]["fire_reset"]
    assert load_agent(kept)[1] == replace(options.recipe, noop_max=30)

    kept[SETTINGS]["recipe"]["env"] = "PongNoFrameskip-v0"  # earlier versions played it
    with pytest.raises(CheckpointError, match="cannot play: PongNoFrameskip-v0 has sticky actions"):
        load_agent(kept)

    del kept[SETTINGS]["network"]
    with pytest.raises(CheckpointError, match="does not name its network"):
        load_agent(kept)


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

    monkeypatch.setattr(evaluation, "make_games", make_games)
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
