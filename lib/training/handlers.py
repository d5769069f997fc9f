"""Everything around the updates, as ignite handlers: reward, FPS, stopping, TensorBoard.

The engine's state has their figures, beside those of ``lib.training.play``:

    first_reward   of the first episode
    avg_reward     smoothed exponentially, from the first episode on
    reached        the frames and minutes after which avg_reward reached --stop-reward
    trial          the last trial, in rungs that have one
    solved         whether avg_reward reached --stop-reward, and the agent passed its trial
    time_passed    seconds since the start, without pauses
    phase          "filling" (the replay buffer), then "training"
    fps, avg_fps   frames per second: recent, and over the whole phase
"""

import math
import signal
import time
from collections.abc import Callable
from logging import CRITICAL, Logger
from pathlib import Path
from typing import Any

from lib.learning.agents import QFunction
from lib.learning.schedules import Schedule
from lib.printing import plural, print_line
from lib.training.checkpoints import CheckpointError, read_first, save_checkpoints
from lib.training.evaluation import load_agent, run_trial
from lib.training.play import COUNTERS, PlayEvents, logged_episodes
from lib.training.run import Failure, Run, end_on_signals, on_signals
from lib.training.terminal import Terminal
from lib.transfer import is_asynchronous

import torch
from ignite.engine import Engine, Events
from ignite.handlers import TensorboardLogger

FILLING_EVERY = 1_000  # frames
LOG_EVERY = 100  # updates
CHECK_EVERY = 1_000  # updates between checks whether the network has died
ALPHA = 0.98  # of the smoothed reward and loss
TRIAL_EVERY = 25  # episodes between trials, or environments // 4 if that is more


