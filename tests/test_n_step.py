"""n-step messages and the buffer that takes them, against transitions computed one by one."""

import importlib
from itertools import count

from lib.parallel.message_buffer import MessageReplayBuffer
from lib.parallel.n_step import Message
from lib.parallel.worker import ClusterOptions, VersionedWeights, ape_x_epsilons

import numpy as np
import pytest
import torch
from conftest import options_of
from helpers import GAMMA, N_STEPS, SIZE, STACK, Games, play_messages


def tuples(*columns) -> list[tuple]:
    return [
        (state.tobytes(), int(action), float(reward), bool(end), None if end else after.tobytes())
        for state, action, reward, end, after in zip(*map(np.asarray, columns), strict=True)
    ]


def cut_out(message: Message) -> list[tuple]:
    states, following = np.split(message.frames[message.windows], [STACK], axis=1)
    return tuples(states, message.actions, message.rewards, message.terminated, following)


@pytest.mark.parametrize(("messages", "steps"), [(1, 60), (12, 5), (4, 13)])
def test_every_n_step_transition_is_sent_once_whatever_the_messages(messages, steps):
    games, sent = play_messages(messages, steps)
    got = sorted((t for message in sent for t in cut_out(message)), key=repr)
    every = games.transitions()
    # The last steps of each game are not complete: they would come with the next message. Of them
    # the reference knows those that terminated already.
    waiting = [t for t in every if t not in got]
    last = {state.tobytes() for states, *_ in games.history[-N_STEPS:] for state in states}
    assert {state for state, *_ in waiting} <= last
    assert sorted([*got, *waiting], key=repr) == every
    assert {t[3] for t in got} == {False, True}
    # Frames are counted once, and repeated only where states begin with them.
    assert [message.played for message in sent] == [3 * steps] * messages
    repeated = [3 * (steps + STACK - 1 + N_STEPS)] * (messages - 1)
    assert [len(message.frames) for message in sent] == [3 * steps, *repeated]
    assert [message.version for message in sent] == [*range(messages)]
    assert {message.player for message in sent} == {7}
    episodes = [e for message in sent for step in message.episodes for e in step if e]
    assert len(episodes) == sum(ended.sum() for *_, ended in games.history)


def drawn(buffer: MessageReplayBuffer, count: int) -> set[tuple]:
    batch = buffer.sample(count)
    assert batch.states.shape == batch.next_states.shape == (count, STACK, *SIZE)
    assert (batch.actions.dtype, batch.rewards.dtype) == (torch.int64, torch.float32)
    return set(tuples(*batch))


def test_a_full_buffer_has_only_the_newest():
    _, sent = play_messages(messages=40, steps=20)
    buffer = MessageReplayBuffer(250, (STACK, *SIZE))
    for number, message in enumerate(sent):
        buffer.extend(message)
        newest = [t for earlier in sent[: number + 1] for t in cut_out(earlier)]
        assert min(len(newest), 180) <= len(buffer) <= 250
        # A message repeats frames, so the oldest transitions may have lost theirs.
        assert set(newest[-180:]) <= drawn(buffer, 5_000) <= set(newest[-250:])


def test_the_smallest_buffer_that_the_rung_accepts_has_all_of_the_newest_message():
    rung = options_of("09_many_machines")
    settings = {"envs": 4, "message_steps": 10, "stack": STACK, "n_steps": N_STEPS}
    sizes = (rung(replay_size=size, replay_initial=1, **settings) for size in count(1))
    options = next(one for one in sizes if "--replay-size" not in (one.validation_error() or ""))
    buffer = MessageReplayBuffer(options.replay_size, (STACK, *SIZE))
    for message in play_messages(messages=30, steps=10, games=4)[1]:
        buffer.extend(message)
        assert drawn(buffer, 1_000) >= set(cut_out(message))


def test_a_player_of_the_rung_sends_what_it_played_and_has_its_own_epsilons(monkeypatch):
    monkeypatch.setattr("helpers.SIZE", (36, 36))
    rung, games = importlib.import_module("09_many_machines"), Games(4)
    monkeypatch.setattr(rung, "player_seed", lambda *_: 0)
    monkeypatch.setattr(ClusterOptions, "make_envs", lambda *_: games)
    settings = {"players": 2, "envs": 4, "stack": STACK, "n_steps": N_STEPS, "gamma": GAMMA}
    player = rung.Player(1, rung.Options(**settings, epsilon_frames=100, message_steps=30), 0)
    weights = {name: 0 * weight.numpy() for name, weight in player.net.state_dict().items()}
    weights["fc.2.bias"][3] = 1
    epsilons = ape_x_epsilons(2, 4, 0.02)[1]
    first, second = (player.play(VersionedWeights(7, frames, weights)) for frames in (0, 1_000))
    got = [transition for message in (first, second) for transition in cut_out(message)]
    assert len(got) > 4 * 50 - 30
    assert set(got) <= set(games.transitions())
    assert (second.player, second.version, second.played) == (1, 7, 4 * 30)
    shares = np.mean([actions == 3 for _, actions, *_ in games.history[-30:]], axis=0)
    assert np.allclose(shares, 1 - 5 / 6 * epsilons, atol=0.25)
    assert np.allclose(player.agent.epsilon(100), epsilons)
