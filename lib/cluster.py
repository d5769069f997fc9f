"""Players as actors of Ray, on this machine or on many, and what happens when some are lost.

Ray places them, restarts those that died where there is room, and moves messages and weights
between machines. What is left: to start it so that nobody else gets in, to keep every player
supplied with the newest weights, and to go on with the others while one is gone.
"""

import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Self

import numpy as np
from ignite.engine import Engine, Events, State
from torch import nn

import lib
from lib.actors import Weights
from lib.bulk_replay import BulkReplayBuffer
from lib.events import announce
from lib.n_step import Transitions
from lib.replay_buffer import Batch
from lib.run import Failure, Run

AHEAD = 2  # calls of each player under way: it plays the next one while the last is on its way
LOG_EVERY = 100  # updates
ANSWER_SECONDS = 5.0  # for a cluster that is to be joined
START_SECONDS = 120.0  # for the first frames, where the limit is shorter
WAIT_SECONDS = 1.0  # between looks at whether the learner was asked to stop


@contextmanager
def connected(address: str, players: int) -> Iterator[None]:
    """Ray, while the ``with`` lasts: a cluster that runs, or one of this machine alone.

    A cluster of this machine listens on 127.0.0.1, wants a token that nobody else has, and ends
    with this process, however that ends.

    Args:
        address: host:port of the cluster to join; "" starts one here.
        players: that will run at once, if it is started here.

    Raises:
        Failure: Ray is not installed, or there is no such cluster.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Calls of a player that is gone fail after one second instead of two, and it is asked again.
    os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "200")
    if not address:
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

    # Whatever happens in the cluster Ray writes to the driver's output, pages of it, and it has no
    # switch for that. What matters of it arrives as exceptions, see ``Players``.
    worker.print_to_stdstream = lambda *_, **__: None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    on_sigterm = signal.getsignal(signal.SIGTERM)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        try:
            if address:
                _expect_answer(address)
                # Nodes need no copy of this repository, just what it requires.
                root = Path(lib.__file__).parent.parent
                code = {"py_modules": [str(root / name) for name in ("lib", "emulator")]}
                with _silent_stderr():
                    ray.init(address, runtime_env=code, **quiet)
            else:
                here = {"_node_ip_address": "127.0.0.1", "_temp_dir": folder}
                ray.init("local", num_cpus=players, include_dashboard=False, **here, **quiet)
        except ConnectionError as error:
            hint = "is it a cluster of Ray, and RAY_AUTH_MODE and the token the same as there?"
            raise Failure(f"Ray, {address}: {error}; {hint}") from None
        except (OSError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise Failure(f"Ray, {address or 'on this machine'}: {reason}") from None
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray puts its own in place
        try:
            yield
        finally:
            ray.shutdown()


def _expect_answer(address: str) -> None:
    """Raise OSError if nobody listens there, or ValueError: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("that is not host:port")
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise OSError(f"nobody answers there: {error.strerror or error}") from None


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Drop what Ray's C++ side writes for every attempt to get in; exceptions say it again."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Players:
    """The players, and what they play.

    Iterating yields lists of what arrived; an empty list after a second without anything, so that
    whoever iterates can stop. A player that dies is said in a line, Ray starts it anew where there
    is room, and meanwhile the others play on.

    Args:
        player: a class; its objects are created in actors with their number and ``args``, and have
            a method ``play`` that takes ``Weights`` and returns ``Transitions``.
        count: of players.
        args: passed to ``player``.
        address: as for ``connected``.
        timeout: seconds without anything from any player after which all count as lost.
    """

    def __init__(
        self, player: type, count: int, args: tuple[Any, ...], address: str, timeout: float
    ) -> None:
        self._player, self._count, self._args = player, count, args
        self._connection = connected(address, count)
        self._timeout = timeout
        self._calls: dict[Any, int] = {}  # -> player
        self.lost: set[int] = set()  # players, at the moment
        self._weights: Any = None

    def __enter__(self) -> Self:
        self._connection.__enter__()
        import ray

        self._ray = ray
        # They are started anew, but their calls are not repeated: what is lost is not waited for.
        actor = ray.remote(self._player).options(
            num_cpus=1, max_restarts=-1, scheduling_strategy="SPREAD"
        )
        self._actors = [actor.remote(number, *self._args) for number in range(self._count)]
        return self

    def __exit__(self, *error: Any) -> None:
        self._connection.__exit__(*error)

    def broadcast(self, net: nn.Module, state: State) -> None:
        """Give the next calls these weights: one object in Ray's store, fetched once per node."""
        arrays = {name: w.detach().cpu().numpy() for name, w in net.state_dict().items()}
        self._weights = self._ray.put(Weights(state.iteration, state.frames, arrays))

    def __iter__(self) -> Iterator[list[Transitions]]:
        for _ in range(AHEAD):
            for number in range(self._count):
                self._ask(number)
        deadline = monotonic() + max(self._timeout, START_SECONDS)
        while True:
            ready, _ = self._ray.wait(list(self._calls), timeout=WAIT_SECONDS)
            if ready:  # and whatever else is there
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
        """The result of a call, and the player's next call; None if the player was lost."""
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
    players: Players, buffer: BulkReplayBuffer, epsilons: np.ndarray, engine: Engine, run: Run
) -> Iterator[Batch]:
    """The data of the engine: remember what players send, and sample in proportion to it.

    Args:
        players: send transitions.
        buffer: remembers them.
        epsilons: float, (players, games of each). Only the episodes of games that explore no more
            than those of other rungs in the end, ``epsilon_final``, count towards avg_reward.
        engine: hears of the frames and episodes as they arrive.
        run: with the settings, among them ``frames_per_update`` and ``batch_size``; its curves get
            the age of the weights that the newest transitions were played with.
    """
    hp, state = run.hyperparams, engine.state
    state.weights_age = 0  # in updates
    known = epsilons <= max(hp.epsilon_final, epsilons.min())
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
                announce(engine, new.played, episodes, new.first_game() if new.player == 0 else [])
            if engine.should_terminate:
                return
            if len(buffer) >= hp.replay_initial:
                due += sum(new.played for new in arrived) / hp.frames_per_update
            while due >= 1:
                due -= 1
                yield buffer.sample(hp.batch_size)

    return batches()
