"""Evaluation on real Pong."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ignite.handlers import TensorboardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib import evaluation
from lib.run import Run


def test_who_never_moves_loses_every_game(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation, "EPISODES", 2)
    shapes = []

    def stays(states: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(states.shape))
        return torch.tensor([[1.0, 0.0, 0.0]])

    with TensorboardLogger(tmp_path) as tensorboard:
        settings = SimpleNamespace(env="PongNoFrameskip-v4", stack=2, any_game=False)
        run = Run(settings, torch.device("cpu"), tmp_path, tensorboard, "01_baseline")
        rewards = evaluation.evaluate(stays, run)
    assert rewards == [-21.0, -21.0]
    assert set(shapes) == {(1, 2, 65, 84)}
    assert "2 games, mean -21.00, standard deviation 0.00" in capsys.readouterr().out
    points = EventAccumulator(str(tmp_path)).Reload().Scalars("evaluation/reward")
    assert [(point.step, point.value) for point in points] == [(1, -21.0), (2, -21.0)]
