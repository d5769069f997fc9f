"""Evaluation on real Pong."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ale_py import AtariVectorEnv
from ignite.handlers import TensorboardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import emulator
from lib.games.experience import Episode
from lib.learning.agents import QFunction
from lib.learning.dqn_model import DQN, NormalizedDQN
from lib.recipe import PONG_ACTIONS, PONG_ROWS, Recipe
from lib.running import evaluation
from lib.running.checkpoints import SETTINGS, CheckpointError, read_checkpoint
from lib.running.evaluation import SingleGames, load_agent, make_env, make_games, play_games
from lib.running.options import WrapperOptions
from lib.running.run import Run
from lib.running.saving import Settings
from lib.running.speedrun_options import PongOptions

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


def test_games_as_trained_have_a_figure_of_their_own(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(evaluation, "EPISODES", 1)
    stays = lambda states: torch.tensor([[1.0] + [0.0] * 5])  # noqa: E731
    recipe = WrapperOptions().recipe
    assert (recipe.noop_max, recipe.fire_reset) == (0, True)
    assert evaluate(stays, tmp_path, recipe) == [-21.0]
    told = re.findall("^games (.*), epsilon 0.01: 1 games, mean", capsys.readouterr().out, re.M)
    assert told == ["as trained", "after up to 30 no-ops"]
    events = EventAccumulator(str(tmp_path)).Reload()
    for tag in ("evaluation/reward_as_trained", "evaluation/reward"):
        assert [point.value for point in events.Scalars(tag)] == [-21.0]


def test_an_interrupted_run_plays_no_games(tmp_path, capsys) -> None:
    assert evaluate(lambda states: states, tmp_path, PONG, signal=2) == []
    assert capsys.readouterr().out == "no games after training: the run was interrupted\n"


def moves_seldom(states: torch.Tensor) -> torch.Tensor:
    """Whole numbers, so a state has the same values in every batch; loses soon."""
    sums = states.flatten(1).long() @ torch.arange(states[0].numel())
    return torch.stack([torch.full_like(sums, 5), sums % 7, sums // 7 % 7], dim=1)


@pytest.mark.parametrize("kind", ["console", "vector environment of ALE", "single environments"])
def test_games_played_at_once_are_those_played_one_after_the_other(
    kind, console, monkeypatch
) -> None:
    if kind == "vector environment of ALE":
        monkeypatch.setattr(emulator, "missing", lambda: "Numba is missing")
    recipe = replace(PONG, noop_max=7) if kind == "single environments" else PONG

    def play(count: int, seed: int) -> list[Episode]:
        games = make_games(recipe, count, seed)
        assert isinstance(games, SingleGames) == (kind == "single environments")
        played = play_games(games, moves_seldom, 0.1, seed=seed)
        return [game for _, game in sorted(game for ended in played for game in ended)]

    alone = [play(1, seed)[0] for seed in (5, 6)]
    assert play(2, 5) == alone
    assert alone[0] != alone[1]


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
        kept = {SETTINGS: Settings(run, network).state_dict(), "net": network.state_dict()}
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
