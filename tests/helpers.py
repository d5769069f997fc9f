"""Shared by several test modules: rungs, games, players, and updates to compare with."""

import copy
import importlib
import io
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from lib.envs.experience import Episode, Transitions
from lib.envs.preprocessing import Preprocessing
from lib.envs.vector_env import VectorStep
from lib.learning.device_replay import DeviceReplayBuffer
from lib.learning.dqn_model import DQN
from lib.learning.loss import bellman_loss
from lib.learning.replay_buffer import Batch, ReplayBuffer
from lib.learning.schedules import LinearSchedule
from lib.parallel.n_step import Message, NStepRecorder
from lib.parallel.player import ExperienceQueue
from lib.training.handlers import attach_handlers
from lib.training.options import ReplayOptions
from lib.training.play import batch_generator
from lib.training.run import Run

import numpy as np
import pytest
import torch
from conftest import ROOT, read_events
from ignite.engine import Engine, Events, State
from ignite.handlers import TensorboardLogger
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

QUICK = ("--replay-initial", "300", "--replay-size", "1000", "--batch-size", "4")
FRAME = np.arange(84 * 84, dtype=np.uint8).reshape(1, 84, 84)
STACK, N_STEPS, GAMMA, SIZE = 3, 3, 0.5, (4, 5)
SHAPE, ACTIONS = (4, 84, 84), 6


def start(script: str, folder: Path, *flags: str, after: int = 0) -> subprocess.Popen:
    """Start a rung in a session of its own and wait until it trains, after so many frames."""
    command = [sys.executable, str(ROOT / f"{script}.py"), "--run-dir", str(folder), *flags]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
    for line in process.stdout:
        if line.startswith("training begins at frame "):
            assert int(re.sub(r"\D", "", line.split(";")[0])) > after
            return process
    raise AssertionError(process.communicate()[1])


def stream(rewards: list[float]):
    """Games of ten steps each, with these rewards."""
    for reward in rewards:
        yield from ([step(number)] for number in range(9))
        yield [step(9)._replace(terminated=np.ones(1, bool), episodes=[Episode(reward, 10)])]
        yield []  # as of a player that has sent nothing for a second


def small() -> DQN:
    return DQN((2, 36, 36), 3, channels=(2, 2, 2), hidden=2)


def learn(engine: Engine, run: Run, games, saved: dict[str, Any], agent=None, on=()) -> State:
    """Run an engine over these games; what is saved may have their buffer."""
    buffer = saved.get("buffer", ReplayBuffer(5_000, (2, 84, 84)))
    attach_handlers(engine, run, LinearSchedule(1.0, 0.0, 1_000), saved, agent)
    if on:
        engine.add_event_handler(*on)
    return engine.run(batch_generator(engine, games, buffer, run.params.replay_initial, 4))


def play_episodes(
    folder, rewards, losses=lambda _: 1.0, agent=None, on=(), net=None, kind=ReplayOptions, **more
):
    """Run an engine over the stream; returns its state."""
    options = kind(**{"replay_initial": 20, "stop_reward": 17.0, **more})
    engine = Engine(lambda engine, batch: torch.tensor(losses(engine.state.iteration)))
    with TensorboardLogger(folder) as tensorboard:
        run = Run(options, torch.device("cpu"), folder, tensorboard, "01_baseline")
        return learn(engine, run, stream(rewards), {"net": net or small()}, agent, on)


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in read_events(folder).Scalars(tag)]


def listed(run: Path) -> dict[str, object]:
    """The settings of a run in TensorBoard's HPARAMS tab."""
    events = read_events(run)
    tags = events.summary_metadata
    parts = {name: HParamsPluginData.FromString(tags[name].plugin_data.content) for name in tags}
    settings = parts["_hparams_/session_start_info"].session_start_info.hparams
    columns = parts["_hparams_/experiment"].experiment
    assert {info.name for info in columns.hparam_infos} >= {"envs", "stop_reward", *settings}
    shown = [info.name for info in columns.hparam_infos if info.differs]
    assert sorted(shown) == ["batch_size", "envs", "learning_rate", "script", "seed"]
    outcome = {tag for tag in events.Tags()["scalars"] if tag.startswith("outcome/")}
    assert {info.name.tag for info in columns.metric_infos} >= outcome
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in settings.items()}


def step(number: int) -> Transitions:
    begins, no, zero = np.array([number == 0]), np.zeros(1, bool), np.zeros(1, np.float32)
    return Transitions(np.array([number]), zero, no, FRAME, begins, FRAME[begins], [None])


def watch(queue: ExperienceQueue, net: DQN) -> None:
    """Tell the first numbers of every weight, again and again."""
    while True:
        seen = [weight.flatten()[:3].tolist() for weight in net.parameters()]
        queue.put(step(0)._replace(actions=seen))


def fail_to_open() -> None:
    """What arrives instead of a GPU's memory that the player cannot open."""
    raise RuntimeError("CUDA error: invalid resource handle\nCompile with `TORCH_USE_CUDA_DSA`")


