"""The terminal of a run: its phase, one line per episode, and a live bar."""

import math
import time
from datetime import timedelta

from ignite.engine import Engine, Events, State
from tqdm import tqdm

from lib.printing import say
from lib.training.events import PlayEvents, logged_episodes
from lib.training.run import Run

REFRESH_SECONDS = 0.25


class Terminal:
    """Prints a line for each event; below them a bar, if standard error is a terminal."""

    def __init__(self, run: Run) -> None:
        self.hp, self.before = run.hp, run.frames_before
        # From 0 to 1. tqdm's own rate would mix the phases, so it is not shown.
        # The cursor waits at the bar's beginning: at its end the ^C of Ctrl-C would not fit.
        layout = "{desc} |{bar}| {percentage:3.0f}%\r"
        self.bar = tqdm(desc="starting", total=1.0, bar_format=layout, leave=False, disable=None)
        # Frames until training begins; 0 for a rung without a replay buffer.
        self.initial: int = getattr(run.hp, "replay_initial", 0)
        self.before_training = "filling" if self.initial else "first rollout"
        self.first_reward = math.nan
        self.refreshed = 0.0

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(PlayEvents.TRAINING_BEGINS, self.training_begins)
        logged = logged_episodes(getattr(self.hp, "envs", 1))
        engine.add_event_handler(logged, self.episode_completed)
        engine.add_event_handler(PlayEvents.REACHED, self.reached)
        engine.add_event_handler(PlayEvents.TRIED, self.tried)
        engine.add_event_handler(PlayEvents.FRAMES_PLAYED, self.frames_played)
        engine.add_event_handler(Events.COMPLETED | Events.EXCEPTION_RAISED, self.close)

    def training_begins(self, engine: Engine) -> None:
        """Say why FPS change from now on."""
        state = engine.state
        told = f": {self.before_training} ({state.avg_fps:,.0f} FPS) made no updates"
        full = 0 < self.initial <= self.before  # of the resumed run
        say(f"training begins at frame {state.frames:,}{'' if full else told}")

    def episode_completed(self, engine: Engine) -> None:
        """Print a line for each game, of up to 80 characters."""
        state = engine.state
        if math.isnan(self.first_reward):
            self.first_reward = state.episode.reward
        training = state.phase == "training"
        pace = f"{state.fps:,.0f} FPS" if training and state.fps else self.phase(state)
        say(
            f"episode {state.episodes:5,}  reward {state.episode.reward:4.0f}  "
            f"avg {state.avg_reward:6.2f}  frames {state.frames:9,}  {pace:>9}  "
            f"{timedelta(seconds=int(state.time_passed))}"
        )

    def reached(self, engine: Engine) -> None:
        """Say when avg_reward reached --stop-reward for the first time."""
        say(
            f"avg_reward {self.hp.stop_reward:g} after {engine.state.frames:,} frames and "
            f"{engine.state.time_passed:,.0f} seconds"
        )

    def tried(self, engine: Engine) -> None:
        """Say what the agent that would be saved made of its games."""
        trial = engine.state.trial
        told = f"mean {trial.mean:.1f}" + f", below {trial.goal:g}" * (trial.mean < trial.goal)
        if (worst := min(trial.rewards)) < 0:
            told = f"lost one by {-worst:g} points"
        end = "" if trial.passed or engine.should_terminate else "; training goes on"
        say(f"trial: won {trial.won} of {trial.games} new games, {told}{end}")

    def frames_played(self, engine: Engine) -> None:
        """Redraw the bar, but not for every frame."""
        now = time.monotonic()
        if self.bar.disable or now - self.refreshed < REFRESH_SECONDS:
            return
        self.refreshed = now
        state, done = engine.state, 0.0
        if state.phase == "filling" and self.initial:
            status = f"{state.frames:,} of {self.initial:,} frames"
            done = state.frames / self.initial
        else:
            status = f"{state.frames:,} frames"
            if self.hp.max_frames:  # what ends the run first: this, or the reward
                done = state.frames / self.hp.max_frames
        if state.fps:
            status += f", {state.fps:,.0f} FPS"
        if state.phase == "training" and state.episodes:
            status += f", avg_reward {state.avg_reward:.2f}, goal {self.hp.stop_reward:g}"
            if (way := self.hp.stop_reward - self.first_reward) > 0:
                done = max(done, (state.avg_reward - self.first_reward) / way)
        self.bar.n = min(max(done, 0.0), 1.0)
        self.bar.set_description_str(f"{self.phase(state)} {status}")

    def phase(self, state: State) -> str:
        """What is done now, in words."""
        return self.before_training if state.phase == "filling" else state.phase

    def close(self, *_: object) -> None:
        self.bar.close()
