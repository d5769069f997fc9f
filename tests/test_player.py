"""The player's process and its bounded queue."""

import os
import signal
from threading import Event

import numpy as np
import pytest
import torch
from helpers import FRAME, step, watch
from ignite.engine import Engine, Events

from lib.envs.experience import Transitions
from lib.learning.dqn_model import DQN
from lib.parallel.player import ExperienceQueue, Player
from lib.training.options import PlayerOptions
from lib.training.run import Failure


def count(queue: ExperienceQueue, stop: int) -> None:
    for number in range(stop):
        queue.put(step(number))
    os.kill(os.getpid(), signal.SIGKILL)


def fail(queue: ExperienceQueue) -> None:
    queue.put(step(0))
    raise RuntimeError("the emulator\nis on fire")


def test_all_arrives_in_order_and_is_kept_when_the_player_is_lost():
    """The engine sees the end of its data, and so do the handlers that save."""
    taken: list[Transitions] = []
    ends: list[str] = []

    def process(_: Engine, transitions: list[Transitions]) -> None:
        assert len(transitions) <= 8
        taken.extend(transitions)

    engine = Engine(process)
    engine.add_event_handler(Events.COMPLETED, lambda: ends.append("saved"))
    with pytest.raises(Failure, match="was killed by SIGKILL"), Player(count, (500,), 8) as player:
        engine.run(player)
    assert ends == ["saved"]
    assert [*np.concatenate([step.actions for step in taken])] == list(range(500))
    assert np.array_equal(taken[0].first_frames, FRAME)
    assert np.array_equal(taken[-1].frames, FRAME)


def test_what_the_player_failed_with_is_told_in_one_line():
    message = r"RuntimeError: the emulator is on fire \(test_player"
    with pytest.raises(Failure, match=message), Player(fail, (), 8) as player:
        list(player)


def hang(queue: ExperienceQueue) -> None:
    queue.put(step(0))
    Event().wait()


def test_a_player_that_sends_nothing_is_given_up():
    message = "sent nothing for 1 seconds"
    with (
        pytest.raises(Failure, match=message),
        Player(hang, (), 8, PlayerOptions(player_timeout=1)) as player,
    ):
        assert len([step for steps in player for step in steps]) == 1


def test_the_player_sees_the_live_weights_and_goes_with_the_trainer():
    net = DQN((4, 84, 84), 6).share_memory()
    with torch.no_grad(), Player(watch, (net,), 2) as player:
        for value in (3.0, 4.0, 5.0):
            next(net.parameters()).fill_(value)
            for transitions in player:
                if transitions and transitions[-1].actions[0] == [value] * 3:
                    break
    assert player.process.exitcode == 0


def obey(queue: ExperienceQueue) -> None:
    """Play on, whatever ends a run reaches this process; then leave."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    for number in range(4):
        queue.put(step(number))
    raise SystemExit(7)


def test_what_ends_a_run_ends_the_trainer_alone():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Failure, match="exit code 7"), Player(obey, (), 8) as player:
        taken = [step.actions.item() for steps in player for step in steps]
    assert taken == [0, 1, 2, 3]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
