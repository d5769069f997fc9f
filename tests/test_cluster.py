"""Players on Ray: real clusters, on the loopback address alone."""

import importlib.util
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, read_events
from ignite.handlers import TensorboardLogger
from test_learning import Catch
from test_n_step import SIZE, STACK, cut_out, drawn, play

from benchmarks.cluster.simulated import HEALTH_CHECK, SimulatedCluster
from lib.actors import Weights, ape_x_epsilons
from lib.arguments import parse
from lib.bulk_replay import BulkReplayBuffer
from lib.cluster import Players
from lib.experience import Episode
from lib.n_step import Transitions
from lib.run import Failure, Run, prepare_torch
from lib.vector_env import VectorStep

# Before Ray is imported, see lib.cluster.
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


@needs_ray
def test_one_machine_lets_nobody_in_replaces_a_player_and_leaves_nothing(tmp_path):
    before = shared_memory()
    process = start(tmp_path, "--players", "2", "--frames-per-update", "32")
    below = descendants(process.pid)
    assert sum("raylet/raylet" in command for command in below.values()) == 1
    addresses = listening({process.pid, *below})
    assert addresses
    assert addresses <= LOOPBACK

    actors: list[int] = []
    while len(actors) < 2:  # training may begin with the first one's frames
        assert process.poll() is None
        time.sleep(0.05)
        below |= descendants(process.pid)
        actors = [pid for pid, command in below.items() if "ray::Player" in command]
    os.kill(actors[0], signal.SIGKILL)
    lost = re.fullmatch(r"player (\d) is lost, 1 of 2 play\n", read_until(process, "is lost"))
    back = re.fullmatch(r"player (\d) is back, 2 of 2 play\n", read_until(process, "is back"))
    assert lost[1] == back[1]

    below |= descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert out.splitlines()[-1].startswith("interrupted after")
    assert not re.search("raylet|ray::|gcs", out)
    assert wait_until_gone(set(below), 30) == []
    assert shared_memory() <= before


@needs_ray
def test_a_trainer_that_dies_leaves_nothing_and_is_resumed(tmp_path):
    before = shared_memory()
    process = start(tmp_path, "--checkpoint-every", "20", "--max-frames", "4000")
    below = descendants(process.pid)
    (run,) = tmp_path.iterdir()
    while not list(run.glob("checkpoints/latest-*.pt")):
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=30)
    # Ray's two agents try for a minute to report what happened, and go then.
    agents = {pid for pid, command in below.items() if "Agent" in command}
    assert len(agents) == 2
    assert wait_until_gone(set(below) - agents, 30) == []
    assert shared_memory() <= before

    command = [sys.executable, str(ROOT / f"{SCRIPT}.py"), "--resume", str(run)]
    command += ["--max-frames", "2500", "--players", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    frames = int(re.search(r"resumed after ([\d,]+) frames", result.stdout)[1].replace(",", ""))
    assert frames > 300
    outcome = read_events(tmp_path).Scalars("outcome/frames")[0].value
    assert 2500 <= outcome < 2500 + 300
    points = [point.step for point in read_events(tmp_path).Scalars("train/frames")]
    assert points == sorted(set(points))


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
    guide = (ROOT / "README.md").read_text()
    assert " ".join(f"{name}={value}" for name, value in HEALTH_CHECK.items()) in guide


@needs_ray
@pytest.mark.parametrize("lose", ["kill", "silence"])
def test_a_lost_node_takes_no_message_of_the_others_and_strangers_stay_out(lose, tmp_path, capsys):
    before = shared_memory()
    with SimulatedCluster(2, 2) as cluster:
        intruder = subprocess.Popen(
            [sys.executable, str(ROOT / f"{SCRIPT}.py"), "--address", cluster.address],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
            env=os.environ | cluster.environment | {"RAY_AUTH_TOKEN": "g" * 64},
        )
        os.environ |= cluster.environment
        counts: dict[tuple[int, int], list[int]] = {}  # by player and process
        with Players(by_value(Counting), 2, (), cluster.address, timeout=60) as players:
            players.broadcast(NET, SimpleNamespace(iteration=0, frames=0))
            gone = False
            for arrived in players:
                for new in arrived:
                    counts.setdefault((new.player, new.version), []).append(int(new.actions[0]))
                if not gone and len(counts) == 2 and min(map(len, counts.values())) >= 10:
                    getattr(cluster, lose)(0)
                    gone = True
                if len(counts) == 3 and min(map(len, counts.values())) >= 10:
                    break
        _, refused = intruder.communicate(timeout=180)
    assert intruder.returncode == 1
    assert refused.startswith(f"{SCRIPT}: failed: Ray, {cluster.address}: ")
    assert refused.count("\n") == 1
    assert "token" in refused
    # Of each process every message arrived once, in order, up to its last.
    for numbers in counts.values():
        assert numbers == list(range(1, len(numbers) + 1))
    lost, back = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"player \d is lost, 1 of 2 play", lost)
    assert back == lost.replace("lost, 1", "back, 2")
    assert shared_memory() <= before


@needs_ray
@pytest.mark.parametrize(
    ("player", "why"),
    [
        (Failing, "player 0 failed: RuntimeError: the emulator is on fire"),
        (Broken, "player 0 failed: ValueError: there is no emulator"),
    ],
)
def test_the_players_own_error_ends_the_run_in_one_line(player, why):
    with Players(by_value(player), 1, (), "", timeout=60) as players:
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
    buffer = BulkReplayBuffer(2_000, (STACK, *SIZE))
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
def test_the_rung_learns_a_game_with_a_known_optimum(tmp_path):
    rung = runpy.run_path(str(ROOT / f"{SCRIPT}.py"), run_name="many_machines")
    by_value(Catch)
    by_value(CatchEnvs)

    class Options(rung["Options"]):
        def make_envs(self, count: int, seed: int) -> Any:
            return CatchEnvs(count, self.stack, seed)

    rung["train"].__globals__["evaluate"] = lambda *_: None  # that plays Pong
    hp = Options(
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
    state = rung["train"](hp, Run(hp, torch.device("cpu"), tmp_path, logger, SCRIPT))
    assert state.solved, f"avg_reward {state.avg_reward} after {state.frames} frames"
    assert 0 <= state.weights_age < 200


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
