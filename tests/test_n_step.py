"""n-step messages and the buffer that takes them, against transitions computed one by one."""

import pickle
from itertools import count

import numpy as np
import pytest
import torch
from conftest import options_of

from lib.envs.experience import Episode
from lib.envs.vector_env import VectorStep
from lib.parallel.message_buffer import MessageReplayBuffer
from lib.parallel.n_step import Message, NStepRecorder

STACK, N_STEPS, GAMMA, SIZE = 3, 3, 0.5, (4, 5)


class Games:
    """Several games, whose frames each show a number of their own; all that happens is kept."""

    def __init__(self, count: int) -> None:
        self.rng, self.count, self.shown = np.random.default_rng(0), count, 0
        self.history: list[tuple] = []  # states, actions, rewards, terminated and ended, by step
        self.states = self.frames().repeat(STACK, axis=1)

    def frames(self) -> np.ndarray:
        frames = np.zeros((self.count, 1, *SIZE), np.uint8)
        for frame in frames:
            frame[0, 0, :2] = divmod(self.shown, 256)
            self.shown += 1
        return frames

    def step(self, actions: np.ndarray) -> VectorStep:
        ended = self.rng.random(self.count) < 0.2
        terminated = ended & (self.rng.random(self.count) < 0.7)
        rewards = self.rng.integers(-1, 2, self.count).astype(np.float32)
        self.history.append((self.states, actions, rewards, terminated, ended))
        frames = self.frames()
        self.states = np.concatenate([self.states[:, 1:], frames], axis=1)
        self.states[ended] = self.frames()[ended]
        episodes = [Episode(float(game), 1) if end else None for game, end in enumerate(ended)]
        return VectorStep(rewards, terminated, ended, frames, episodes)

    def transitions(self) -> list[tuple]:
        """All n-step transitions, one by one, as the definition says."""
        found = []
        states, actions, rewards, terminated, ended = map(np.array, zip(*self.history, strict=True))
        for start, game in np.ndindex(actions.shape):
            begin = states[start, game].tobytes(), int(actions[start, game])
            value = 0.0
            for t in range(start, min(start + N_STEPS, len(actions))):
                value += GAMMA ** (t - start) * rewards[t, game]
                if terminated[t, game]:
                    found.append((*begin, value, True, None))
                if ended[t, game]:
                    break
            else:
                if start + N_STEPS < len(actions):
                    after = states[start + N_STEPS, game].tobytes()
                    found.append((*begin, value, False, after))
        return sorted(found, key=repr)


def play(messages: int, steps: int, games: int = 3) -> tuple[Games, list[Message]]:
    played, recorder = Games(games), NStepRecorder(STACK, N_STEPS, GAMMA)
    rng, sent = np.random.default_rng(1), []
    for version in range(messages):
        for _ in range(steps):
            states, actions = played.states, rng.integers(6, size=games)
            recorder.add(states, actions, played.step(actions))
        sent.append(pickle.loads(pickle.dumps(recorder.pack(7, version), protocol=5)))
    return played, sent


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
    games, sent = play(messages, steps)
    got = sorted((t for message in sent for t in cut_out(message)), key=repr)
    every = games.transitions()
    # The last steps of each game are not complete: they would come with the next message. Of them
    # the reference knows those that terminated already.
    waiting = [t for t in every if t not in got]
    assert len(waiting) <= N_STEPS * 3
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


def test_a_full_buffer_has_only_the_newest_and_one_restored_draws_the_same(tmp_path):
    _, sent = play(messages=40, steps=20)
    buffer, other = (MessageReplayBuffer(250, (STACK, *SIZE), seed=seed) for seed in (3, 4))
    for number, message in enumerate(sent):
        buffer.extend(message)
        newest = [t for earlier in sent[: number + 1] for t in cut_out(earlier)]
        assert min(len(newest), 180) <= len(buffer) <= 250
        # A message repeats frames, so the oldest transitions may have lost theirs.
        assert set(newest[-180:]) <= drawn(buffer, 5_000) <= set(newest[-250:])
        if number == 20:
            torch.save(buffer.state_dict(), tmp_path / "buffer.pt")
            other.load_state_dict(torch.load(tmp_path / "buffer.pt", weights_only=True))
        elif number > 20:
            other.extend(message)
            assert set(newest[-180:]) <= drawn(other, 5_000) <= set(newest[-250:])
    for mine, theirs in zip(buffer.sample(64), other.sample(64), strict=True):
        assert torch.equal(mine, theirs)


def test_the_smallest_buffer_that_the_rung_accepts_has_all_of_the_newest_message():
    rung = options_of("09_many_machines")
    settings = {"envs": 4, "message_steps": 10, "stack": STACK, "n_steps": N_STEPS}
    sizes = (rung(replay_size=size, replay_initial=1, **settings) for size in count(1))
    options = next(one for one in sizes if "--replay-size" not in (one.why_invalid() or ""))
    buffer = MessageReplayBuffer(options.replay_size, (STACK, *SIZE))
    for message in play(messages=30, steps=10, games=4)[1]:
        buffer.extend(message)
        assert drawn(buffer, 1_000) >= set(cut_out(message))
