"""What a rung plays, and how much it learns of it."""

import ast
import importlib
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import ANY, MagicMock, Mock

import pong_emulator
from lib import seeds
from lib.envs import experience, gpu_vector_env, vector_env
from lib.envs.vector_env import VectorExperienceSource, VectorStep
from lib.gpu_checks import fallbacks
from lib.learning.dqn_model import DQN
from lib.learning.loss import lambda_returns
from lib.learning.rollout import Rollout, Targets
from lib.learning.schedules import Schedule, WinRate
from lib.training.options import ReplayOptions
from lib.training.play import PlayEvents
from lib.training.run import Run

import numpy as np
import pytest
import torch
from conftest import BEYOND, PARALLEL, RUNGS, SERIAL, SPEEDRUNS
from helpers import Catch, rung_beside_plain_dqn, updates_of
from ignite.engine import Engine
from ignite.handlers import TensorboardLogger


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling would take a minute."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.fixture
def game_seeds(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Notes from which seed games get theirs."""
    noted = Mock(side_effect=seeds.game_seeds)
    for module in (experience, vector_env, gpu_vector_env):
        monkeypatch.setattr(module, "game_seeds", noted)
    return noted


def train(script: str, folder: Path, **settings: Any) -> Any:
    """Train with these settings, which are returned."""
    module = importlib.import_module(script)
    options = getattr(module, "Options", ReplayOptions)(**settings)
    with TensorboardLogger(folder) as log, suppress(InterruptedError):
        module.train(options, Run(options, torch.device("cpu"), folder, log, script))
    return options


@pytest.mark.parametrize("script", PARALLEL)
@pytest.mark.parametrize(
    ("settings", "frames"), [({}, 2), ({"play_device": "cpu"}, 4), ({"sync_frames": 5}, 5)]
)
def test_a_player_acts_with_the_weights_of_its_last_refresh(script, settings, frames, game_seeds):
    module = importlib.import_module(script)
    options, actions = module.Options(seed=7, **settings), []
    net = DQN((options.preprocessing.stack, 84, 84), 6).requires_grad_(False)
    for weight in net.parameters():
        weight.zero_()

    def put(step: experience.Transitions) -> None:
        actions.append(step.actions.item())
        if len(actions) == 2:
            net.fc[-1].bias[3] = 1.0  # what is learned while it plays
        if len(actions) == 10:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        module.player_process(Mock(put=put), options, net, lambda frame: float(frame < 50), 50)
    assert actions == [0] * frames + [3] * (10 - frames)
    assert game_seeds.call_args.args[0] == seeds.resumed_seed(7, 50)
    assert not options.preprocessing.vector_env  # so play.py shows what was learned from


STEPS = dict.fromkeys(("02_n_envs", "04_new_wrappers_n_env", *PARALLEL), 2)


@pytest.mark.parametrize("script", [*SERIAL, *PARALLEL, *BEYOND[:2]])
def test_settings_arrive_where_they_are_used(script, tmp_path, monkeypatch, game_seeds) -> None:
    module, attach = importlib.import_module(script), Mock()
    monkeypatch.setattr(module, "attach_handlers", attach)
    monkeypatch.setattr(module, "batch_generator", batches := Mock(side_effect=InterruptedError))
    monkeypatch.setattr(module, "Player", player := MagicMock(), raising=False)
    settings = {"replay_initial": 500, "epsilon_frames": 100, "epsilon_final": 0.5, "seed": 7}
    settings |= {"steps": STEPS[script]} if script in STEPS else {}
    options = train(script, tmp_path, adam_epsilon=0.5, batch_size=5, **settings)
    _, _, epsilon, saved, *_ = attach.call_args.args
    adam = [part.defaults["eps"] for part in saved.values() if isinstance(part, torch.optim.Adam)]
    assert adam in ([], [0.5])  # a new rung may have another optimizer
    assert "optimizer" in saved or saved["net"].epsilon == 0.5
    assert {"target_net", "buffer", *["agent"] * (script not in PARALLEL)} <= saved.keys()
    # It falls from the first update on; where there is a player, more slowly: by its steps.
    begin, frames = (0, 200) if script in PARALLEL else (500, 100)
    falling = [epsilon(begin + part * frames // 2) for part in (-1, 0, 1, 2, 3)]
    assert falling == [1, 1, 0.75, 0.5, 0.5]
    _, source, _, initial, size = batches.call_args.args
    assert initial == 500
    # The batch grows with the frames of an update, and so does the queue; 06 samples by itself.
    frames = getattr(options, "envs", 1) * STEPS.get(script, 1)
    assert size == (None if script == "06_compiled_update" else 5 * frames)
    if script in PARALLEL:
        player.assert_called_once_with(module.player_process, ANY, bound=4, options=options)
    else:
        next(iter(source))
        assert game_seeds.call_args.args[0] == 7
        assert isinstance(source, VectorExperienceSource) == options.preprocessing.vector_env


@pytest.mark.usefixtures("console")
@pytest.mark.parametrize("script", SPEEDRUNS)
def test_a_lost_trial_sets_the_schedules_back(script, tmp_path, monkeypatch, game_seeds) -> None:
    module, win_rate = importlib.import_module(script), WinRate()
    win_rate.value = 1.0
    monkeypatch.setattr(module, "WinRate", lambda: win_rate)
    tried = PlayEvents.TRIAL_COMPLETED
    attach = Mock(side_effect=lambda engine, *_: engine.register_events(*PlayEvents))
    monkeypatch.setattr(module, "attach_handlers", attach)
    monkeypatch.setattr(Engine, "run", lambda engine, data: engine.fire_event(tried))
    options = train(script, tmp_path, envs=2, seed=7)
    assert win_rate.value == 0.7
    assert attach.call_args.args[3]["points"] is win_rate  # a resumed run begins with it
    assert game_seeds.call_args.args[0] == 7
    assert options.preprocessing.vector_env


def source_of(script: str, *names: str) -> str:
    """The source of functions of a rung, without comments."""
    nodes = ast.walk(ast.parse(RUNGS[script]))
    found = {node.name: ast.unparse(node) for node in nodes if isinstance(node, ast.FunctionDef)}
    return "\n".join(found[name] for name in names)


WRAPPERS = "make_env(params)", "wrap_deepmind(make_atari(params.env))"
DISCOUNT = "params.gamma ** params.n_steps", "params.gamma"
COPIES = ["02_n_envs", "03_parallel", "04_new_wrappers_n_env", "04_new_wrappers_parallel"]
COPIES += ["05_vector_env"]  # a new rung's idea may be the update


@pytest.mark.parametrize(
    ("script", "other", "names", "here", "there"),
    [
        *((script, "01_baseline", ["process_batch"], "", "") for script in COPIES),
        ("09_many_machines", "01_baseline", ["process_batch"], *DISCOUNT),
        ("04_new_wrappers_n_env", "02_n_envs", ["train"], *WRAPPERS),
        ("04_new_wrappers_parallel", "03_parallel", ["player_process", "train"], *WRAPPERS),
        ("08_recompiled_pong", "07_speedrun", ["act", "loss_of", "update", "collect"], "", ""),
    ],
)
def test_a_rung_differs_only_in_what_it_is_about(script, other, names, here, there) -> None:
    source = source_of(script, *names)
    assert here in source
    assert source.replace(here, there) == source_of(other, *names)


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize(
    ("script", "precision", "error"),
    [
        ("01_baseline", None, 1e-3),
        ("06_compiled_update", "float32", 1e-3),
        ("06_compiled_update", "bfloat16", 0.05),
        pytest.param("06_compiled_update compiled", "float32", 1e-3, marks=pytest.mark.slow),
    ],
)
def test_an_update_is_that_of_a_plain_dqn(script, precision, error, tmp_path, monkeypatch) -> None:
    script, *compiled = script.split()
    if compiled:
        monkeypatch.undo()  # what leaves it out
    settings = {"precision": precision, "envs": 2} if precision else {}
    losses, expected = rung_beside_plain_dqn(script, tmp_path, **settings)
    assert losses == pytest.approx(expected, rel=error)
    assert not fallbacks


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("script", ["07_speedrun", "08_recompiled_pong"])
def test_a_speedrun_learns_from_what_it_played(script, tmp_path, monkeypatch) -> None:
    """Its updates are computed once more, from the games and with torch's own Adam."""
    module, win_rate, sample = importlib.import_module(script), WinRate(10**9), Rollout.sample
    win_rate.value = 0.6  # the middle of the schedules, where it stays
    samples, played = [], []  # of the updates; of the steps: what was known before, and the outcome
    agents = []

    class Watched(Catch):
        def send(self, actions: np.ndarray) -> None:
            played.append([len(samples), torch.from_numpy(self.states), actions])
            super().send(actions)

        def recv(self) -> VectorStep:
            step = super().recv()
            played[-1] += map(torch.from_numpy, step[:3:2])
            return step

    def begin(engine: Engine, epsilon: Schedule, saved: dict[str, Any]) -> None:
        agents.extend(saved["net"].agent() for _ in range(2))
        assert epsilon(10**9) == pytest.approx((0.06 * 0.01) ** 0.5)
        samples.clear()

    def noted(rollout: Rollout, size: int) -> Targets:
        samples.append(sample(rollout, size))
        return samples[-1]

    monkeypatch.setattr(Rollout, "sample", noted)
    monkeypatch.setattr(module, "StackedVectorEnv", Watched)
    monkeypatch.setattr(module, "WinRate", lambda: win_rate)
    monkeypatch.setattr(module, "ale_games", lambda env, count: count, raising=False)
    monkeypatch.setattr(pong_emulator, "PongVectorEnv", lambda count, **_: count)
    monkeypatch.setattr(pong_emulator, "preparing", nullcontext)
    settings = {"envs": 3, "rollout": 12, "batch_size": 9, "gamma": 0.8, "q_lambda": 0.5}
    settings |= {"epsilon_frames": 1, "temperature": 0.0, "precision": "float32"}
    losses = updates_of(script, tmp_path, 24, begin, adam_epsilon=1e-3, **settings)

    network, average = agents
    optimizer = torch.optim.Adam(network.parameters(), lr=(5e-4 * 6e-5) ** 0.5, eps=1e-3)
    values, targets, greedy, done = [], {}, [], 0
    for step, (updates, states, actions, *_) in enumerate(played):
        for seen, loss in zip(samples[done:updates], losses[done:updates], strict=True):
            for state, action, target in zip(*seen, strict=True):
                known = targets[state.numpy().tobytes(), action.item()]
                assert min(abs(target.item() - one) for one in known) < 1e-3
            taken = network(seen.states)[range(9), seen.actions]
            error = (taken - seen.returns).square().mean()
            assert error.item() == pytest.approx(loss, rel=1e-2)
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            for ema, weight in zip(average.parameters(), network.parameters(), strict=True):
                ema.data.lerp_(weight.data, 1e-3**0.5)
        done = updates
        with torch.no_grad():
            best = average(states).max(1)
        values.append(best.values)
        greedy.append(actions == best.indices.numpy())
        if step % 12 == 0 and step:
            rollout, targets = played[step - 12 : step], {}
            _, shown, acted, *outcome = zip(*rollout, strict=True)
            rewards, ended = map(torch.stack, outcome)
            returns = lambda_returns(rewards, ended.float(), torch.stack(values[-13:]), 0.8, 0.5)
            for columns in zip(shown, acted, returns.tolist(), strict=True):
                for state, action, target in zip(*columns, strict=True):
                    targets.setdefault((state.numpy().tobytes(), int(action)), []).append(target)
    assert np.mean(greedy) > 0.9
    # Each frame 4 times at the start and once at the end, from the second rollout on.
    assert done == int((len(played) - 13) * 3 * 4**0.75 / 9)


@pytest.mark.usefixtures("console")
def test_thousands_of_games_follow_their_schedules(tmp_path, monkeypatch) -> None:
    module = importlib.import_module("10_thousands_of_games")
    kept, win_rate = {}, Mock(return_value=0.6, state_dict=dict)  # the middle of the schedules
    monkeypatch.setattr(module, "WinRate", lambda: win_rate)
    monkeypatch.setattr(module, "epsilon_greedy", chosen := Mock(wraps=module.epsilon_greedy))
    settings = {"envs": 4, "rollout": 10, "batch_size": 10, "epsilon_frames": 1}
    updates_of(module.__name__, tmp_path, 20, lambda *args: kept.update(args[2]), **settings)
    found = kept["net"].learning_rate, kept["net"].ema_step, chosen.call_args.args[1]
    expected = [(7e-4 * 1.4e-4) ** 0.5, (1 / 200) ** 0.5, (0.06 * 0.01) ** 0.5]
    assert [number.item() for number in found] == pytest.approx(expected)
    assert chosen.call_count == 10 * win_rate.add.call_count == 30  # 9.1 updates per rollout
