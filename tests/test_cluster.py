"""Players on Ray: real clusters, on the loopback address alone."""

import importlib.util
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, read_events
from ignite.engine import Engine
from ignite.handlers import TensorboardLogger
from simulated_cluster import HEALTH_CHECK, SimulatedCluster
from test_learning import Catch
from test_n_step import SIZE, STACK, cut_out, drawn, play

from lib.games.experience import Episode
from lib.games.vector_env import VectorStep
from lib.learning.agents import LinearSchedule
from lib.players.cluster import Players, learn_from
from lib.players.cluster_options import ClusterOptions
from lib.players.message_buffer import MessageReplayBuffer
from lib.players.n_step import Transitions
from lib.players.worker import Weights, ape_x_epsilons
from lib.running.flags import parse
from lib.running.handlers import attach_handlers
from lib.running.machine import prepare_torch
from lib.running.run import Failure, Run

# Before Ray is imported, see lib.players.cluster.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: pip install -r requirements-cluster.txt",
)
SCRIPT = "09_many_machines"
QUICK = ("--replay-initial", "300", "--replay-size", "2000", "--batch-size", "4", "--envs", "2")
NET = torch.nn.Linear(3, 2)


def start(folder: Path, *flags: str, wait_for: str = "training begins", **env: str) -> Any:
    """Start the rung in a session of its own, and read until it says so."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / f"{SCRIPT}.py"), "--run-dir", str(folder), *QUICK, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | env,
    )
    read_until(process, wait_for)
    return process


def read_until(process: Any, text: str) -> str:
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"{text!r} was not said: {process.communicate()[1]}")


def points(folder: Path) -> list[int]:
    """The updates at which the curves of training have points."""
    events, tag = read_events(folder), "train/frames"
    known = tag in events.Tags()["scalars"]
    return [point.step for point in events.Scalars(tag)] if known else []


def frames_in(line: str) -> int:
    return int(re.search(r"([\d,]+) frames", line)[1].replace(",", ""))


def descendants(pid: int) -> dict[int, str]:
    """All processes below, with their command lines."""
    found = {}
    try:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found[int(child)] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
            found |= descendants(int(child))
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        pass
    return found


def listening(pids: set[int]) -> set[str]:
    """The addresses where these processes accept connections, as in /proc/net."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(link))
            except FileNotFoundError:
                continue
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                addresses.add(fields[1].split(":")[0])
    return addresses


def shared_memory() -> set[str]:
    """Files of Ray's object stores."""
    return {name for name in os.listdir("/dev/shm") if re.match("plasma|ray", name)}


def wait_until_gone(pids: set[int], seconds: float) -> list[int]:
    """Those that are still there then."""
    deadline = time.monotonic() + seconds
    left = list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if alive(pid)]
    return left


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "0" * 24 + "01000000"}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The rung in training, with two players; with a TMPDIR that is too long for Ray's sockets."""
    folder = tmp_path_factory.mktemp("runs")
    long = tmp_path_factory.mktemp("a-folder-whose-path-is-much-longer-than-a-socket-may-have")
    before = shared_memory()
    flags = "--players", "2", "--checkpoint-every", "20"
    process = start(folder, *flags, TMPDIR=str(long))
    try:
        yield SimpleNamespace(process=process, folder=folder, shared_memory=before)
    finally:
        process.kill()
        process.communicate(timeout=90)


def ray_folder(commands: Iterable[str]) -> Path:
    """The folder of Ray's files, as its processes were told."""
    (folder,) = {
        found[1] for text in commands if (found := re.search(r"=(\S*/ray-\w+)/r/session_", text))
    }
    return Path(folder)


