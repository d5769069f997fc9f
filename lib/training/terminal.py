"""The terminal of a run: its phase, one line per episode, and a live bar."""

import time
from datetime import timedelta

from ignite.engine import Engine, Events
from tqdm import tqdm

from lib.gpu_checks import say
from lib.training.events import PlayEvents
from lib.training.run import Run

REFRESH_SECONDS = 0.25


class Terminal:
    """Prints a line for each event; below them a bar, if standard error is a terminal."""

    def __init__(self, run: Run) -> None:
        self.hp = run.hp
        # From 0 to 1. tqdm's own rate would mix the phases, so it is not shown.
        layout = "{desc} |{bar}| {percentage:3.0f}%"
        self.bar = tqdm(total=1.0, bar_format=layout, leave=False, delay=0.1, disable=None)
        # Frames until training begins; 0 for a rung without a replay buffer.
        self.initial: int = getattr(run.hp, "replay_initial", 0)
        self.first_reward: float | None = None
        self.refreshed = 0.0

    def attach(self, engine: Engine) -> None:
        """Listen to the engine."""
        engine.add_event_handler(PlayEvents.TRAINING_BEGINS, self.training_begins)
        engine.add_event_handler(PlayEvents.EPISODE_COMPLETED, self.episode_completed)
        engine.add_event_handler(PlayEvents.REACHED, self.reached)
        engine.add_event_handler(PlayEvents.TRIED, self.tried)
        engine.add_event_handler(PlayEvents.FRAMES_PLAYED, self.frames_played)
        engine.add_event_handler(Events.COMPLETED, self.close)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self.fail)

    def training_begins(self, engine: Engine) -> None:
        """Say why FPS change from now on."""
        state = engine.state
        rate = f" ({state.avg_fps:,.0f} FPS)" if state.avg_fps else ""
        told = f"filling{rate} made no updates, from now on FPS include them"
        say(f"training begins at frame {state.frames:,}: {told}")

    def episode_completed(self, engine: Engine) -> None:
        """Print a line for each game."""
        state = engine.state
        if self.first_reward is None:
            self.first_reward = state.episode.reward
        say(
            f"episode {state.episodes:4,}  reward {state.episode.reward:5.0f}  "
            f"avg_reward {state.avg_reward:6.2f}  steps {state.episode.steps:5,}  "
            f"frames {state.frames:9,}  {state.phase} {_fps(state.fps):>9}  "
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
        state, stop_reward = engine.state, self.hp.stop_reward
        status = f"{state.phase} {state.frames:,} frames, {_fps(state.fps)}"
        if state.phase == "filling":
            done = state.frames / self.initial if self.initial else 0.0
        else:
            status += f", avg_reward {state.avg_reward:.2f}, goal {stop_reward:g}"
            first = stop_reward if self.first_reward is None else self.first_reward
            done = (
                (state.avg_reward - first) / (stop_reward - first) if first < stop_reward else 0.0
            )
        self.bar.n = min(max(done, 0.0), 1.0)
        self.bar.set_description_str(status)

    def close(self) -> None:
        """Remove the bar."""
        self.bar.close()

    def fail(self, error: Exception) -> None:
        """Remove the bar and raise the error again: ignite leaves that to its handlers."""
        self.close()
        raise error


def _fps(fps: float) -> str:
    """FPS, or a dash before the first measurement of the phase."""
    return f"{fps:,.0f} FPS" if fps else "- FPS"
