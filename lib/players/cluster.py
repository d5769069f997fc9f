"""Players as actors of Ray, on this machine or on many.

Ray places the players, restarts dead ones where there is room, and moves messages and weights
between machines. This module does the rest: it starts Ray so that nobody else gets in, gives every
player the newest weights, and continues with the other players while one is lost.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import monotonic
from typing import Any, Self

import numpy as np
from ignite.engine import Engine, Events, State
from torch import nn

import lib
from lib.learning.replay_buffer import Batch
from lib.players.message_buffer import MessageReplayBuffer
from lib.players.n_step import Transitions
from lib.players.worker import Weights
from lib.running.events import announce
from lib.running.run import Failure, Run

AHEAD = 2  # pending calls per player: it plays the next one while the last is on its way
LOG_EVERY = 100  # updates
ANSWER_SECONDS = 5.0  # for a cluster to answer
START_SECONDS = 120.0  # for the first frames, if the time limit is shorter
WAIT_SECONDS = 1.0  # between checks whether the learner was asked to stop
# The path of a socket may have 103 bytes on macOS, and 107 on Linux. Of these, Ray needs up to 79:
# /ray-12345678/r/session_2026-11-22_10-00-00_123456_1234567/sockets/plasma_store
LONGEST_PARENT = 103 - 79
# Waits for the end of its input. After a sudden end, Ray's processes still write for a while.
REMOVE = """
import os, shutil, sys, time
folder = sys.argv[1]
sys.stdin.read()
deadline = time.monotonic() + 60
while os.path.exists(folder) and time.monotonic() < deadline:
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(0.05)
"""


@contextmanager
def connected(address: str, players: int) -> Iterator[None]:
    """Connect to Ray while the ``with`` lasts: to a running cluster, or to one on this machine.

    A cluster on this machine listens on 127.0.0.1, asks for a token that nobody else has, and ends
    with this process, however that ends.

    Args:
        address: host:port of the cluster to join; "" starts one here.
        players: number that can run at once, if Ray is started here.

    Raises:
        Failure: if Ray is not installed, or there is no such cluster.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Calls to a lost player fail after 0.4 seconds instead of two. Then it is asked again.
    os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "200")
    os.environ.setdefault("RAY_core_worker_internal_heartbeat_ms", "200")
    if address:
        # Whoever is refused fails after 5 attempts of a second or more, not after 20.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "5")
    else:
        # Ray listens on all addresses where it can have nodes elsewhere. Switching that off is
        # what it does itself on the systems that this variable is named after.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
        from ray._private import worker
    except ImportError:
        wanted = "pip install -r requirements-cluster.txt"
        raise Failure(f"Ray is not installed: {wanted}") from None

    # Ray writes every event of the cluster to the driver's output, pages of it, and has no switch
    # for that. Important events also arrive as exceptions, see ``Players``.
    worker.print_to_stdstream = lambda *_, **__: None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    on_sigterm = signal.getsignal(signal.SIGTERM)
    with nullcontext("") if address else _folder() as folder:
        try:
            if address:
                _expect_answer(address)
                # Nodes need no copy of this repository, only its requirements.
                root = Path(lib.__file__).parent.parent
                code = {"py_modules": [str(root / name) for name in ("lib", "emulator")]}
                code["excludes"] = ["__pycache__"]  # what was compiled is only good here
                with _silent_stderr():
                    ray.init(address, runtime_env=code, **quiet)
            else:
                here = {"_node_ip_address": "127.0.0.1", "_temp_dir": folder}
                ray.init("local", num_cpus=players, include_dashboard=False, **here, **quiet)
        except ConnectionError as error:
            hint = "is it a Ray cluster, with the same RAY_AUTH_MODE and token?"
            raise Failure(f"Ray, {address}: {error}; {hint}") from None
        except (OSError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise Failure(f"Ray, {address or 'on this machine'}: {reason}") from None
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray replaces ours
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _folder() -> Iterator[str]:
    """A folder for Ray that only this user can reach; it is removed however this process ends.

    Ray opens its folder to everybody, so it gets one inside of ours. If Ray's raylet dies, Ray ends
    this process at once, and no more Python code runs. So another process removes the folder.
    """
    parent = tempfile.gettempdir()
    if os.name == "posix" and len(os.fsencode(parent)) > LONGEST_PARENT:
        parent = "/tmp"
    folder = tempfile.mkdtemp(prefix="ray-", dir=parent)
    remover = [sys.executable, "-I", "-c", REMOVE, folder]
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # In a session of its own: a Ctrl-C reaches only us.
    with subprocess.Popen(remover, stdin=subprocess.PIPE, start_new_session=True, **silent):
        yield os.path.join(folder, "r")


def _expect_answer(address: str) -> None:
    """Raise OSError if nobody listens there, or ValueError; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("that is not host:port")
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise OSError(f"nobody answers there: {error.strerror or error}") from None


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Drop what Ray's C++ code writes for every failed attempt; exceptions say it again."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Players:
    """The players, and their transitions.

    Iterating yields lists of transitions that have arrived. After a second without any it yields an
    empty list, so that the caller can stop. If a player dies, one line says so, Ray restarts it
    where there is room, and the others continue.

    Args:
        player: a class. Each actor creates one object from its number and ``args``; the method
            ``play`` takes ``Weights`` and returns ``Transitions``.
        count: number of players.
        args: passed to ``player``.
        address: as for ``connected``.
        timeout: fail after this many seconds without anything from any player.
    """

    def __init__(
        self, player: type, count: int, args: tuple[Any, ...], address: str, timeout: float
    ) -> None:
        self._player, self._count, self._args = player, count, args
        self._connection = connected(address, count)
        self._timeout = timeout
        self._calls: dict[Any, int] = {}  # -> player
        self.lost: set[int] = set()  # players that are lost now
        self._weights: Any = None

    def __enter__(self) -> Self:
        self._connection.__enter__()
        import ray

        self._ray = ray
        # Ray restarts players, but does not repeat their calls: nobody waits for lost transitions.
        actor = ray.remote(self._player).options(
            num_cpus=1, max_restarts=-1, scheduling_strategy="SPREAD"
        )
        self._actors = [actor.remote(number, *self._args) for number in range(self._count)]
        return self

    def __exit__(self, *error: Any) -> None:
        self._connection.__exit__(*error)

    def broadcast(self, net: nn.Module, state: State) -> None:
        """Give these weights to the next calls: one object of Ray's, fetched once per node."""
        arrays = {name: w.detach().cpu().numpy() for name, w in net.state_dict().items()}
        self._weights = self._ray.put(Weights(state.iteration, state.frames, arrays))

    def __iter__(self) -> Iterator[list[Transitions]]:
        for _ in range(AHEAD):
            for number in range(self._count):
                self._ask(number)
        deadline = monotonic() + max(self._timeout, START_SECONDS)
        while True:
            ready, _ = self._ray.wait(list(self._calls), timeout=WAIT_SECONDS)
            if ready:  # take everything that has arrived
                everything = list(self._calls)
                ready, _ = self._ray.wait(everything, num_returns=len(everything), timeout=0)
            taken = [self._take(call) for call in ready]
            arrived = [transitions for transitions in taken if transitions]
            if arrived:
                deadline = monotonic() + self._timeout
            elif monotonic() > deadline:
                raise Failure(f"no player sent anything for {self._timeout:g} seconds")
            yield arrived

    def _ask(self, number: int) -> None:
        self._calls[self._actors[number].play.remote(self._weights)] = number

    def _take(self, call: Any) -> Transitions | None:
        """Take the result of a call, and make the player's next one; None if the player is lost."""
        number = self._calls.pop(call)
        self._ask(number)
        try:
            transitions: Transitions = self._ray.get(call)
        except (self._ray.exceptions.RayTaskError, self._ray.exceptions.ActorDiedError) as error:
            cause = str(error).strip().split("\n")[-1]  # its own error, which would come again
            raise Failure(f"player {number} failed: {cause}") from None
        except self._ray.exceptions.RayError:  # its process, its node, or the network in between
            if number not in self.lost:
                self.lost.add(number)
                print(f"player {number} is lost, {self._playing()}", flush=True)
            return None
        if number in self.lost:
            self.lost.remove(number)
            print(f"player {number} is back, {self._playing()}", flush=True)
        return transitions

    def _playing(self) -> str:
        return f"{self._count - len(self.lost)} of {self._count} play"


def learn_from(
    players: Players, buffer: MessageReplayBuffer, epsilons: np.ndarray, engine: Engine, run: Run
) -> Iterator[Batch]:
    """The engine's batches: store what players send, and sample in proportion to it.

    A message's updates follow it before the next message is counted.

    Args:
        players: send transitions.
        buffer: stores them.
        epsilons: float, (players, games of each). avg_reward counts only games with at most
            ``epsilon_final``, the final epsilon of other rungs.
        engine: is told of frames and episodes as they arrive.
        run: has the settings, among them ``frames_per_update`` and ``batch_size``. Its curves show
            the age of the weights that played the newest transitions.
    """
    options, state = run.options, engine.state
    state.weights_age = 0  # in updates
    known = epsilons <= max(options.epsilon_final, epsilons.min())
    run.tensorboard.attach_output_handler(
        engine,
        Events.ITERATION_COMPLETED(every=LOG_EVERY),
        tag="players",
        output_transform=lambda _: {"weights_age": state.weights_age},
    )

    def batches() -> Iterator[Batch]:
        due = 0.0
        for arrived in players:
            for new in arrived:
                buffer.extend(new)
                episodes = [
                    episode
                    for step in new.episodes
                    for episode, counts in zip(step, known[new.player], strict=True)
                    if counts
                ]
                state.weights_age = state.iteration - new.version
                announce(engine, new.played, episodes)
                if engine.should_terminate:
                    return
                if buffer.added >= options.replay_initial:  # not len, which may fall again
                    due += new.played / options.frames_per_update
                while due >= 1:
                    due -= 1
                    yield buffer.sample(options.batch_size)
            if engine.should_terminate:  # also if nothing arrives
                return

    return batches()