@needs_ray
def test_one_machine_lets_nobody_in_and_replaces_a_player(trainer):
    process = trainer.process
    below = descendants(process.pid)
    assert sum("raylet/raylet" in command for command in below.values()) == 1
    addresses = listening({process.pid, *below})
    assert addresses
    assert addresses <= LOOPBACK
    assert ray_folder(below.values()).stat().st_mode & 0o777 == 0o700

    actors: list[int] = []
    while len(actors) < 2:  # a player that is killed while it starts is not missed
        assert process.poll() is None
        time.sleep(0.05)
        below = descendants(process.pid)
        actors = [pid for pid, command in below.items() if "ray::Player.play" in command]
    os.kill(actors[0], signal.SIGKILL)
    lost = re.fullmatch(r"player (\d) is lost, 1 of 2 play\n", read_until(process, "is lost"))
    back = re.fullmatch(r"player (\d) is back, 2 of 2 play\n", read_until(process, "is back"))
    assert lost[1] == back[1]


@needs_ray
def test_a_trainer_that_dies_leaves_nothing_and_is_resumed_until_ctrl_c(trainer):
    process = trainer.process
    below = descendants(process.pid)
    (run,) = trainer.folder.iterdir()
    while not list(run.glob("checkpoints/latest-*.pt")):
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=90)
    # Ray's two agents try for a minute to report what happened, and go then.
    agents = {pid for pid, command in below.items() if "Agent" in command}
    assert len(agents) == 2
    assert wait_until_gone(set(below) - agents, 30) == []
    assert not ray_folder(below.values()).exists()
    assert shared_memory() <= trainer.shared_memory

    flags = "--resume", str(run), "--players", "1"
    process = start(trainer.folder, *flags, wait_for="run folder")
    resumed = frames_in(read_until(process, "resumed after"))
    assert resumed > 300
    before = points(trainer.folder)
    while points(trainer.folder) == before:
        assert process.poll() is None
        time.sleep(0.05)
    below = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    frames = frames_in(out.splitlines()[-1])
    assert out.splitlines()[-1].startswith("interrupted after")
    assert frames > resumed
    assert not re.search("raylet|ray::|gcs", out)
    assert wait_until_gone(set(below), 30) == []
    assert not ray_folder(below.values()).exists()
    assert shared_memory() <= trainer.shared_memory
    assert frames == read_events(trainer.folder).Scalars("outcome/frames")[0].value
    steps = points(trainer.folder)
    assert steps == sorted(set(steps))


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    """A cluster with a head, and two nodes with room for two players each; it leaves nothing."""
    before = shared_memory()
    with SimulatedCluster(2, 2) as simulated:
        os.environ |= simulated.environment
        yield simulated
    assert shared_memory() <= before


class Counting:
    """A player that counts its messages; what it sends says who it is, and the count."""

    def __init__(self, number: int) -> None:
        self.number, self.count = number, 0

    def play(self, weights: Weights) -> Transitions:
        self.count += 1
        one = np.full(1, self.count)
        frame = np.zeros((1, 2, 2), np.uint8)
        time.sleep(0.01)  # as if it played
        return Transitions(self.number, os.getpid(), frame, one, one, one, one, [[None]])


class Failing:
    def __init__(self, number: int) -> None:
        pass

    def play(self, weights: Weights) -> Transitions:
        raise RuntimeError("the emulator is on fire")


class Broken:
    def __init__(self, number: int) -> None:
        raise ValueError("there is no emulator")

    play = Failing.play


def test_the_guide_has_the_health_checks_of_the_simulated_cluster():
    guide = (ROOT / "docs" / "cluster.md").read_text()
    assert " ".join(f"{name}={value}" for name, value in HEALTH_CHECK.items()) in guide


@needs_ray
@pytest.mark.parametrize(("lose", "node"), [("kill", 0), ("silence", 1)])
def test_a_lost_node_takes_no_message_of_the_others(lose, node, cluster, capsys):
    counts: dict[tuple[int, int], list[int]] = {}  # by player and process
    with Players(by_value(Counting), 2, (), cluster.address, timeout=60) as players:
        players.broadcast(NET, SimpleNamespace(iteration=0, frames=0))
        gone = False
        for arrived in players:
            for new in arrived:
                counts.setdefault((new.player, new.version), []).append(int(new.actions[0]))
            if not gone and len(counts) == 2 and min(map(len, counts.values())) >= 10:
                getattr(cluster, lose)(node)
                gone = True
            if len(counts) == 3 and min(map(len, counts.values())) >= 10:
                break
    cluster.add(2)  # for the next test
    # Of each process every message arrived once, in order, up to its last.
    for numbers in counts.values():
        assert numbers == list(range(1, len(numbers) + 1))
    lost, back = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"player \d is lost, 1 of 2 play", lost)
    assert back == lost.replace("lost, 1", "back, 2")


