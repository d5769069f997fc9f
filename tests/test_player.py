"""The player's process and its bounded queue."""

import os
import signal
import time

import numpy as np
import pytest
import torch

from lib.games.experience import Transition
from lib.learning.dqn_model import DQN
from lib.players import player
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


def test_the_file_of_a_killed_trainer_is_removed_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(player, "SHARED_MEMORY", tmp_path)
    trainer = torch.multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    trainer.start()
    mine, other = tmp_path / f"torch_{trainer.pid}_123_0", tmp_path / "torch_1_123_0"
    mine.touch()
    other.touch()
    player.remove_leftovers(trainer)  # it may still end by itself, and do so
    assert mine.exists()
    trainer.kill()
    trainer.join()
    player.remove_leftovers(trainer)
    assert not mine.exists()
    assert other.exists()
