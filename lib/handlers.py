"""What happens around the updates, as ignite handlers: reward, speed, stopping, TensorBoard.

They keep their figures in the engine's state, beside those of ``lib.events``:

    avg_reward, best_avg_reward   smoothed exponentially, from the first episode on
    solved                        whether avg_reward reached the bound
    time_passed                   seconds since the first environment step
    phase                         "filling" (the replay buffer), then "training"
    fps, avg_fps                  frames per second lately, and in the whole phase
"""

import math
import signal

from ignite.engine import Engine, Events
from ignite.handlers import TensorboardLogger, Timer
from ignite.metrics import RunningAverage
from ignite.metrics.metric import MetricUsage

from lib.console import Console
from lib.events import COUNTERS, PlayEvents
from lib.experience import LinearSchedule
from lib.run import Failure, Run

FILLING_EVERY = 1_000  # frames
LOG_EVERY = 100  # updates
ALPHA = 0.98  # of the smoothed reward and loss


def attach_handlers(engine: Engine, run: Run, epsilon: LinearSchedule) -> None:
    """Attach all that a rung wants to happen around its updates.

    The engine's process function returns the loss as a detached tensor: it stays on its
    device, and nothing here waits for the device more often than every ``LOG_EVERY`` updates.
    """
    engine.logger.disabled = True  # a failure is reported once, by lib.run
    engine.register_events(*PlayEvents, event_to_attr=COUNTERS)

    track_reward(engine, run.hyperparams.stop_reward)
    track_speed(engine)
    track_loss(engine, run)
    stop_at(engine, run.hyperparams.max_frames)
    stop_on_signals(engine, run)
    log_to_tensorboard(engine, run.tensorboard, epsilon)
    Console(run).attach(engine)


def track_reward(engine: Engine, bound: float) -> None:
    """Smooth the reward exponentially, from the first episode on; stop at the bound."""
    engine.state.episode = None
    engine.state.avg_reward, engine.state.best_avg_reward = math.nan, -math.inf
    engine.state.solved = False  # and once it is, games that end in the same step change nothing

    @engine.on(PlayEvents.EPISODE_COMPLETED)
    def smooth(engine: Engine) -> None:
        state = engine.state
        if state.episodes == 1:
            state.avg_reward = state.episode.reward
        else:
            state.avg_reward = ALPHA * state.avg_reward + (1 - ALPHA) * state.episode.reward
        if state.avg_reward > state.best_avg_reward:
            state.best_avg_reward = state.avg_reward
            engine.fire_event(PlayEvents.BEST_REWARD)
        if state.avg_reward >= bound:
            engine.fire_event(PlayEvents.SOLVED)

    @engine.on(PlayEvents.SOLVED)
    def stop(engine: Engine) -> None:
        engine.state.solved = True
        engine.terminate()


def track_speed(engine: Engine) -> None:
    """Keep time and frames per second, each phase by itself."""
    state = engine.state
    state.phase, state.fps, state.avg_fps, state.time_passed = "filling", 0.0, 0.0, 0.0
    clock, phase, lap = Timer(), Timer(), Timer()
    since = {"phase": 0, "lap": 0}  # frames at the start of each

    @engine.on(Events.STARTED)
    def start() -> None:
        for timer in (clock, phase, lap):
            timer.reset()

    @engine.on(Events.ITERATION_STARTED(once=1))
    def training_begins() -> None:
        measure()
        state.phase, state.fps = "training", 0.0
        since.update(phase=state.frames, lap=state.frames)
        phase.reset()
        lap.reset()

    @engine.on(PlayEvents.FRAMES_PLAYED)
    def keep_time() -> None:
        state.time_passed = clock.value()
        if state.phase == "filling" and state.frames - since["lap"] >= FILLING_EVERY:
            measure()
            engine.fire_event(PlayEvents.FILLING)

    @engine.on(Events.ITERATION_COMPLETED(every=LOG_EVERY) | Events.COMPLETED)
    def measure() -> None:
        state.time_passed = clock.value()
        if state.frames > since["phase"]:
            state.avg_fps = (state.frames - since["phase"]) / phase.value()
        if state.frames > since["lap"]:
            state.fps = (state.frames - since["lap"]) / lap.value()
            since["lap"] = state.frames
            lap.reset()


def track_loss(engine: Engine, run: Run) -> None:
    """Smooth the loss, and fail when it is no longer a number."""
    average = RunningAverage(output_transform=lambda loss: loss, alpha=ALPHA, device=run.device)
    # Updated with every loss on its device, but computed, which waits for it, rarely.
    logged = Events.ITERATION_COMPLETED(every=LOG_EVERY)
    average.attach(
        engine, "avg_loss", MetricUsage(Events.STARTED, logged, Events.ITERATION_COMPLETED)
    )

    @engine.on(logged)
    def check(engine: Engine) -> None:
        loss = engine.state.metrics["avg_loss"]  # remembers every loss that was not finite
        if not math.isfinite(loss):
            raise Failure(f"the loss became {loss} within {engine.state.iteration:,} updates")


def stop_at(engine: Engine, max_frames: int) -> None:
    """Stop after so many frames; 0 for no limit."""

    @engine.on(PlayEvents.FRAMES_PLAYED)
    def check(engine: Engine) -> None:
        if 0 < max_frames <= engine.state.frames:
            engine.terminate()


def stop_on_signals(engine: Engine, run: Run) -> None:
    """Finish the iteration and stop when asked to; a second Ctrl-C does not wait for that."""

    def stop(number: int, _: object) -> None:
        run.signal = number
        engine.terminate()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    @engine.on(Events.STARTED)
    def listen() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)


def log_to_tensorboard(engine: Engine, logger: TensorboardLogger, epsilon: LinearSchedule) -> None:
    """Write the curves: by episode, by frames while filling, by updates while training."""
    state = engine.state

    logger.attach_output_handler(
        engine,
        PlayEvents.EPISODE_COMPLETED,
        tag="episodes",
        output_transform=lambda _: {
            "reward": state.episode.reward,
            "avg_reward": state.avg_reward,
            "steps": state.episode.steps,
            "frames": state.frames,
            "time_passed": state.time_passed,
        },
    )

    def progress() -> dict[str, float]:
        return {
            "fps": state.fps,
            "avg_fps": state.avg_fps,
            "frames": state.frames,
            "time_passed": state.time_passed,
            "epsilon": epsilon(state.frames),
        }

    logger.attach_output_handler(
        engine,
        PlayEvents.FILLING,
        tag="filling",
        output_transform=lambda _: progress(),
    )
    logger.attach_output_handler(
        engine,
        Events.ITERATION_COMPLETED(every=LOG_EVERY),
        tag="train",
        metric_names=["avg_loss"],
        output_transform=lambda loss: {"loss": loss, **progress()},
    )
