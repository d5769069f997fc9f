"""Players as Ray actors, on one machine or many.

Ray places the players, restarts dead ones where it finds room, and moves messages and weights.
While a player is lost, the learner continues with the others.
"""

import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from time import monotonic
from typing import Any, Self

import lib
from lib.learning.replay_buffer import Batch
from lib.parallel.message_buffer import MessageReplayBuffer
from lib.parallel.n_step import Message
from lib.parallel.player import START_SECONDS, WAIT_SECONDS, signals_blocked
from lib.parallel.worker import ClusterOptions, VersionedWeights
from lib.printing import print_line
from lib.training.play import record_frames
from lib.training.run import Failure, Run

import numpy as np
from ignite.engine import Engine, Events, State
from torch import nn

AHEAD = 2  # pending calls per player: it plays one while the last is on its way
LOG_EVERY = 100  # updates
ANSWER_SECONDS = 5.0  # for a cluster to answer


class Players:
    """The players and their messages, within a ``with`` block.

    Iterating yields lists of new messages, some of them empty, so that the caller can stop. A
    ``Failure`` ends the iteration, and is raised when the block ends.

    Args:
        player: a class. Each actor makes an object of its number and ``args``, whose method
            ``play`` takes ``VersionedWeights`` and returns a ``Message``.
        params: the number of players, their cluster, and how long to wait for them.
    """

    def __init__(self, player: type, params: ClusterOptions, *args: Any) -> None:
        self._player, self._params, self._args = player, params, args
        self._calls: dict[Any, int] = {}  # -> player
        self._lost: set[int] = set()  # players that are lost now
        self._weights: Any = None
        self._failed: Failure | None = None
        self._end = ExitStack()

    def __enter__(self) -> Self:
        """Join the cluster or start Ray, then the players; raise Failure if that is impossible."""
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        address, count = self._params.address, self._params.players
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if not address:
            # Keep others out: this variable restricts Ray to 127.0.0.1, and the token is the run's.
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            settings |= {"num_cpus": count, "include_dashboard": False}
            # Ray's folder is open to everybody, so hide it in ours; socket paths must be short.
            parent = "/tmp" if os.name == "posix" else None
            folder = tempfile.TemporaryDirectory("", "ray-", parent, ignore_cleanup_errors=True)
            place = os.path.join(self._end.enter_context(folder), "r")
            settings |= {"_node_ip_address": "127.0.0.1", "_temp_dir": place}
        else:  # nodes need only the requirements, not this repository
            root = Path(lib.__file__).parent.parent
            code = {"py_modules": [str(root / name) for name in ("lib", "pong_emulator")]}
            settings["runtime_env"] = code | {"excludes": ["__pycache__"]}
        import ray
        from ray._private import utils, worker

        self._ray = ray
        # Ray prints pages of its log for a lost node, without a switch; we print a line.
        worker.print_to_stdstream = lambda *_, **__: None
        utils.set_sigterm_handler = lambda _: None  # keep ours
        self._end.callback(ray.shutdown)
        try:
            if address:  # Ray would try for minutes
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
            # A signal to all processes must not end Ray before the run has saved. But then Ray ends
            # its processes by SIGKILL, which takes 4 seconds longer than SIGTERM.
            with nullcontext() if address else signals_blocked():
                ray.init(address or "local", **settings)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            self._end.close()
            reason = " ".join(str(error).split()) or type(error).__name__
            raise Failure(f"Ray, {address or 'on this machine'}: {reason}") from None
        # Ray restarts players, but does not repeat their calls: lost transitions are not needed.
        placed = {"num_cpus": 1, "max_restarts": -1, "scheduling_strategy": "SPREAD"}
        actor = ray.remote(self._player).options(**placed)
        self._actors = [actor.remote(number, *self._args) for number in range(count)]
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._end.close()
        if self._failed and not error:
            raise self._failed

    def broadcast(self, net: nn.Module, state: State) -> None:
        """Put the weights of the next calls into Ray's store; each node fetches them once."""
        arrays = {name: w.detach().cpu().numpy() for name, w in net.state_dict().items()}
        self._weights = self._ray.put(VersionedWeights(state.iteration, state.frames, arrays))

    def __iter__(self) -> Iterator[list[Message]]:
        for number in [*range(self._params.players)] * AHEAD:
            self._ask(number)
        timeout = self._params.player_timeout
        limit = left = max(timeout, START_SECONDS)  # seconds of waiting, not of learning
        try:
            while True:
                calls, began = list(self._calls), monotonic()
                ready, _ = self._ray.wait(calls, timeout=WAIT_SECONDS)
                left -= monotonic() - began
                if ready:  # take everything that has arrived
                    ready, _ = self._ray.wait(calls, num_returns=len(calls), timeout=0)
                if arrived := [new for new in map(self._take, ready) if new]:
                    limit = left = timeout
                elif left < 0:
                    raise Failure(f"no player sent anything for {limit:g} seconds")
                yield arrived
        except Failure as failure:  # end as usual, with a checkpoint
            self._failed = failure

    def _ask(self, number: int) -> None:
        self._calls[self._actors[number].play.remote(self._weights)] = number

    def _take(self, call: Any) -> Message | None:
        """Return the result of a call, or None if its player is lost; ask for the next one."""
        number, raised = self._calls.pop(call), self._ray.exceptions
        self._ask(number)
        try:
            message = self._ray.get(call)
        except (raised.RayTaskError, raised.ActorDiedError, raised.RuntimeEnvSetupError) as error:
            cause = str(error).strip().split("\n")[-1]  # it would fail again
            raise Failure(f"player {number} failed: {cause}") from None
        except raised.RayError:  # its process, node or network failed
            message = None
        if (number in self._lost) == (message is not None):  # a change
            self._lost ^= {number}
            status, count = "back" if message else "lost", self._params.players
            print_line(f"player {number} is {status}, {count - len(self._lost)} of {count} play")
        return message


def learn_from(
    players: Players, buffer: MessageReplayBuffer, epsilons: np.ndarray, engine: Engine, run: Run
) -> Iterator[Batch]:
    """Yield the engine's batches: store the players' messages, and sample in proportion to them.

    It makes the updates that a message allows before it counts the next one. Curves show the age of
    the weights that played the newest transitions. ``epsilons`` is float, (players, games of each);
    avg_reward counts only games with at most ``epsilon_final``.
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
