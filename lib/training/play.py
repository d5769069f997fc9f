"""Play, store and sample: where the engine's batches come from."""

from collections.abc import Iterable, Iterator

from ignite.engine import Engine

from lib.envs.experience import Transitions
from lib.learning.replay_buffer import Batch, ReplayBuffer
from lib.training.events import record_frames


def batch_generator(
    engine: Engine,
    experience: Iterable[list[Transitions]],
    buffer: ReplayBuffer,
    initial: int,
    batch_size: int,
) -> Iterator[Batch]:
    """The engine's batches: play, store, and sample once there are enough transitions.

    Args:
        engine: is told of frames and episodes as they arrive.
        experience: yields lists of new steps, one list per update.
        buffer: stores them.
        initial: transitions to store before the first batch.
        batch_size: transitions per batch.
    """
    for _ in collect(engine, experience, buffer, initial):
        yield buffer.sample(batch_size)


def collect(
    engine: Engine,
    experience: Iterable[list[Transitions]],
    buffer: ReplayBuffer,
    initial: int,
) -> Iterator[None]:
    """Play and store, as ``batch_generator``; yields when it is time for an update."""
    if engine.state.update_due and buffer.added >= initial:  # the resumed run ended before it
        yield
    for steps in experience:
        buffer.extend(steps)
        episodes = [episode for new in steps for episode in new.episodes]
        record_frames(engine, len(episodes), episodes)
        if engine.should_terminate:
            return
        if steps and buffer.added >= initial:  # not len, which may fall again
            yield
