"""n-step messages and the buffer that takes them, against transitions computed one by one."""

import pickle
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ignite.engine import Engine
from test_rungs import options_of

from lib.games.experience import Episode
from lib.games.vector_env import VectorStep
from lib.players.cluster import learn_from
from lib.players.message_buffer import MessageReplayBuffer
from lib.players.n_step import NStepRecorder, Transitions
from lib.running.events import COUNTERS, PlayEvents

STACK, N_STEPS, GAMMA, SIZE = 3, 3, 0.5, (4, 5)


class Games:
    """Several games whose frames show their game, the number of the episode and the step in it."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.count = count
        self.numbers, self.steps = np.zeros(count, int), np.zeros(count, int)
        self.states = np.stack([self.frame(i) for i in range(count)])[:, None].repeat(STACK, 1)
        self.expected: dict[int, list] = {i: [[]] for i in range(count)}  # by game and episode

    def frame(self, game: int) -> np.ndarray:
        frame = np.zeros(SIZE, np.uint8)
        frame[0, :3] = game, self.numbers[game], self.steps[game]
        return frame

    def step(self, actions: np.ndarray) -> VectorStep:
        ended = self.rng.random(self.count) < 0.2
        terminated = ended & (self.rng.random(self.count) < 0.7)
        rewards = self.rng.integers(-1, 2, self.count).astype(np.float32)
        frames, episodes = [], []
        self.states = self.states.copy()  # that of the step before stays as it is
        for i in range(self.count):
            state = self.states[i].copy()
            self.steps[i] += 1
            frames.append(self.frame(i)[None])
            episodes.append(Episode(float(i), int(self.steps[i])) if ended[i] else None)
            end = "terminated" if terminated[i] else "cut" if ended[i] else ""
            self.expected[i][-1].append((state, int(actions[i]), float(rewards[i]), end))
            self.states[i] = np.concatenate([self.states[i][1:], frames[-1]])
            if ended[i]:
                self.numbers[i] += 1
                self.steps[i] = 0
                self.states[i] = self.frame(i)[None].repeat(STACK, 0)
                self.expected[i].append([])
        return VectorStep(rewards, terminated, ended, np.stack(frames), episodes)

    def transitions(self) -> list[tuple]:
        """All n-step transitions, one by one, as the definition says."""
        found = []
        for episodes in self.expected.values():
            for steps in episodes:
                for start, (state, action, _, _) in enumerate(steps):
                    window = steps[start : start + N_STEPS]
                    value = sum(GAMMA**k * step[2] for k, step in enumerate(window))
                    if window[-1][3] == "terminated":
                        found.append((state.tobytes(), action, value, True, None))
                    elif window[-1][3] == "" and len(steps) > start + N_STEPS:
                        following = steps[start + N_STEPS][0]
                        found.append((state.tobytes(), action, value, False, following.tobytes()))
        return sorted(found, key=repr)


def play(messages: int, steps: int, games: int = 3) -> tuple[Games, list[Transitions]]:
    played, recorder = Games(games), NStepRecorder(STACK, N_STEPS, GAMMA)
    rng, sent = np.random.default_rng(1), []
    for version in range(messages):
        for _ in range(steps):
            states, actions = played.states, rng.integers(6, size=games)
            recorder.add(states, actions, played.step(actions))
        sent.append(pickle.loads(pickle.dumps(recorder.pack(7, version), protocol=5)))
    return played, sent


def cut_out(message: Transitions) -> list[tuple]:
    found = []
    for i in range(len(message.actions)):
        state = message.frames[message.windows[i, :STACK]]
        following = message.frames[message.windows[i, STACK:]]
        end = bool(message.terminated[i])
        after = None if end else following.tobytes()
        found.append(
            (state.tobytes(), int(message.actions[i]), float(message.rewards[i]), end, after)
        )
    return found


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
    assert len(got) > 0.6 * messages * steps * 3
    assert any(t[3] for t in got)
    assert any(not t[3] for t in got)


def test_frames_are_counted_once_and_a_message_repeats_only_what_its_states_begin_with():
    games, sent = play(messages=5, steps=10)
    assert [message.played for message in sent] == [30] * 5
    assert [len(message.frames) for message in sent] == [30] + [3 * (10 + STACK - 1 + N_STEPS)] * 4
    assert [(message.player, message.version) for message in sent] == [(7, v) for v in range(5)]
    ended = sum(len(episodes) - 1 for episodes in games.expected.values())
    episodes = [e for message in sent for step in message.episodes for e in step if e]
    assert len(episodes) == ended > 0


def test_the_buffer_gives_back_what_was_sent():
    _, sent = play(messages=6, steps=20)
    buffer = MessageReplayBuffer(1_000, (STACK, *SIZE))
    for message in sent:
        buffer.extend(message)
    known = {t for message in sent for t in cut_out(message)}
    assert len(buffer) == sum(len(message.actions) for message in sent)
    assert drawn(buffer, 4_000) == known


def drawn(buffer: MessageReplayBuffer, count: int) -> set[tuple]:
    batch = buffer.sample(count)
    assert batch.states.shape == batch.next_states.shape == (count, STACK, *SIZE)
    assert (batch.actions.dtype, batch.rewards.dtype) == (torch.int64, torch.float32)
    return {
        (
            batch.states[i].numpy().tobytes(),
            int(batch.actions[i]),
            float(batch.rewards[i]),
            bool(batch.terminated[i]),
            None if batch.terminated[i] else batch.next_states[i].numpy().tobytes(),
        )
        for i in range(count)
    }


def test_a_full_buffer_has_only_the_newest_and_they_are_whole():
    _, sent = play(messages=40, steps=20)
    buffer = MessageReplayBuffer(250, (STACK, *SIZE))
    for number, message in enumerate(sent):
        buffer.extend(message)
        newest = [t for earlier in sent[: number + 1] for t in cut_out(earlier)]
        assert len(buffer) <= 250
        assert drawn(buffer, 500) <= set(newest[-len(buffer) :])
    assert len(buffer) > 180


def test_a_message_larger_than_the_buffer_is_refused():
    _, sent = play(messages=1, steps=50)
    with pytest.raises(ValueError, match="do not fit"):
        MessageReplayBuffer(50, (STACK, *SIZE)).extend(sent[0])
    with pytest.raises(ValueError, match="empty"):
        MessageReplayBuffer(50, (STACK, *SIZE)).sample(1)


def test_a_restored_buffer_draws_the_same(tmp_path):
    _, sent = play(messages=20, steps=20)
    buffer, other = (MessageReplayBuffer(250, (STACK, *SIZE), seed=3) for _ in range(2))
    for message in sent[:15]:
        buffer.extend(message)
    buffer.sample(5)
    torch.save(buffer.state_dict(), tmp_path / "buffer.pt")
    other.load_state_dict(torch.load(tmp_path / "buffer.pt", weights_only=True))
    for message in sent[15:]:
        buffer.extend(message)
        other.extend(message)
        for mine, theirs in zip(buffer.sample(64), other.sample(64), strict=True):
            assert torch.equal(mine, theirs)


def test_a_buffer_goes_on_after_2_to_the_31_frames():
    _, sent = play(messages=300, steps=10, games=1)
    early, later = (MessageReplayBuffer(32, (STACK, *SIZE)) for _ in range(2))
    for message in sent[:100]:
        early.extend(message)
    state = early.state_dict()
    rings = len(state["frames"]) * len(state["actions"])
    passed = (2**31 - 1_200) // rings * rings  # whole rounds of both rings: places stay the same
    for name in ("frames_written", "transitions_written", "oldest", "windows"):
        state[name] += passed
    state["messages"] = [(begin + passed, end + passed) for begin, end in state["messages"]]
    later.load_state_dict(state)
    for number in range(100, 300):
        later.extend(sent[number])
        newest = [t for earlier in sent[number - 3 : number + 1] for t in cut_out(earlier)]
        assert drawn(later, 100) <= set(newest[-len(later) :])
    assert state["frames_written"] < 2**31 < later.state_dict()["frames_written"]
    assert state["transitions_written"] < 2**31 < later.added


def test_the_smallest_buffer_that_the_rung_accepts_has_all_of_the_newest_message():
    rung = options_of("09_many_machines")
    settings = {"envs": 4, "message_steps": 10, "stack": STACK, "n_steps": N_STEPS}
    sizes = (rung(replay_size=size, replay_initial=1, **settings) for size in count(1))
    refused = "--replay-size"
    options = next(options for options in sizes if refused not in (options.problem() or ""))
    buffer = MessageReplayBuffer(options.replay_size, (STACK, *SIZE))
    for message in play(messages=30, steps=10, games=4)[1]:
        buffer.extend(message)
        assert drawn(buffer, 1_000) >= set(cut_out(message))


def test_training_begins_though_a_full_buffer_has_fewer_transitions():
    """Messages repeat frames, and they are dropped whole."""
    _, sent = play(messages=12, steps=20)
    options = SimpleNamespace(
        replay_initial=250, frames_per_update=60, batch_size=4, epsilon_final=0.02
    )
    logger = SimpleNamespace(attach_output_handler=lambda *_, **__: None)
    engine = Engine(lambda *_: None)
    engine.register_events(*PlayEvents, event_to_attr=COUNTERS)
    run = SimpleNamespace(options=options, tensorboard=logger, signal=None)
    buffer = MessageReplayBuffer(250, (STACK, *SIZE))
    messages = [[message] for message in sent]
    batches = learn_from(messages, buffer, np.full((8, 3), 0.02), engine, run)
    stored = np.cumsum([len(message.actions) for message in sent])
    assert len(list(batches)) == (stored >= 250).sum() > 3  # one for each message
    assert len(buffer) < 250
