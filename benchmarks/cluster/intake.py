"""How much one learner takes in, from players that only send again what was recorded."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Self

from torch import nn

from benchmarks.timing import seconds_per_call
from lib.players.cluster import Players
from lib.players.message_buffer import MessageReplayBuffer
from lib.players.n_step import Transitions
from lib.players.worker import Weights

PROCESSES = 2  # that answer for all simulated players
WARM_UP_SECONDS = 3.0
TIMEOUT = 120.0


class Packed:
    """Transitions packed once, which arrive as such wherever they are sent."""

    def __init__(self, transitions: Transitions) -> None:
        self.state = transitions.__getstate__()

    def __reduce__(self) -> tuple[Any, ...]:
        return unpack, (self.state,)


def unpack(state: dict[str, Any]) -> Transitions:
    """What ``pickle`` does with transitions that arrive."""
    transitions = object.__new__(Transitions)
    transitions.__setstate__(state)
    return transitions


class Replayer:
    """A player that answers each call with the next of the recorded messages."""

    def __init__(self, number: int, recorded: list[Packed]) -> None:
        self.recorded, self.calls = recorded, number

    def play(self, weights: Weights) -> Packed:
        """Play nothing."""
        self.calls += 1
        return self.recorded[self.calls % len(self.recorded)]


class SimulatedPlayers(Players):
    """Many players in few processes: a thousand interpreters do not fit into one machine."""

    def __init__(self, count: int, messages: Sequence[Transitions]) -> None:
        recorded = [Packed(message) for message in messages]
        super().__init__(Replayer, PROCESSES, (recorded,), "", TIMEOUT)
        self._simulated = count

    def __enter__(self) -> Self:
        super().__enter__()
        self._count = self._simulated
        self._actors = [self._actors[i % PROCESSES] for i in range(self._count)]
        return self


@dataclass
class Intake:
    """What a learner took in while it did nothing else."""

    players: int
    frames_per_second: float
    messages_per_second: float
    storing: float  # share of the learner's time; the rest is calls, results, unpacking, waiting


def take_in(
    count: int,
    messages: Sequence[Transitions],
    net: nn.Module,
    buffer: MessageReplayBuffer,
    seconds: float,
) -> Intake:
    """Take in what simulated players send, for some time."""
    with SimulatedPlayers(count, messages) as players:
        players.broadcast(net, SimpleNamespace(iteration=0, frames=0))
        begin, frames, arrivals, storing = perf_counter() + WARM_UP_SECONDS, 0, 0, 0.0
        warm = False
        for arrived in players:
            now = perf_counter()
            if not warm:
                if now >= begin and arrived:
                    warm, begin = True, now
                continue
            for new in arrived:
                buffer.extend(new)
            storing += perf_counter() - now
            frames += sum(new.played for new in arrived)
            arrivals += len(arrived)
            passed = perf_counter() - begin
            if passed >= seconds:
                break
    return Intake(count, frames / passed, arrivals / passed, storing / passed)


def record(players: Players, net: nn.Module, count: int) -> list[Transitions]:
    """Some messages of real players, in the middle of their games."""
    messages: list[Transitions] = []
    with players:
        players.broadcast(net, SimpleNamespace(iteration=0, frames=10**9))
        for arrived in players:
            messages += arrived
            if len(messages) >= 2 * count:
                return messages[count : 2 * count]
    raise AssertionError("players play forever")


def microseconds_per_frame(
    messages: Sequence[Transitions], buffer: MessageReplayBuffer
) -> dict[str, float]:
    """What a frame costs by itself: to pack, to unpack and to store."""
    packed = [pickle.dumps(message, pickle.HIGHEST_PROTOCOL) for message in messages]
    works: dict[str, Callable[[], Any]] = {
        "pack": lambda: [pickle.dumps(message, pickle.HIGHEST_PROTOCOL) for message in messages],
        "unpack": lambda: [pickle.loads(message) for message in packed],
        "store": lambda: [buffer.extend(message) for message in messages],
    }
    frames = sum(message.played for message in messages)
    return {name: seconds_per_call(work, 1.0) * 1e6 / frames for name, work in works.items()}


def bytes_per_frame(messages: Sequence[Transitions]) -> dict[str, float]:
    """Of messages as they are sent, and as they would be without compression."""
    packed = sum(len(pickle.dumps(message, pickle.HIGHEST_PROTOCOL)) for message in messages)
    shrunk = sum(
        message.frames.nbytes - len(message.__getstate__()["frames"][1]) for message in messages
    )
    frames = sum(message.played for message in messages)
    return {"packed": packed / frames, "plain": (packed + shrunk) / frames}
