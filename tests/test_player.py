"""The player's process and its bounded queue."""

import os
import signal

import numpy as np
import pytest
import torch
from ignite.engine import Engine, Events

from lib.games.experience import Transition
from lib.learning.dqn_model import DQN
from lib.players.player import ExperienceQueue, Player
from lib.running.run import Failure

FRAME = np.arange(84 * 84, dtype=np.uint8).reshape(1, 84, 84)


def step(number: int) -> Transition:
    return Transition(0, number, 0.5, False, FRAME, FRAME if number == 0 else None, None)


def count(queue: ExperienceQueue, stop: int) -> None:
    for number in range(stop):
        queue.put(step(number))
    os.kill(os.getpid(), signal.SIGKILL)


def fail(queue: ExperienceQueue) -> None:
    queue.put(step(0))
    raise RuntimeError("the emulator\nis on fire")


def leave(queue: ExperienceQueue) -> None:
    raise SystemExit(7)


def watch(queue: ExperienceQueue, net: DQN) -> None:
    while True:
        value = int(next(net.parameters()).flatten()[0].item())
        queue.put(step(0)._replace(action=value))


def test_everything_arrives_in_order_and_never_more_than_the_bound():
    taken: list[Transition] = []

    def take() -> None:
        with Player(count, (500,), 8) as player:
            for transitions in player:
                assert len(transitions) <= 8
                taken.extend(transitions)

    with pytest.raises(Failure, match="was killed by SIGKILL"):
        take()
    assert [transition.action for transition in taken] == list(range(500))
    assert np.array_equal(taken[0].first_frame, FRAME)
    assert np.array_equal(taken[-1].frame, FRAME)
    assert taken[-1].first_frame is None


def test_the_players_own_error_is_told_in_one_line():
    with (
        pytest.raises(Failure, match=r"RuntimeError: the emulator is on fire \(test_player"),
        Player(fail, (), 8) as player,
    ):
        for _ in player:
            pass


def test_a_player_that_just_leaves_is_noticed():
    with pytest.raises(Failure, match="exit code 7"), Player(leave, (), 8) as player:
        for _ in player:
            pass


def test_the_player_sees_the_live_weights_and_goes_with_the_trainer():
    net = DQN((4, 84, 84), 6).share_memory()
    with torch.no_grad(), Player(watch, (net,), 2) as player:
        for value in (3, 4, 5):
            next(net.parameters()).fill_(value)
            for transitions in player:
                if transitions and transitions[-1].action == value:
                    break
    assert player.process.exitcode == 0


class Unreadable:
    """Arrives in the player as an error, as memory of a GPU does that cannot be opened."""

    def __reduce__(self):
        return (fail_to_open, ())


def fail_to_open():
    raise RuntimeError("CUDA error: invalid resource handle\nCompile with `TORCH_USE_CUDA_DSA`")


def test_arguments_that_do_not_arrive_are_one_line():
    with (
        pytest.raises(
            Failure, match=r"the player failed: RuntimeError: CUDA error: invalid resource"
        ),
        Player(watch, (Unreadable(),), 8) as player,
    ):
        for _ in player:
            pass


def obey(queue: ExperienceQueue) -> None:
    """Play on, whatever ends a run reaches this process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    for number in range(3):
        queue.put(step(number))
    queue.put(step(3))


def test_what_ends_a_run_ends_the_trainer_alone():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Failure, match="exit code 0"), Player(obey, (), 8) as player:
        taken = [step for transitions in player for step in transitions]
    assert [step.action for step in taken] == [0, 1, 2, 3]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_what_was_learned_is_kept_when_the_player_is_lost():
    """The engine sees the end of its data, and so do the handlers that save."""
    ends, engine = [], Engine(lambda *_: None)
    engine.add_event_handler(Events.COMPLETED, lambda: ends.append("saved"))
    with pytest.raises(Failure, match="was killed by SIGKILL"), Player(count, (20,), 8) as player:
        engine.run(player)
    assert engine.state.iteration > 0
    assert ends == ["saved"]
