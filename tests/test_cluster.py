"""n-step messages against transitions computed one by one, and players on real Ray clusters."""

import importlib
import os
import re
import runpy
import signal
import sys
from importlib.util import find_spec
from itertools import accumulate, chain, count, product
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

from lib.learning.schedules import LinearSchedule
from lib.parallel.cluster import Players, learn_from
from lib.parallel.message_buffer import MessageReplayBuffer
from lib.parallel.n_step import Message
from lib.parallel.worker import ClusterOptions, VersionedWeights, ape_x_epsilons, player_seed
from lib.training.handlers import attach_handlers
from lib.training.machine import prepare_torch
from lib.training.play import PlayEvents
from lib.training.run import Failure, Run

import numpy as np
import psutil
import pytest
import torch
from conftest import ROOT, one_line, options_of, read_events, run_rung
from helpers import GAMMA, N_STEPS, QUICK, SIZE, STACK, Catch, Games, play_messages, small, start
from ignite.engine import Engine
from ignite.handlers import TensorboardLogger

SETTINGS = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ |= SETTINGS  # before Ray is imported, see lib.parallel.cluster
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install -r requirements-cluster.txt"
)
SCRIPT = "09_many_machines"


def tuples(*columns) -> list[tuple]:
    return [
        (state.tobytes(), int(action), float(reward), bool(end), None if end else after.tobytes())
        for state, action, reward, end, after in zip(*map(np.asarray, columns), strict=True)
    ]


def cut_out(message: Message) -> list[tuple]:
    states, following = np.split(message.frames[message.windows], [STACK], axis=1)
    return tuples(states, message.actions, message.rewards, message.terminated, following)


@pytest.mark.parametrize(("messages", "steps"), [(1, 60), (12, 4), (12, 5), (4, 13)])
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
    told = [(message.player, message.version, message.played) for message in sent]
    assert told == [(7, version, 3 * steps) for version in range(messages)]
    repeated = [min(number * steps, STACK - 1 + N_STEPS) for number in range(messages)]
    assert [len(message.frames) for message in sent] == [3 * (steps + more) for more in repeated]
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
    got = cut_out(first) + cut_out(second)
    assert len(got) > 4 * 50 - 30
    assert set(got) <= set(games.transitions())
    assert (second.player, second.version, second.played) == (1, 7, 4 * 30)
    shares = np.mean([actions == 3 for _, actions, *_ in games.history[-30:]], axis=0)
    assert np.allclose(shares, 1 - 5 / 6 * epsilons, atol=0.25)
    assert np.allclose(player.agent.epsilon(100), epsilons)


@needs_ray
def test_nobody_gets_in_a_dead_player_is_replaced_and_ctrl_c_leaves_a_run_to_resume(
    tmp_path, monkeypatch
):
    for name in SETTINGS:
        monkeypatch.delenv(name)  # the rung sets them
    process = start(SCRIPT, tmp_path, *QUICK, "--envs", "2", "--players", "2")
    all_of_them = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
    place = re.search("/tmp/ray-[^/]+", " ".join(chain(*(one.cmdline() for one in all_of_them))))[0]
    connections = [c for one in all_of_them for c in one.net_connections()]
    addresses = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert set() < addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

    # A closed terminal, `timeout` and Slurm signal all of them; Ray is needed until the last
    # checkpoint.
    servers = [one for one in all_of_them if one.name() in ("gcs_server", "raylet")]
    assert len(servers) == 2
    for server in servers:
        status = Path(f"/proc/{server.pid}/status").read_text()
        blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
            assert blocked >> number - 1 & 1
        told = server.environ()
        assert {**SETTINGS, "RAY_AUTH_MODE": "token"}.items() <= told.items()
        assert len(told["RAY_AUTH_TOKEN"]) == 64
    assert Path(place).stat().st_mode & 0o77 == 0, "others may not look into it"

    playing = re.compile(r"ray::Player(\.play)?\s*")  # one that is not ready has nothing to lose
    next(one for one in all_of_them if playing.fullmatch(" ".join(one.cmdline()))).kill()
    lost, back = (next(line for line in process.stdout if w in line) for w in ("lost", "back"))
    assert re.fullmatch(r"player \d is lost, 1 of 2 play\n", lost)
    assert back == lost.replace("lost, 1", "back, 2")

    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert not Path(place).exists()
    assert psutil.wait_procs(all_of_them[1:], timeout=30)[1] == []
    (run,) = tmp_path.iterdir()
    frames = int(read_events(run).Scalars("outcome/frames")[0].value)
    assert f"{frames:,} frames and" in out.split("interrupted in")[1]
    limit = ("--max-frames", str(frames + 500), "--players", "1")
    result = run_rung(SCRIPT, tmp_path, "--resume", str(run), *limit)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"resumed after {frames:,} frames" in result.stdout
    steps = [point.step for point in read_events(*tmp_path.iterdir()).Scalars("train/frames")]
    assert steps == sorted(set(steps))