@needs_ray
def test_strangers_stay_out(cluster, tmp_path):
    result = subprocess.run(
        [sys.executable, str(ROOT / f"{SCRIPT}.py"), "--address", cluster.address],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"RAY_AUTH_TOKEN": "g" * 64},
        timeout=180,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(f"{SCRIPT}: failed: Ray, {cluster.address}: ")
    assert result.stderr.count("\n") == 1
    assert "token" in result.stderr


@needs_ray
@pytest.mark.parametrize(
    ("player", "why"),
    [
        (Failing, "player 0 failed: RuntimeError: the emulator is on fire"),
        (Broken, "player 0 failed: ValueError: there is no emulator"),
    ],
)
def test_the_players_own_error_ends_the_run_in_one_line(player, why, cluster):
    with Players(by_value(player), 1, (), cluster.address, timeout=60) as players:
        players.broadcast(NET, SimpleNamespace(iteration=0, frames=0))
        with pytest.raises(Failure, match=f"^{why}$"):
            list(players)


def by_value(player: type) -> type:
    """The class for actors, which cannot import this module."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[player.__module__])
    return player


@needs_ray
def test_the_intake_of_many_simulated_players_is_what_was_recorded(monkeypatch):
    from benchmarks.cluster import intake

    monkeypatch.setattr(intake, "WARM_UP_SECONDS", 0.0)
    _, messages = play(messages=4, steps=20)
    buffer = MessageReplayBuffer(2_000, (STACK, *SIZE))
    taken = intake.take_in(50, messages, NET, buffer, seconds=0.2)
    assert taken.players == 50
    assert taken.messages_per_second > 0
    assert taken.frames_per_second == pytest.approx(60 * taken.messages_per_second)
    assert drawn(buffer, 500) <= {t for message in messages for t in cut_out(message)}


class CatchEnvs:
    """Several games of Catch, as ``StackedVectorEnv`` would play them."""

    n_actions = 3

    def __init__(self, count: int, stack: int, seed: int) -> None:
        self.envs, self.stack = [Catch() for _ in range(count)], stack
        frames = [env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)]
        self.states = np.stack(frames).repeat(stack, axis=1)

    def send(self, actions: np.ndarray) -> None:
        self.actions = actions

    def recv(self) -> VectorStep:
        steps = [env.step(a) for env, a in zip(self.envs, self.actions, strict=True)]
        frames, rewards, ended, _, _ = map(np.array, zip(*steps, strict=True))
        self.states = np.concatenate([self.states[:, 1:], frames], axis=1)
        for i in np.flatnonzero(ended):
            self.states[i] = self.envs[i].reset()[0]
        episodes = [
            Episode(float(reward), 8) if end else None
            for reward, end in zip(rewards, ended, strict=True)
        ]
        return VectorStep(rewards.astype(np.float32), ended, ended, frames, episodes)


@needs_ray
def test_the_rung_learns_a_game_with_a_known_optimum(cluster, tmp_path):
    rung = runpy.run_path(str(ROOT / f"{SCRIPT}.py"), run_name="many_machines")
    by_value(Catch)
    by_value(CatchEnvs)

    class Options(rung["Options"]):
        def make_envs(self, count: int, seed: int) -> Any:
            return CatchEnvs(count, self.stack, seed)

    evaluated: list[torch.Tensor] = []

    def evaluate(q_function: Any, _: Run) -> None:  # the rung's plays Pong
        evaluated.append(q_function(torch.from_numpy(CatchEnvs(1, 2, 0).states)))

    rung["train"].__globals__["evaluate"] = evaluate
    options = Options(
        address=cluster.address,
        players=2,
        envs=4,
        message_steps=10,
        epsilon_frames=3_000,
        replay_size=5_000,
        replay_initial=500,
        batch_size=64,
        frames_per_update=4,
        sync_updates=20,
        target_sync=50,
        learning_rate=5e-4,
        gamma=0.9,
        stop_reward=0.9,
        max_frames=40_000,
        checkpoint_every=0,
    )
    prepare_torch(0)
    logger = TensorboardLogger(log_dir=str(tmp_path))
    state = rung["train"](options, Run(options, torch.device("cpu"), tmp_path, logger, SCRIPT))
    assert state.solved, f"avg_reward {state.avg_reward} after {state.frames} frames"
    assert 0 <= state.weights_age < 200
    (values,) = evaluated
    assert not values.requires_grad  # nobody needs gradients there


def test_updates_follow_their_message_and_none_is_counted_after_the_frame_limit(tmp_path):
    _, messages = play(messages=5, steps=20)  # of 60 frames each

    @dataclass(frozen=True)
    class Options(ClusterOptions):
        frames_per_update: int = 20

    options = Options(replay_initial=70, batch_size=4, max_frames=240, checkpoint_every=0)
    seen: list[int] = []  # frames counted at each update
    engine = Engine(lambda engine, _: seen.append(engine.state.frames) or torch.zeros(()))
    with TensorboardLogger(log_dir=str(tmp_path)) as logger:
        run = Run(options, torch.device("cpu"), tmp_path, logger, SCRIPT)
        attach_handlers(engine, run, LinearSchedule(1.0, 0.0, 1_000), {})
        buffer = MessageReplayBuffer(2_000, (STACK, *SIZE))
        bunches = [messages[:1], [], messages[1:]]
        engine.run(learn_from(bunches, buffer, np.zeros((8, 3)), engine, run))
    assert seen == [120] * 3 + [180] * 3
    assert engine.state.frames == 240


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:9", "127.0.0.1:port", "6379"])
def test_a_cluster_that_is_not_there_is_said_at_once_in_one_line(address):
    with (
        pytest.raises(Failure, match=f"^Ray, {address}: .+$"),
        Players(Counting, 1, (), address, 9),
    ):
        pass


def test_every_player_has_games_that_explore_much_and_little():
    epsilons = ape_x_epsilons(2, 4, 0.02)
    assert epsilons.shape == (2, 4)
    expected = [0.4 ** (1 + 7 * i / 7) for i in range(8)]  # Ape-X's, of eight
    assert sorted(epsilons.flatten(), reverse=True) == pytest.approx(expected)
    assert (epsilons.max(axis=1) > 0.1).all()
    assert (epsilons.min(axis=1) < 0.002).all()
    assert ape_x_epsilons(1, 1, 0.02).item() == 0.02


def test_the_rung_explains_itself_and_refuses_bad_values(tmp_path, capsys):
    source = (ROOT / f"{SCRIPT}.py").read_text()
    assert "The book ends before" in source.split('"""')[1]
    assert len(source.splitlines()) <= 110
    options = runpy.run_path(str(ROOT / f"{SCRIPT}.py"), run_name=SCRIPT)["Options"]
    for flags, code in [
        (["--help"], 0),
        (["--players", "0"], 2),
        (["--message-steps", "1"], 2),
        (["--n-steps", "9"], 2),
        (["--envs", "1000"], 2),
    ]:
        with pytest.raises(SystemExit) as end:
            parse(options, SCRIPT, [*flags, "--run-dir", str(tmp_path)])
        out, err = capsys.readouterr()
        assert end.value.code == code
        assert len(err.splitlines()) == (code == 2)
        assert ("--address" in out) == (code == 0)


def test_without_ray_it_says_what_to_install(tmp_path):
    (tmp_path / "ray.py").write_text("raise ImportError")
    command = [sys.executable, str(ROOT / f"{SCRIPT}.py"), "--run-dir", str(tmp_path / "runs")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert result.returncode == 1
    assert result.stderr == (
        f"{SCRIPT}: failed: Ray is not installed: pip install -r requirements-cluster.txt\n"
    )