def attach_handlers(
    engine: Engine,
    run: Run,
    epsilon: Schedule,
    saved: dict[str, Any],
    make_agent: Callable[[], QFunction] | None = None,
) -> None:
    """Attach all handlers of a rung.

    They wait for the device at most every ``LOG_EVERY`` updates.

    Args:
        engine: makes the updates, and returns each loss as a detached tensor on its device.
        epsilon: the schedule, by frame.
        saved: parts of checkpoints, each with ``state_dict`` and ``load_state_dict``; one is
            ``net``. A resumed run loads them here.
        make_agent: returns the agent that would be saved now. The game is solved only if it wins
            its trial, see ``lib.training.evaluation``; None: avg_reward alone decides.
    """
    engine.logger = Logger("unheard", CRITICAL + 1)  # lib.training.launch reports a failure, once
    if run.params.init_from and not run.checkpoint:
        load_weights(saved, run)
    engine.register_events(*PlayEvents, event_to_attr=COUNTERS)
    engine.state.update_due = False  # see lib.training.play

    def passes() -> bool:
        if make_agent is None:
            return True
        trial = engine.state.trial = run_trial(make_agent(), engine, run)
        if trial.decided:  # no signal ended it
            engine.fire_event(PlayEvents.TRIAL_COMPLETED)
        return trial.passed

    track_reward(engine)
    speed = Speed(engine, run.device)
    average = track_loss(engine)
    warn_if_network_died(engine, saved["net"])
    stop_early(engine, run)
    log_to_tensorboard(engine, run.tensorboard, epsilon, run.games)
    for event in (PlayEvents.TRAINING_BEGINS, PlayEvents.TRIAL_COMPLETED):
        engine.add_event_handler(event, run.write_settings)
    save_checkpoints(engine, run, saved, {"speed": speed, "avg_loss": average})
    Terminal(run).attach(engine)
    stop_when_solved(engine, run.params.stop_reward, passes, max(TRIAL_EVERY, run.games // 4))
    end_training(engine, run)


def track_reward(engine: Engine) -> None:
    """Smooth the reward exponentially, from the first episode on."""
    state = engine.state
    state.episode = None
    state.first_reward, state.avg_reward = math.nan, math.nan
    state.reached = {"frames": math.nan, "minutes": math.nan}
    state.solved = False

    @engine.on(PlayEvents.EPISODE_COMPLETED)
    def smooth() -> None:
        if state.episodes == 1:
            state.first_reward = state.avg_reward = state.episode.reward
        else:
            state.avg_reward = ALPHA * state.avg_reward + (1 - ALPHA) * state.episode.reward


def stop_when_solved(
    engine: Engine, goal: float | None, passes: Callable[[], bool], trial_every: int = TRIAL_EVERY
) -> None:
    """Stop when the game is solved, but not before the first update or without a goal.

    While avg_reward is at the goal, ``passes`` is asked, at most every ``trial_every`` episodes.
    Attach this after curves and terminal, so they show the decisive game.
    """
    state = engine.state
    next_trial = 0

    @engine.on(PlayEvents.EPISODE_COMPLETED)
    def look() -> None:
        nonlocal next_trial
        # Another game may have solved it in the same step.
        if goal is None or state.avg_reward < goal or not state.iteration or state.solved:
            return
        if math.isnan(state.reached["frames"]):
            state.reached = {"frames": state.frames, "minutes": state.time_passed / 60}
            engine.fire_event(PlayEvents.BOUND_REWARD_REACHED)
        if state.episodes >= next_trial:
            next_trial = state.episodes + trial_every
            if passes():
                state.solved = True
                engine.terminate()
                engine.fire_event(PlayEvents.SOLVED)


def load_weights(saved: dict[str, Any], run: Run) -> None:
    """Load the weights of ``--init-from``, or raise CheckpointError if they do not fit."""
    file, checkpoint, notice = read_first(Path(run.params.init_from))
    weights = load_agent(checkpoint)[0].state_dict()
    try:
        for part in (saved[name] for name in ("net", "target_net") if name in saved):
            state = part.state_dict()  # also Adam's moments or an average, in 06 to 08 and 10
            parts = dict.fromkeys({"weights", "ema"} & state.keys(), weights)
            part.load_state_dict(state | parts if parts else weights)
    except (KeyError, RuntimeError):
        message = f"--init-from: the network of {file} does not fit {run.script}"
        raise CheckpointError(message) from None
    print_line(f"initial weights: {notice or file}")


class Speed:
    """The clock of a run: time, and frames per second of each phase."""

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self.engine, self.device = engine, device
        # For a resumed run: its seconds so far, and the seconds and frames of its training.
        self.before = (0.0, 0.0, 0)
        state = engine.state
        state.phase, state.fps, state.avg_fps, state.time_passed = "filling", 0.0, 0.0, 0.0

        engine.add_event_handler(Events.STARTED, self.start)
        engine.add_event_handler(Events.ITERATION_STARTED, self.training_begins)
        engine.add_event_handler(PlayEvents.FRAMES_PLAYED, self.frames_played)
        engine.add_event_handler(Events.ITERATION_COMPLETED(every=LOG_EVERY), self.measure)
        engine.add_event_handler(Events.COMPLETED, self.end)

    def start(self) -> None:
        self.began = time.perf_counter() - self.before[0]
        self.phase_began = self.lap_began = (time.perf_counter(), self.engine.state.frames)

    def training_begins(self) -> None:
        self.engine.remove_event_handler(self.training_begins, Events.ITERATION_STARTED)
        if is_asynchronous(self.device):  # its games may still play
            torch.accelerator.synchronize()
        self.measure()
        self.engine.fire_event(PlayEvents.TRAINING_BEGINS)
        self.engine.state.phase, self.engine.state.fps = "training", 0.0
        self.phase_began = self.lap_began = (time.perf_counter(), self.engine.state.frames)

    def frames_played(self) -> None:
        state = self.engine.state
        state.time_passed = time.perf_counter() - self.began
        if state.phase == "filling" and state.frames - self.lap_began[1] >= FILLING_EVERY:
            self.measure()
            self.engine.fire_event(PlayEvents.FILLING_PROGRESS)

    def measure(self) -> None:
        state, now = self.engine.state, time.perf_counter()
        state.time_passed = now - self.began
        seconds, frames = now - self.phase_began[0], state.frames - self.phase_began[1]
        if state.phase == "training":
            seconds, frames = self.trained()
        if frames > 0:
            state.avg_fps = frames / seconds
        if state.frames > self.lap_began[1]:
            state.fps = (state.frames - self.lap_began[1]) / (now - self.lap_began[0])
            self.lap_began = (now, state.frames)

    def trained(self) -> tuple[float, int]:
        """Return seconds and frames of training so far."""
        _, seconds, frames = self.before
        if self.engine.state.phase == "filling":
            return seconds, frames
        began, first = self.phase_began
        return seconds + time.perf_counter() - began, frames + self.engine.state.frames - first

    def end(self) -> None:
        """Measure training as a whole, even if a resumed run made no update."""
        self.measure()
        seconds, frames = self.trained()
        self.engine.state.avg_fps = frames / seconds if frames > 0 else math.nan

    def state_dict(self) -> dict[str, float]:
        seconds, frames = self.trained()
        passed = time.perf_counter() - self.began
        return {"seconds": passed, "training_seconds": seconds, "training_frames": frames}

    def load_state_dict(self, state: dict[str, float]) -> None:
        training = state["training_seconds"], int(state["training_frames"])
        self.before = (state["seconds"], *training)
        self.start()


class AverageLoss:
    """Exponential moving average of the loss, computed every ``LOG_EVERY`` updates.

    Smoothing every loss on the GPU would launch more kernels than some updates do.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._value: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []  # since the last ``compute``

    def add(self) -> None:
        self._losses.append(self._engine.state.output)

    def compute(self) -> None:
        """Smooth the losses since the last call; raise Failure if one of them is not finite."""
        losses, self._losses = self._losses, []
        for loss in torch.stack([*map(torch.as_tensor, losses)]).cpu() if losses else ():
            kept = self._value
            self._value = loss if kept is None else kept * ALPHA + (1.0 - ALPHA) * loss
        if self._value is None:
            return
        self._engine.state.metrics["avg_loss"] = value = self._value.item()
        if not math.isfinite(value):  # one such loss spoils it for good
            updates = plural(self._engine.state.iteration, "update")
            raise Failure(f"the loss became {value} within {updates}")

    def state_dict(self) -> dict[str, Any]:
        self.compute()
        return {"_value": self._value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._value = None if state["_value"] is None else state["_value"].cpu()


def track_loss(engine: Engine) -> AverageLoss:
    """Smooth the loss; raise Failure if it is not finite, also before a checkpoint is written."""
    average = AverageLoss(engine)
    engine.add_event_handler(Events.ITERATION_COMPLETED, average.add)
    engine.add_event_handler(Events.ITERATION_COMPLETED(every=LOG_EVERY), average.compute)
    return average


def warn_if_network_died(engine: Engine, net: Any) -> None:
    """Warn once if the first layer's weights did not change in 1,000 updates.

    If so, a later layer is 0 in every state (dead ReLUs), and no gradient gets past it.
    """
    looks = Events.ITERATION_COMPLETED(every=CHECK_EVERY)
    last: torch.Tensor | None = None

    def look() -> None:
        nonlocal last
        state = net.state_dict()  # in 06 to 08 and 10 also Adam's moments
        first = next(iter(state.get("weights", state).values())).clone()
        if last is not None and torch.equal(first, last):
            print_line(
                f"the network died within {engine.state.iteration:,} updates and learns nothing: "
                "try another --seed, or a larger --adam-epsilon"
            )
            engine.remove_event_handler(look, looks)
        last = first

    engine.add_event_handler(looks, look)


def stop_early(engine: Engine, run: Run) -> None:
    """Stop after ``--max-frames``, or on a signal; a second Ctrl-C stops at once.

    The update is finished first; otherwise ignite may count one that was never made.
    """

    def stop(number: int, _: object) -> None:
        run.signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    @engine.on(PlayEvents.FRAMES_PLAYED | Events.ITERATION_COMPLETED)
    def end() -> None:
        if run.signal is not None or 0 < run.params.max_frames <= engine.state.frames:
            engine.terminate()

    engine.add_event_handler(Events.STARTED, on_signals, stop)


def end_training(engine: Engine, run: Run) -> None:
    """Write the outcome when training ends, even by a second Ctrl-C, and reset the signals.

    A failed run has no outcome. Attach this after the checkpoints, which are saved first.
    """

    @engine.on(Events.COMPLETED | Events.EXCEPTION_RAISED)
    def end(engine: Engine, error: BaseException | None = None) -> None:
        # Did training end as asked, by its goal, a limit or a signal? If not, its player was lost.
        ended = engine.should_terminate or run.signal is not None
        if interrupted := isinstance(error, KeyboardInterrupt):  # a second Ctrl-C
            run.signal = run.signal or signal.SIGINT
        if (interrupted if error else ended) and run.outcome is None:
            run.write_outcome(engine.state)
        end_on_signals()
        if error:
            raise error  # ignite leaves that to its handlers


def log_to_tensorboard(
    engine: Engine, logger: TensorboardLogger, epsilon: Schedule, games: int = 1
) -> None:
    """Write the curves: by episode, by frame while filling, by update while training."""
    state = engine.state

    def write(folder: str, step: int, **figures: float) -> None:
        for name, value in figures.items():
            logger.writer.add_scalar(f"{folder}/{name}", value, step)

    def write_progress(folder: str, step: int, **more: float) -> None:
        names = ("fps", "avg_fps", "frames", "time_passed")
        now = {name: getattr(state, name) for name in names}
        write(folder, step, **now, epsilon=epsilon(state.frames), **more)

    @engine.on(logged_episodes(games))
    def episode() -> None:
        reward = {"reward": state.episode.reward, "avg_reward": state.avg_reward}
        now = {"frames": state.frames, "time_passed": state.time_passed}
        write("episodes", state.episodes, **reward, steps=state.episode.steps, **now)
        write("by_frames", state.frames, **reward)

    @engine.on(PlayEvents.TRIAL_COMPLETED)
    def trial() -> None:
        write("trial", state.frames, won=state.trial.won, mean=state.trial.mean)

    @engine.on(PlayEvents.FILLING_PROGRESS)
    def filling() -> None:
        write_progress("filling", state.frames)

    @engine.on(Events.ITERATION_COMPLETED(every=LOG_EVERY))
    def updates() -> None:
        losses = {"loss": float(state.output), "avg_loss": state.metrics["avg_loss"]}
        write_progress("train", state.iteration, **losses)
