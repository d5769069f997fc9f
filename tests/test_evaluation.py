"""Evaluation on real Pong."""

import math
import re
import signal
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pong_emulator
from lib.envs.experience import Episode
from lib.envs.preprocessing import Preprocessing
from lib.learning.dqn_model import DQN, DuelingDQN
from lib.training import evaluation
from lib.training.checkpoints import SETTINGS, CheckpointError, describe_settings
from lib.training.evaluation import Trial, load_agent, make_env, make_games, play_game, play_games
from lib.training.options import WrapperOptions
from lib.training.run import Run
from lib.training.speedrun_options import EmulatorOptions, SharedCoresOptions, SpeedrunOptions
from lib.training.terminal import Terminal
from pong_emulator.threads import ThreadedPongVectorEnv

import numpy as np
import pytest
import torch
from helpers import Screen, curve, play_episodes
from ignite.handlers import TensorboardLogger

PONG = EmulatorOptions(trial_games=3).resolved()


@pytest.fixture
def run(tmp_path, console):
    """A run of a rung that tries its agent."""
    with TensorboardLogger(tmp_path) as tensorboard:
        yield Run(PONG, torch.device("cpu"), tmp_path, tensorboard, "08_recompiled_pong")


def moves_seldom(states: torch.Tensor) -> torch.Tensor:
    """Whole numbers, so a state has the same values in every batch; loses soon."""
    sums = states.flatten(1).long() @ torch.arange(states[0].numel())
    return torch.stack([torch.full_like(sums, 5), sums % 7, sums // 7 % 7], dim=1)


def test_the_games_after_training_are_those_that_are_played_alone(run, monkeypatch, capsys) -> None:
    def alone(number: int, sticky: float = 0.0) -> float:
        games = make_games(PONG.preprocessing, np.array([1_000_000 + number]), sticky)
        played = play_games(games, moves_seldom, 0.01, PONG.temperature)
        ((_, game),) = (game for ended in played for game in ended)
        return game.reward

    def told(rewards: list[float]) -> str:
        spread = f"deviation {np.std(rewards):.2f}, {min(rewards):.0f} to {max(rewards):.0f}"
        return f"{len(rewards)} games, mean {np.mean(rewards):.2f}, standard {spread}"

    monkeypatch.setattr(evaluation, "EPISODES", 5)
    monkeypatch.setattr(evaluation, "STICKY_EPISODES", 2)
    evaluation.evaluate(moves_seldom, run)
    assert capsys.readouterr() == ("", "")  # training has not ended
    run.outcome = {"solved": 1.0}
    evaluation.evaluate(moves_seldom, run)
    games, sticky = [*map(alone, range(5))], [alone(number, 0.25) for number in range(2)]
    assert games[0] != games[4] != games[3]  # the fifth ends first
    assert games[:2] != sticky
    lines = ["games after FIRE and up to 28 no-ops, epsilon 0.01:", told(games)]
    lines += ["games with sticky actions (0.25), epsilon 0.01:", told(sticky)]
    out, err = capsys.readouterr()
    assert (out.splitlines(), err) == (lines, "")  # no bar where nobody looks
    run.tensorboard.writer.flush()
    assert curve(run.folder, "evaluation/reward") == [*enumerate(games, start=1)]
    assert curve(run.folder, "evaluation/sticky_reward") == [*enumerate(sticky, start=1)]
    monkeypatch.setattr(pong_emulator, "missing", lambda: "Numba is missing")
    assert alone(0) == games[0]  # in ALE's vector environment


class Uneven:
    """Games of these lengths, which begin again when they end, with a point more each time."""

    def __init__(self, *lengths: int) -> None:
        self.lengths, self.seeds = np.array(lengths), np.arange(len(lengths))
        self.states, self.actions = np.zeros((len(lengths), 1, 1, 1), np.uint8), []
        self.shape = self.states.shape

    def send(self, actions: np.ndarray) -> None:
        self.actions.append(actions.copy())

    def recv(self) -> Any:
        games, left = np.divmod(len(self.actions), self.lengths)
        episodes = [None if m else Episode(float(n), 1) for n, m in zip(games, left, strict=True)]
        return SimpleNamespace(episodes=episodes)


def test_each_game_counts_once_when_it_ends_and_no_later_one(run, monkeypatch):
    """In a trial, too, which draws from a softmax on one thread, and leaves torch all threads."""
    sizes, threads = [], set()

    def three_to_one(states: torch.Tensor) -> torch.Tensor:
        sizes.append(len(states))
        threads.add(torch.get_num_threads())
        values = torch.tensor([[0.0, 0.01 * math.log(3), -9.0]]).expand(len(states), 3)
        return values * torch.ones(1, requires_grad=True)

    ended = [*play_games(Uneven(3, 1, 2, 3), three_to_one, 0.0)]
    assert [[i for i, _ in games] for games in ended] == [[], [1], [2], [0, 3]]
    assert {game.reward for games in ended for _, game in games} == {1.0}
    assert sizes == [4, 3, 2]

    halves = Uneven(1, 7), Uneven(3_000)
    monkeypatch.setattr(evaluation, "make_games", Mock(side_effect=halves))
    torch.set_num_threads(3)
    threads.clear()
    trial = evaluation.run_trial(three_to_one, Mock(state=SimpleNamespace(frames=0)), run)
    assert (trial.rewards, threads, torch.get_num_threads()) == ([1.0] * 3, {1}, 3)
    chosen = np.bincount(np.concatenate(halves[1].actions)) / 3_000
    assert chosen[:2] == pytest.approx([1 / 4, 3 / 4], abs=0.03)
    assert 0 < chosen[2] < 0.01  # a third of epsilon
    monkeypatch.setattr(evaluation, "make_games", lambda *_, **__: Uneven(1))
    run.params = SharedCoresOptions(any_game=True, trial_games=2, stop_reward=-2.0)
    other = evaluation.run_trial(three_to_one, Mock(state=SimpleNamespace(frames=0)), run)
    assert (trial.least, other.least) == (0.0, -math.inf)


NATURE = DQN((2, 84, 84), 6, channels=(4, 8, 8), hidden=16)
SMALL = DuelingDQN((2, 30, 42), 3)


@pytest.mark.parametrize(
    ("network", "script", "options", "max_pool"),
    [(NATURE, "04", WrapperOptions(skip=2), False), (SMALL, "07", SpeedrunOptions(), True)],
)
def test_a_checkpoint_says_how_to_play_with_it(tmp_path, network, script, options, max_pool):
    run = Run(options, torch.device("cpu"), tmp_path, None, script)
    kept = {SETTINGS: describe_settings(run, network), "net": network.state_dict()}
    loaded, preprocessing = load_agent(kept)
    assert preprocessing == options.preprocessing
    assert preprocessing.max_pool == max_pool
    env = make_env(preprocessing)
    state, _ = env.reset(seed=0)
    frames = torch.from_numpy(np.asarray(state))[None]
    assert torch.equal(loaded(frames), network(frames))
    assert loaded(frames).shape == (1, env.action_space.n)
    assert env.get_wrapper_attr("skip") == preprocessing.skip

    for name in ("vector_env", "skip", "episodic_life"):  # earlier versions did not say it
        del kept[SETTINGS]["preprocessing"][name]
    assert load_agent(kept)[1] == replace(preprocessing, skip=4)

    # The average of a speedrun is its trained agent.
    average = {name: weight / 2 for name, weight in network.state_dict().items()}
    both = {"weights": network.state_dict(), "ema": average}
    trained, _ = load_agent(kept | {"net": both})
    assert all(torch.equal(trained.state_dict()[name], average[name]) for name in average)

    for part, name, value, message in (
        ("network", "class", "Transformer", "another version saved its checkpoint: 'Transformer'"),
        ("preprocessing", "env", "PongNoFrameskip-v0", "unknown environment"),  # played before
    ):
        kept[SETTINGS][part][name] = value
        with pytest.raises(CheckpointError, match=f"of {script} cannot play: {message}"):
            load_agent(kept)


def test_a_trial_has_games_of_its_own_and_ends_with_a_lost_one_or_a_signal(run, monkeypatch):
    trials, starts, reset = [], [], ThreadedPongVectorEnv.reset

    def note(games: ThreadedPongVectorEnv, seed: np.ndarray) -> Any:
        begun = reset(games, seed=seed)
        trials[-1] += seed.tolist()
        starts.extend(begun[1]["episode_frame_number"])
        return begun

    monkeypatch.setattr(ThreadedPongVectorEnv, "reset", note)
    run.params = replace(PONG, trial_games=8)
    for interrupted in (False, True):
        trials.append([])
        engine = Mock(state=SimpleNamespace(frames=int(interrupted)))
        run.signal = signal.SIGINT if interrupted else None
        agent = lambda states: torch.eye(1, 3).expand(len(states), 3)  # noqa: E731
        trial = evaluation.run_trial(agent, engine, run)
        assert (trial.games, trial.won, trial.passed) == (8, 0, False)
        assert trial.decided != interrupted
        assert (engine.fire_event.call_count > 700) != interrupted  # once a step, for the terminal
        assert list(trial.rewards) == [] if interrupted else min(trial.rewards) <= -19
    assert len(set(trials[0] + trials[1])) == 2 * 8
    assert 29 < max(starts) <= 59  # FIRE is one of these emulated frames, which training has not


@pytest.mark.parametrize("vector_env", [False, True])
def test_fire_follows_a_lost_life_where_it_did_in_training(vector_env):
    preprocessing = Preprocessing("BreakoutNoFrameskip-v4", vector_env=vector_env)
    env = make_env(preprocessing, max_num_frames_per_episode=3_200)
    stays = Mock(temperature=0.0, side_effect=lambda states: torch.eye(1, 4))
    game = play_game(env, stays, 0.0, 0)
    assert game.reward >= 0
    assert (game.steps < 500) == (not vector_env), "else it waits for a FIRE until it is cut short"


def test_a_lost_life_begins_a_new_stack_where_it_did_in_training():
    env = make_env(Preprocessing("BreakoutNoFrameskip-v4", vector_env=True))
    env.reset(seed=0)
    lives = [5]
    for number in count():
        state, _, terminated, *_ = env.step(number % 3)
        lives.append(env.unwrapped.ale.lives())
        if terminated:
            break
        assert lives[-1] == lives[-2] or (state == state[-1:]).all(), "nothing of the last life"
    assert set(lives) == {5, 4, 3, 2, 1, 0}


def test_all_games_must_be_won_with_a_mean_of_stop_reward(run, capsys):
    for rewards, passed, message in (
        ([-3.0] + [20.0] * 63, False, "63 of 64 new games, lost one by 3 points; training goes on"),
        ([20.0] * 63 + [0.0], False, "63 of 64 new games, mean 19.7; training goes on"),
        ([17.0] * 64, True, "64 of 64 new games, mean 17.0"),
        ([16.0] * 64, False, "64 of 64 new games, mean 16.0, below 17; training goes on"),
        ([20.0] * 63 + [1.0], True, "64 of 64 new games, mean 19.7"),
    ):
        trial = Trial(64, rewards, run.params.stop_reward)
        assert told_of(trial, run, capsys) == (True, passed, f"trial: won {message}\n")


def test_in_games_other_than_pong_the_mean_decides_alone(run, capsys):
    unfinished = Trial(4, [-9.0, 0.0, -1.0], -2.0, -math.inf)
    assert (unfinished.decided, unfinished.passed) == (False, False)
    for last, passed, message in (
        (2.0, True, "4 new games, mean -2.0"),
        (0.0, False, "4 new games, mean -2.5, below -2; training goes on"),
    ):
        trial = replace(unfinished, rewards=[-9.0, 0.0, -1.0, last])
        assert told_of(trial, run, capsys) == (True, passed, f"trial: {message}\n")


def told_of(trial, run, capsys) -> tuple[bool, bool, str]:
    engine = SimpleNamespace(state=SimpleNamespace(trial=trial), should_terminate=False)
    Terminal(run).trial_completed(engine)
    return trial.decided, trial.passed, capsys.readouterr().out


def test_the_bar_follows_the_trial_that_is_played(run, monkeypatch, capsys):
    monkeypatch.setattr("lib.training.terminal.REFRESH_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr", screen := Screen())
    terminal, trial = Terminal(run), Trial(64, [20.0] * 15 + [-1.0], 17.0)
    state = {"phase": "training", "frames": 9, "fps": 0, "episodes": 2, "first_reward": 3.0}
    state = SimpleNamespace(trial=trial, avg_reward=17.5, **state)
    engine = SimpleNamespace(state=state, should_terminate=True)
    for told in (terminal.trial_step, terminal.trial_step, terminal.trial_completed) * 2:
        told(engine)
    bars = re.findall(r"trial of 64 new games, step (\d) \|.*?(\d+)%", screen.getvalue())
    assert [*dict.fromkeys(bars)] == [("1", "25"), ("2", "25")]
    assert "training goes on" not in capsys.readouterr().out  # it ends
    for phase, told in (
        ("training", r"training 9 frames, avg_reward 17\.50, goal 17 \|#+\| 100%"),
        ("filling", r"first rollout 9 frames *\| +\| +0%"),
    ):
        state.phase = phase
        terminal.frames_played(engine)  # after a trial that was not passed
        assert re.fullmatch(told, screen.getvalue().split("\r")[-2])


def test_training_goes_on_until_a_trial_is_passed(tmp_path, monkeypatch, capsys):
    ends = [*[20.0] * 5, -1.0], [20.0], [19.5] * 64
    trials = iter([Trial(64, rewards, 17.0) for rewards in ends])
    monkeypatch.setattr("lib.training.handlers.run_trial", lambda *_: next(trials))
    state = play_episodes(tmp_path, [10.0] + [20.0] * 200, agent=Mock())
    # The average of 10 and twenties is 17 after 60 games; a trial comes 25 games after another one.
    # The second one was not played to its end, and nothing is told of it.
    first, last = (step for step, _ in curve(tmp_path, "trial/won"))
    assert (first, last) == (610, 610 + 2 * 25 * 10)
    assert (state.solved, state.frames) == (True, last)
    assert state.reached["frames"] == first
    assert curve(tmp_path, "trial/mean") == [(first, 16.5), (last, 19.5)]
    assert curve(tmp_path, "outcome/reached_frames")[0][1] == first
    out = capsys.readouterr().out
    assert f"avg_reward 17 after {first} frames" in out
    assert out.count("trial: ") == 2