@pytest.fixture(scope="module")
def cluster():
    """A cluster: a head without players, and two nodes with room for two each."""
    from ray.cluster_utils import Cluster

    where = {"node_ip_address": "127.0.0.1"}
    simulated = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, **where})
    for _ in range(2):
        simulated.add_node(num_cpus=2, **where)
    yield simulated
    simulated.shutdown()


def joined(player: type, count: int, cluster: Any, **settings: float) -> Players:
    """Players on it; actors cannot import this module, so they get its classes by value."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[player.__module__])
    return Players(player, ClusterOptions(players=count, address=cluster.address, **settings))


class Counting:
    """A player that counts its messages; what it sends says who it is, and the count."""

    def __init__(self, number: int) -> None:
        self.number, self.count = number, 0

    def play(self, weights: VersionedWeights) -> Message:
        self.count += 1
        one = np.full(1, self.count)
        return Message(self.number, os.getpid(), np.zeros((1, 2, 2), np.uint8), *[one] * 4, [])


class Failing(Counting):
    def play(self, weights: VersionedWeights) -> Message:
        raise RuntimeError("the emulator is on fire")


class Silent(Counting):
    def play(self, weights: VersionedWeights) -> Message:
        if self.count:
            Event().wait()
        return super().play(weights)


@needs_ray
def test_a_lost_machine_takes_no_message_of_the_others(cluster, capsys):
    counts: dict[tuple[int, int], list[int]] = {}  # by player and process
    lost, handler = next(iter(cluster.worker_nodes)), signal.getsignal(signal.SIGTERM)
    with joined(Counting, 2, cluster) as players:
        assert signal.getsignal(signal.SIGTERM) == handler
        for arrived in players:
            for new in arrived:
                counts.setdefault((new.player, new.version), []).append(int(new.actions[0]))
            if lost and len(counts) == 2 and min(map(len, counts.values())) >= 10:
                cluster.remove_node(lost, allow_graceful=False)
                lost = None
            if len(counts) == 3 and min(map(len, counts.values())) >= 10:
                break
    # Of each process every message arrived once, up to its last, whatever the order.
    assert all(sorted(each) == [*range(1, len(each) + 1)] for each in counts.values())
    out = capsys.readouterr().out
    assert re.search(r"(player \d is) lost, 1 of 2 play\n(.*\n)*\1 back, 2 of 2 play\n", out)


@needs_ray
def test_the_players_own_error_ends_the_run_in_one_line(cluster):
    saved, why = [], "^player 0 failed: RuntimeError: the emulator is on fire$"
    with pytest.raises(Failure, match=why), joined(Failing, 1, cluster) as players:
        saved.extend([*chain(*players), "a checkpoint"])
    assert saved == ["a checkpoint"]


@needs_ray
def test_players_may_start_slowly_but_then_have_a_time_limit(cluster, monkeypatch):
    steps, arrived = [0, 100, 0], []  # of the clock: the first wait for a message takes long
    clock = accumulate(steps.pop(0) if steps[1:] else steps[0] for _ in count())
    monkeypatch.setattr("lib.parallel.cluster.monotonic", lambda: next(clock))

    def learn() -> None:
        with joined(Silent, 1, cluster, player_timeout=70) as players:
            for new in players:
                arrived.append(len(new))
                if new:  # learning takes longer than the limit, and each wait 30 seconds
                    steps[:] = [1_000, 30, 0, 30, 0, 30, 0]

    with pytest.raises(Failure, match="sent anything for 70 seconds"):
        learn()
    assert arrived[-3:] == [1, 0, 0]


@needs_ray
def test_a_cluster_that_is_not_there_is_said_at_once_in_one_line():
    options = ClusterOptions(address="127.0.0.1:9")
    with pytest.raises(Failure, match=r"^Ray, 127.0.0.1:9: .+$"), Players(Counting, options):
        pass


@needs_ray
def test_the_rung_learns_a_game_with_a_known_optimum(cluster, tmp_path):
    import ray

    rung = runpy.run_path(str(ROOT / f"{SCRIPT}.py"), run_name="many_machines")
    ray.cloudpickle.register_pickle_by_value(sys.modules[Catch.__module__])

    class Options(rung["Options"]):
        def make_envs(self, count: int, seed: int) -> Any:
            return Catch(count, self.preprocessing, seed)

    rung["train"].__globals__["evaluate"] = lambda *_: None  # the rung's plays Pong
    settings = {"address": cluster.address, "players": 2, "envs": 4, "message_steps": 10}
    settings |= {"epsilon_frames": 3_000, "replay_size": 5_000, "replay_initial": 500}
    settings |= {"batch_size": 64, "frames_per_update": 4, "sync_updates": 20, "target_sync": 50}
    settings |= {"learning_rate": 5e-4, "gamma": 0.9, "stop_reward": 0.9, "max_frames": 40_000}
    options = Options(**settings, checkpoint_every=0)
    prepare_torch(0)
    with TensorboardLogger(tmp_path) as logger:
        run = Run(options, torch.device("cpu"), tmp_path, logger, SCRIPT)
        rung["train"](options, run)
    assert run.solved, run.outcome
    ages = [age.value for age in read_events(tmp_path).Scalars("players/weights_age")]
    assert 0 <= min(ages) <= max(ages) < 200


@pytest.mark.parametrize(
    ("explores", "counted"), [([0.4, 0.02, 0.01], {1.0, 2.0}), ([0.4, 0.03, 0.05], {1.0})]
)
def test_updates_follow_their_message_and_none_is_counted_after_the_frame_limit(
    explores, counted, tmp_path
):
    _, messages = play_messages(messages=5, steps=20)  # of 60 frames each
    settings = {"frames_per_update": 40, "replay_initial": 70, "batch_size": 4, "max_frames": 240}
    options = options_of(SCRIPT)(**settings, checkpoint_every=0)
    seen, rewards = [], set()  # frames counted at each update; the number of each game that ended
    engine = Engine(lambda engine, _: seen.append(engine.state.frames) or torch.zeros(()))
    with TensorboardLogger(tmp_path) as logger:
        run = Run(options, torch.device("cpu"), tmp_path, logger, SCRIPT)
        attach_handlers(engine, run, LinearSchedule(1.0, 0.0, 1_000), {"net": small()})
        completed = PlayEvents.EPISODE_COMPLETED
        engine.add_event_handler(completed, lambda: rewards.add(engine.state.episode.reward))
        # Messages are dropped whole, so this one holds less than it was asked to wait for.
        buffer = MessageReplayBuffer(70, (STACK, *SIZE))
        bunches = [messages[:1], [], messages[1:]]
        epsilons = np.tile(explores, (8, 1))
        engine.run(learn_from(bunches, buffer, epsilons, engine, run))
        run.signal = signal.SIGTERM
        assert [*learn_from(bunches[1:], buffer, epsilons, engine, run)] == []
    assert seen == [120] + [180] * 2  # half an update is due, then two
    assert engine.state.weights_age == 3 - messages[3].version
    assert engine.state.frames == 240
    assert rewards == counted  # games that explore as little as other rungs, or the least


def test_games_explore_as_in_ape_x():
    epsilons = ape_x_epsilons(2, 4, 0.02)
    expected = [0.4 ** (1 + 7 * i / 7) for i in range(8)]
    assert sorted(epsilons.flatten(), reverse=True) == pytest.approx(expected)
    assert (epsilons.max(axis=1) > 0.1).all()  # of each player
    assert ape_x_epsilons(1, 1, 0.02).tolist() == [[0.02]]


def test_no_player_plays_what_another_one_played(monkeypatch):
    """Neither that of another run or number, nor that of a part before, nor that it replaces."""
    context = Mock(was_current_actor_reconstructed=False)
    monkeypatch.setitem(sys.modules, "ray", Mock(get_runtime_context=lambda: context))
    numbers = [*product((0, 1), (0, 1), (0, 1_000))]
    seeds, again = ([player_seed(*number) for number in numbers] for _ in range(2))
    assert seeds == again
    context.was_current_actor_reconstructed = True
    replaced = [player_seed(*number) for number in numbers * 2]
    assert len({*seeds, *replaced}) == 3 * 8


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch, program):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = program(SCRIPT, "--run-dir", tmp_path / "runs")
    assert result.code == 2
    assert "pip install -r requirements-cluster.txt" in one_line(result.error)
    assert not list(tmp_path.iterdir())
