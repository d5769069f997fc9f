"""Evaluation on real Pong."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ignite.handlers import TensorboardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib.learning.dqn_model import DQN, NormalizedDQN
from lib.recipe import PONG_ACTIONS, PONG_ROWS, Recipe
from lib.running import evaluation
from lib.running.checkpoints import SETTINGS, CheckpointError, read_checkpoint
from lib.running.evaluation import load_agent
from lib.running.options import PongOptions, WrapperOptions
from lib.running.run import Run
from lib.running.saving import Settings


def test_who_never_moves_loses_every_game(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation, "EPISODES", 2)
    shapes = []

    def stays(states: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(states.shape))
        return torch.tensor([[1.0, 0.0, 0.0]])

    with TensorboardLogger(tmp_path) as tensorboard:
        recipe = Recipe("PongNoFrameskip-v4", stack=2, rows=PONG_ROWS, actions=PONG_ACTIONS)
        settings = SimpleNamespace(recipe=recipe)
        run = Run(settings, torch.device("cpu"), tmp_path, tensorboard, "01_baseline")
        rewards = evaluation.evaluate(stays, run)
    assert rewards == [-21.0, -21.0]
    assert set(shapes) == {(1, 2, 65, 84)}
    assert "2 games, mean -21.00, standard deviation 0.00" in capsys.readouterr().out
    points = EventAccumulator(str(tmp_path)).Reload().Scalars("evaluation/reward")
    assert [(point.step, point.value) for point in points] == [(1, -21.0), (2, -21.0)]


@pytest.mark.parametrize(
    ("network", "script", "options"),
    [
        (
            DQN((2, 84, 84), 6, channels=(4, 8, 8), hidden=16),
            "04_new_wrappers_n_env",
            WrapperOptions(),
        ),
        (NormalizedDQN((4, 65, 84), 3), "07_speedrun", PongOptions()),
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
    torch.save(kept | {"average": average}, tmp_path / "latest-2.pt")
    trained, _ = load_agent(read_checkpoint(tmp_path / "latest-2.pt"))
    assert all(torch.equal(trained.state_dict()[name], average[name]) for name in average)

    del kept[SETTINGS]["network"]
    with pytest.raises(CheckpointError, match="does not name its network"):
        load_agent(kept)