class Catch:
    """Games, as ``StackedVectorEnv`` plays them: a ball falls, the paddle has to be under it.

    Eight steps a game, +1 if the ball is caught and -1 if not: the optimum is 1.
    """

    rows, columns, n_actions = 9, 6, 3

    def __init__(self, count: int, preprocessing: Preprocessing, seed: int) -> None:
        self.rng, self.games = np.random.default_rng(seed), np.arange(count)
        self.begin()
        self.states = self.pictures().repeat(preprocessing.stack, axis=1)
        self.shape = self.states.shape

    def begin(self) -> None:
        """They begin and end together."""
        self.row = 0
        self.ball, self.paddle = self.rng.integers(self.columns, size=(2, len(self.games)))

    def pictures(self) -> np.ndarray:
        cells = np.zeros((len(self.games), self.rows, self.columns), np.uint8)
        cells[self.games, self.row, self.ball] = cells[self.games, -1, self.paddle] = 255
        return cells.repeat(6, axis=1).repeat(6, axis=2)[:, np.newaxis]

    def send(self, actions: np.ndarray) -> None:
        self.paddle = np.clip(self.paddle + actions - 1, 0, self.columns - 1)
        self.row += 1

    def recv(self) -> VectorStep:
        frames, caught = self.pictures(), self.paddle == self.ball
        self.states = np.concatenate([self.states[:, 1:], frames], axis=1)
        ended = np.full(len(self.games), self.row == self.rows - 1)
        rewards = np.where(caught, 1, -1).astype(np.float32) * ended
        if ended[0]:
            self.begin()
            self.states = self.pictures().repeat(self.states.shape[1], axis=1)
        games = [Episode(float(reward), 8) if ended[0] else None for reward in rewards]
        return VectorStep(rewards, ended, ended, frames, games)


class Screen(io.StringIO):
    """A terminal, for what is drawn on it."""

    def isatty(self) -> bool:
        return True


class Games:
    """Several games, whose frames each show a number of their own; all that happens is kept."""

    n_actions = 6

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

    def send(self, actions: np.ndarray) -> None:
        self.sent = actions

    def recv(self) -> VectorStep:
        actions, ended = self.sent, self.rng.random(self.count) < 0.2
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


def play_messages(messages: int, steps: int, games: int = 3) -> tuple[Games, list[Message]]:
    played, recorder = Games(games), NStepRecorder(STACK, N_STEPS, GAMMA)
    rng, sent = np.random.default_rng(1), []
    for version in range(messages):
        for _ in range(steps):
            states, actions = played.states, rng.integers(6, size=games)
            played.send(actions)
            recorder.add(states, actions, played.recv())
        sent.append(pickle.loads(pickle.dumps(recorder.pack(7, version), protocol=5)))
    return played, sent


def make_batch(size: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(1)
    states = torch.randint(0, 256, (2, size, *SHAPE), dtype=torch.uint8, generator=generator)
    actions = torch.randint(0, ACTIONS, (size,), generator=generator)
    rewards = torch.randn(size, generator=generator)
    return Batch(states[0], actions, rewards, torch.arange(size) % 5 == 0, states[1])


def updates_of(script, folder: Path, count: int, begin, device="cpu", **settings) -> list[float]:
    """The losses of a rung's first updates.

    ``begin`` is called before, with the engine, the schedule of epsilon, and what is saved.
    """
    module, losses = importlib.import_module(script), list[torch.Tensor]()
    attach_handlers = module.attach_handlers

    def attach(engine: Engine, run: Run, *args: Any) -> None:
        attach_handlers(engine, run, *args)
        begin(engine, *args[:2])

        @engine.on(Events.ITERATION_COMPLETED)
        def completed() -> None:
            losses.append(engine.state.output)
            if len(losses) == count:
                engine.terminate()

    options = getattr(module, "Options", ReplayOptions)(**settings)
    torch.manual_seed(options.seed)
    with TensorboardLogger(folder) as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "attach_handlers", attach)
        module.train(options, Run(options, torch.device(device), folder, log, script))
    assert len(losses) == count
    return [loss.item() for loss in losses]


def rung_beside_plain_dqn(
    script: str, folder: Path, device: str = "cpu", **settings: Any
) -> tuple[list[float], list[float]]:
    """The first losses of a rung, and of a plain DQN, which learn from the same batch."""
    batch, network, sizes = make_batch(), DQN(SHAPE, ACTIONS), set[int]()
    there = Batch(*(tensor.to(device) for tensor in batch))

    def begin(engine: Engine, epsilon: object, saved: dict[str, Any]) -> None:
        weights = saved["net"].state_dict()
        network.load_state_dict(weights.get("weights", weights))

    learning = {"gamma": 0.8, "target_sync": 2, "learning_rate": 1e-3, "adam_epsilon": 1e-3}
    with pytest.MonkeyPatch.context() as patch:
        for buffer in (ReplayBuffer, DeviceReplayBuffer):
            patch.setattr(buffer, "sample", lambda _, size: sizes.add(size) or there)
        settings |= learning | {"replay_initial": 8, "batch_size": 5}
        losses = updates_of(script, folder, 4, begin, device, **settings)
    assert sizes == {5 * settings.get("envs", 1)}  # a batch grows with the environments
    target, expected = copy.deepcopy(network), list[float]()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, eps=1e-3)
    for number in range(1, 5):
        optimizer.zero_grad()
        with torch.no_grad():
            next_q = target(batch.next_states)
        loss = bellman_loss(network(batch.states), next_q, batch, gamma=0.8)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
        if number % 2 == 0:
            target.load_state_dict(network.state_dict())
    return losses, expected
