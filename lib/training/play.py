"""Playing, for the ignite engine: its events, and the source of the batches.

One iteration of the engine is one update. Experience arrives between iterations, so playing has its
own events, fired by ``record_frames``. The engine's state has:

    frames, episodes   so far
    episode            the last whole game
    update_due         whether frames arrived since the last update
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from lib.envs.experience import Episode, Transitions
from lib.learning.replay_buffer import Batch, ReplayBuffer

from ignite.engine import Engine, EventEnum
from ignite.engine.events import CallableEventWithFilter


class PlayEvents(EventEnum):
    """Events of playing, besides ignite's ``Events``."""

    FRAMES_PLAYED = "frames_played"  # new transitions are recorded
    FILLING_PROGRESS = "filling"  # once every 1,000 frames until training begins
    TRAINING_BEGINS = "training_begins"  # before the first update
    EPISODE_COMPLETED = "episode_completed"  # a whole game, not a life
    BOUND_REWARD_REACHED = "reached"  # avg_reward reached --stop-reward for the first time
    TRIAL_STEP = "trying"  # one of a trial's two groups of games made a step
    TRIAL_COMPLETED = "tried"  # the agent that would be saved has played its trial
    SOLVED = "solved"  # avg_reward reached --stop-reward, and the agent won its trial, if any


# Counters in the engine's state, which ignite sets to 0.
COUNTERS = {PlayEvents.FRAMES_PLAYED: "frames", PlayEvents.EPISODE_COMPLETED: "episodes"}


def logged_episodes(games: int) -> CallableEventWithFilter:
    """Return the event of logged games: all, or every (``games`` // 256)th because logging is
    slow."""
    return PlayEvents.EPISODE_COMPLETED(every=max(1, games // 256))  # type: ignore[operator]


def batch_generator(
    engine: Engine,
    experience: Iterable[Sequence[Transitions]],
    buffer: ReplayBuffer,
    initial: int,
    batch_size: int | None,
) -> Iterator[Batch | None]:
    """Yield the engine's batches: play, store, and sample once there are enough transitions.

    Args:
        experience: yields lists of new steps; in training, each non-empty one leads to an update.
        initial: transitions to store before the first batch.
        batch_size: transitions per batch; None: the update samples them itself.
    """
    state = engine.state
    # The empty list makes a resumed run catch up on the update that was due when it stopped.
    for steps in chain([()], experience):
        buffer.extend(steps)
        games = [game for new in steps for game in new.episodes]  # per frame: ended game or None
        state.update_due |= bool(games)
        record_frames(engine, len(games), games)
        if engine.should_terminate:
            return
        if state.update_due and buffer.added >= initial:  # not len, which may fall again
            state.update_due = False
            yield None if batch_size is None else buffer.sample(batch_size)


def record_frames(engine: Engine, frames: int, episodes: Iterable[Episode | None]) -> None:
    """Count new frames and finished episodes in the engine's state, and fire their events."""
    state = engine.state
    state.frames += frames
    engine.fire_event(PlayEvents.FRAMES_PLAYED)
    for episode in episodes:
        if episode:
            state.episode = episode
            state.episodes += 1
            engine.fire_event(PlayEvents.EPISODE_COMPLETED)
