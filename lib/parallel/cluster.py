"""Players as actors of Ray, on this machine or on many.

Ray places the players, restarts dead ones where there is room, and moves messages and weights
between machines. Here it is started so that nobody else gets in; then the learner waits for
messages, and continues with the other players while one is lost.
"""

import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any, Self

import numpy as np
from ignite.engine import Engine, Events, State
from torch import nn

import lib
from lib.learning.replay_buffer import Batch
from lib.parallel.message_buffer import MessageReplayBuffer
from lib.parallel.n_step import Message
from lib.parallel.player import signals_blocked
from lib.parallel.worker import ClusterOptions, VersionedWeights
from lib.printing import print_line
from lib.training.play import record_frames
from lib.training.run import WARNINGS, Failure, Run

AHEAD = 2  # pending calls per player: it plays the next one while the last is on its way
LOG_EVERY = 100  # updates
ANSWER_SECONDS = 5.0  # for a cluster to answer
START_SECONDS = 120.0  # for the first frames, if the time limit is shorter
WAIT_SECONDS = 1.0  # between checks whether the learner was asked to stop


class Players:
    """The players, and their messages, while the ``with`` lasts.

    Iterating yields lists of messages that have arrived. After a second without any it yields an
    empty list, so that the caller can stop. If a player dies, one line says so. A ``Failure`` ends
    it, and is raised when the ``with`` ends.

    Args:
        player: a class. Each actor creates one object from its number and ``args``; the method
            ``play`` takes ``VersionedWeights`` and returns a ``Message``.
        params: say how many players, on which cluster, and how long to wait for them.
        args: passed to ``player``.
    """

    def __init__(self, player: type, params: ClusterOptions, *args: Any) -> None:
        self._player, self._params, self._args = player, params, args
        self._calls: dict[Any, int] = {}  # -> player
        self._lost: set[int] = set()  # players that are lost now
        self._weights: Any = None
        self._failed: Failure | None = None
        self._end = ExitStack()

    def __enter__(self) -> Self:
        """Join the cluster, or start Ray here, and start the players.

        Raises:
            Failure: there is no such cluster, or Ray does not start.
        """
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        address, count = self._params.address, self._params.players
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if not address:
            # 127.0.0.1 alone, which is what this variable does everywhere; and a token for this run
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            settings |= {"num_cpus": count, "include_dashboard": False}
            # Ray opens its folder to everybody, so it gets one inside of ours. Paths of its sockets
            # must be short.
            parent = "/tmp" if os.name == "posix" else None
            folder = tempfile.TemporaryDirectory("", "ray-", parent, ignore_cleanup_errors=True)
            place = os.path.join(self._end.enter_context(folder), "r")
            settings |= {"_node_ip_address": "127.0.0.1", "_temp_dir": place}
        else:  # nodes need no copy of this repository, only its requirements
            root = Path(lib.__file__).parent.parent
            code = {"py_modules": [str(root / name) for name in ("lib", "pong_emulator")]}
            settings["runtime_env"] = code | {"excludes": ["__pycache__"]}
        import ray
        from ray._private import utils, worker

        self._ray = ray
        # For a lost node Ray prints pages of its log, and has no switch for that; we say a line.
        worker.print_to_stdstream = lambda *_, **__: None
        utils.set_sigterm_handler = lambda _: None  # ours stays
        self._end.callback(ray.shutdown)
        try:
            if address:  # Ray itself would try for minutes
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
            with signals_blocked(WARNINGS):  # else a closed terminal ends Ray before the run
                ray.init(address or "local", **settings)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            self._end.close()
            reason = " ".join(str(error).split()) or type(error).__name__
            raise Failure(f"Ray, {address or 'on this machine'}: {reason}") from None
        # Ray restarts players, but does not repeat their calls: nobody waits for lost transitions.
        placed = {"num_cpus": 1, "max_restarts": -1, "scheduling_strategy": "SPREAD"}
        actor = ray.remote(self._player).options(**placed)
        self._actors = [actor.remote(number, *self._args) for number in range(count)]
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._end.close()
        if self._failed and not error:
            raise self._failed

    def broadcast(self, net: nn.Module, state: State) -> None:
        """Give these weights to the next calls: one object of Ray's, fetched once per node."""
        arrays = {name: w.detach().cpu().numpy() for name, w in net.state_dict().items()}
        self._weights = self._ray.put(VersionedWeights(state.iteration, state.frames, arrays))

    def __iter__(self) -> Iterator[list[Message]]:
        for number in [*range(self._params.players)] * AHEAD:
            self._ask(number)
        timeout = self._params.player_timeout
        deadline = monotonic() + max(timeout, START_SECONDS)
        try:
            while True:
                calls = list(self._calls)
                ready, _ = self._ray.wait(calls, timeout=WAIT_SECONDS)
                if ready:  # take everything that has arrived
                    ready, _ = self._ray.wait(calls, num_returns=len(calls), timeout=0)
                if arrived := [new for new in map(self._take, ready) if new]:
                    deadline = monotonic() + timeout
                elif monotonic() > deadline:
                    raise Failure(f"no player sent anything for {timeout:g} seconds")
                yield arrived
        except Failure as failure:  # the run ends as always, with its checkpoint
            self._failed = failure

    def _ask(self, number: int) -> None:
        self._calls[self._actors[number].play.remote(self._weights)] = number

    def _take(self, call: Any) -> Message | None:
        """Take the result of a call, and make the player's next one; None if the player is lost."""
        number, raised = self._calls.pop(call), self._ray.exceptions
        self._ask(number)
        try:
            message = self._ray.get(call)
        except (raised.RayTaskError, raised.ActorDiedError, raised.RuntimeEnvSetupError) as error:
            cause = str(error).strip().split("\n")[-1]  # its own error, which would come again
            raise Failure(f"player {number} failed: {cause}") from None
        except raised.RayError:  # its process, its node, or the network in between
            message = None
        if (number in self._lost) == (message is not None):  # this is new
            self._lost ^= {number}
            status, count = "back" if message else "lost", self._params.players
            print_line(f"player {number} is {status}, {count - len(self._lost)} of {count} play")
        return message


def learn_from(
    players: Players, buffer: MessageReplayBuffer, epsilons: np.ndarray, engine: Engine, run: Run
) -> Iterator[Batch]:
    """The engine's batches: store what players send, and sample in proportion to it.

    A message's updates follow it before the next message is counted. Curves show the age of the
    weights that played the newest transitions.

    Args:
        players, buffer: send transitions, and store them.
        epsilons: float, (players, games of each). avg_reward counts only games with at most
            ``epsilon_final``, the final epsilon of other rungs.
        engine: is told of frames and episodes as they arrive.
        run: has the settings, among them ``frames_per_update`` and ``batch_size``.
    """
    params, state = run.params, engine.state
    known = epsilons <= max(params.epsilon_final, epsilons.min())

    @engine.on(Events.ITERATION_COMPLETED(every=LOG_EVERY))
    def log() -> None:
        run.tensorboard.writer.add_scalar("players/weights_age", state.weights_age, state.iteration)

    due = 0.0
    for arrived in players:
        for new in arrived:
            buffer.extend(new)
            counted = np.flatnonzero(known[new.player])
            episodes = [step[game] for step in new.episodes for game in counted]
            state.weights_age = state.iteration - new.version  # in updates
            record_frames(engine, new.played, episodes)
            if engine.should_terminate:
                return
            if buffer.added >= params.replay_initial:
                due += new.played / params.frames_per_update
            while due >= 1:
                due -= 1
                yield buffer.sample(params.batch_size)
        if run.signal is not None:  # also if nothing arrives
            return
