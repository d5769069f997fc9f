"""The terminal of a run: its phase, one line per episode, and a live bar."""

import shutil
import time
from datetime import timedelta
from typing import Any

from lib.printing import plural, print_line
from lib.training.play import PlayEvents, logged_episodes
from lib.training.run import Run

from ignite.engine import Engine, Events, State
from tqdm import tqdm

REFRESH_SECONDS = 0.25


class Bar(tqdm):
    """A tqdm bar that shortens its description in a narrow terminal, so its end stays visible."""

    @property
    def format_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = super().format_dict
        values["prefix"] = values["prefix"][: max((values["ncols"] or 80) - len(" |#| 100%\r"), 0)]
        return values


class Terminal:
    """A line for each event, and a bar below them if standard error is a terminal."""

    def __init__(self, run: Run) -> None:
        self.params, self.games, self.before = run.params, run.games, run.frames_before
        # No rate, because tqdm would average over both phases. The cursor stays where the bar
        # begins: at its end there is no room for the ^C of Ctrl-C.
        layout = "{desc} |{bar}| {percentage:3.0f}%\r"
        settings = {"leave": False, "disable": None, "dynamic_ncols": True}
        self.bar = Bar(desc="starting", total=1.0, bar_format=layout, **settings)
        # Frames until training begins; 0 for a rung without a replay buffer.
        self.initial: int = getattr(run.params, "replay_initial", 0)
        self.before_training = "filling" if self.initial else "first rollout"
        self.refreshed = 0.0
        self.trial_steps = 0  # of the current trial

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(PlayEvents.TRAINING_BEGINS, self.training_begins)
        engine.add_event_handler(logged_episodes(self.games), self.episode_completed)
        engine.add_event_handler(PlayEvents.BOUND_REWARD_REACHED, self.bound_reward_reached)
        engine.add_event_handler(PlayEvents.TRIAL_STEP, self.trial_step)
        engine.add_event_handler(PlayEvents.TRIAL_COMPLETED, self.trial_completed)
        if not self.bar.disable:
            engine.add_event_handler(PlayEvents.FRAMES_PLAYED, self.frames_played)
        engine.add_event_handler(Events.COMPLETED | Events.EXCEPTION_RAISED, self.close)

    def training_begins(self, engine: Engine) -> None:
        state = engine.state
        reason = f"; {self.before_training} ran at {state.avg_fps:,.0f} FPS, without updates"
        full = 0 < self.initial <= self.before  # filled before resuming
        print_line(f"training begins at frame {state.frames:,}{'' if full else reason}")

    def episode_completed(self, engine: Engine) -> None:
        """Print a line of up to 80 characters for a game; with 100 columns, its steps, too."""
        state = engine.state
        training = state.phase == "training"
        wide = shutil.get_terminal_size().columns >= 100
        steps = f"  steps {state.episode.steps:5,}" * wide
        pace = f"{state.fps:,.0f} FPS" if training and state.fps else self.phase(state)
        print_line(
            f"episode {state.episodes:5,}  reward {state.episode.reward:4.0f}  "
            f"avg {state.avg_reward:6.2f}  frames {state.frames:9,}  {pace:>9}  "
            f"{timedelta(seconds=int(state.time_passed))}{steps}"
        )

    def bound_reward_reached(self, engine: Engine) -> None:
        print_line(
            f"avg_reward {self.params.stop_reward:g} after {plural(engine.state.frames, 'frame')} "
            f"and {engine.state.time_passed:,.0f} seconds"
        )

    def trial_step(self, engine: Engine) -> None:
        trial, self.trial_steps = engine.state.trial, self.trial_steps + 1
        text = f"trial of {plural(trial.games, 'new game')}, step {self.trial_steps:,}"
        self.draw(text, len(trial.rewards) / trial.games)

    def trial_completed(self, engine: Engine) -> None:
        trial, self.trial_steps = engine.state.trial, 0
        text = f"mean {trial.mean:.1f}" + f", below {trial.goal:g}" * (trial.mean < trial.goal)
        if (worst := min(trial.rewards)) < trial.least:
            text = f"lost one by {-worst:g} points"
        end = "" if trial.passed or engine.should_terminate else "; training goes on"
        won = f"won {trial.won} of " * (trial.least == 0)
        print_line(f"trial: {won}{trial.games} new games, {text}{end}")

    def frames_played(self, engine: Engine) -> None:
        state, done = engine.state, 0.0
        if state.phase == "filling" and self.initial:
            status = f"{state.frames:,} of {self.initial:,} frames"
            done = state.frames / self.initial
        else:
            status = f"{state.frames:,} frames"
            if self.params.max_frames:  # the reward may end the run earlier
                done = state.frames / self.params.max_frames
        if state.fps:
            status += f", {state.fps:,.0f} FPS"
        if state.phase == "training" and state.episodes:
            status += f", avg_reward {state.avg_reward:.2f}"
            if (goal := self.params.stop_reward) is not None:
                status += f", goal {goal:g}"
                first = min(state.first_reward, state.avg_reward)
                way = (state.avg_reward - first) / (goal - first) if first < goal else 1.0
                done = max(done, way)
        self.draw(f"{self.phase(state)} {status}", done)

    def draw(self, text: str, done: float) -> None:
        now = time.monotonic()
        if not self.bar.disable and now - self.refreshed >= REFRESH_SECONDS:
            self.refreshed = now
            self.bar.n = min(max(done, 0.0), 1.0)
            self.bar.set_description_str(text)

    def phase(self, state: State) -> str:
        return self.before_training if state.phase == "filling" else state.phase

    def close(self, *_: object) -> None:
        self.bar.close()
