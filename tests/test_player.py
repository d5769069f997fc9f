"""The player process and its bounded queue."""

import os
import signal
from itertools import accumulate, chain, repeat
from multiprocessing import Pipe
from pickle import PicklingError
from threading import Event
from unittest.mock import Mock

from lib.learning.dqn_model import DQN
from lib.parallel.player import ExperienceQueue, Player
from lib.training.options import PlayerOptions
from lib.training.run import SIGNALS, Failure

import numpy as np
import pytest
import torch
from helpers import FRAME, step, watch
from ignite.engine import Engine, Events


def count(queue: ExperienceQueue, stop: int) -> None:
    """Play on, whatever ends a run reaches this process; then be killed."""
    for number in SIGNALS:
        os.kill(os.getpid(), number)
    torchs = torch.get_num_threads(), (torch.tensor(1e-40) / 2).item()
    for number in range(stop):
        queue.put(step(number)._replace(rewards=torchs))
    os.kill(os.getpid(), signal.SIGKILL)


def test_all_arrives_in_order_and_is_kept_when_the_player_is_lost(monkeypatch):
    """The engine sees the end of its data, and so do the handlers that save."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    taken, ends = [], []

    def process(_: Engine, transitions: list) -> None:
        assert len(transitions) <= 8
        taken.extend(transitions)

    engine = Engine(process)
    engine.add_event_handler(Events.COMPLETED, lambda: ends.append("saved"))
    monkeypatch.setattr("lib.parallel.player.WAIT_SECONDS", 60)
    player = Player(count, (500,), 8, PlayerOptions(player_timeout=60))  # one wait is its limit
    with pytest.raises(Failure, match="was killed by SIGKILL"), player:
        engine.run(player)
    assert ends == ["saved"]
    assert [*np.concatenate([step.actions for step in taken])] == list(range(500))
    assert np.array_equal(taken[0].first_frames, FRAME)
    assert np.array_equal(taken[-1].frames, FRAME)
    assert taken[0].rewards == (1, 0.0), "one thread, and no denormal numbers"
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def end(queue: ExperienceQueue, error: BaseException) -> None:
    queue.put(step(0))
    raise error


def run_ahead(queue: ExperienceQueue, steps: int) -> None:
    for number in range(steps):
        queue.put(step(number))


def hang(queue: ExperienceQueue, go) -> None:
    go.recv()
    queue.put(step(0))
    Event().wait()


FIRE = RuntimeError("the emulator\nis on fire")
TOLD = r"RuntimeError: the emulator is on fire \(test_player"


@pytest.mark.parametrize(("error", "message"), [(FIRE, TOLD), (SystemExit(7), "exit code 7")])
def test_why_a_player_was_lost_is_told_in_one_line(error, message):
    with pytest.raises(Failure, match=message), Player(end, (error,), 8) as experience:
        assert sum(map(len, experience)) == 1


def test_an_error_of_the_trainer_comes_before_the_loss_of_its_player():
    with pytest.raises(OSError, match=r"full after [1-9]"), Player(end, (FIRE,), 8) as experience:
        raise OSError(f"full after {len(list(experience))}")


def test_a_player_that_does_not_start_is_killed(monkeypatch):
    monkeypatch.setattr("lib.parallel.player.START_SECONDS", 0)
    player = Player(end, (FIRE,), 8, PlayerOptions(player_timeout=1e-3))
    with pytest.raises(Failure, match="the player did not start"):
        player.__enter__()
    assert player.process.exitcode == -signal.SIGKILL
    with pytest.raises((AttributeError, PicklingError), match="local object"):
        Player(run_ahead, (lambda: 400,), 8).__enter__()


def test_a_player_may_start_slowly_but_then_has_a_time_limit(monkeypatch):
    monkeypatch.setattr("lib.parallel.player.WAIT_SECONDS", 0.01)
    (go, theirs), arrived, codes = Pipe(), [], []

    def receive() -> None:
        with player:
            for steps in player:
                arrived.append(len(steps))
                if len(arrived) == 10:
                    go.send("go")
            player.process.join(60)
            codes.append(player.process.exitcode)

    player = Player(hang, (theirs,), 8, PlayerOptions(player_timeout=0.03))
    with pytest.raises(Failure, match=r"sent nothing for 0\.03 seconds"):
        receive()
    begun = arrived.index(1)
    assert begun >= 10
    assert arrived[begun + 1 :] == [0] * 3
    assert codes == [-signal.SIGKILL]  # it would not notice that nobody reads


def test_a_player_is_ahead_by_the_bound_and_never_by_more():
    answers, sent, poll = [2, 1, 3], Mock(), Mock(side_effect=chain([True], repeat(False)))
    pipe = Mock(send=sent, poll=poll, recv=Mock(side_effect=[*answers, EOFError]))
    with pytest.raises(EOFError):  # it waits for an answer that does not come
        run_ahead(ExperienceQueue(pipe, 5), 100)
    assert sent.call_count == 5 + sum(answers)
    # The trainer answers for all that it took: then the rest fits in without it.
    with Player(run_ahead, (400,), 8) as player:
        assert any(taken >= 400 - 8 for taken in accumulate(map(len, player)))
        player.process.join(60)
        assert player.process.exitcode == 0


def test_the_player_sees_the_live_weights_and_goes_with_the_trainer():
    net = DQN((4, 84, 84), 6).share_memory()
    with torch.no_grad(), Player(watch, (net,), 2) as player:
        for value in (3.0, 4.0, 5.0):
            next(net.parameters()).fill_(value)
            assert any(steps and steps[-1].actions[0] == [value] * 3 for steps in player)
    assert player.process.exitcode == 0
