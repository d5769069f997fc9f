"""The options of the speedruns, 07, 08 and 10: parallel Q(lambda), tuned for Pong."""

from dataclasses import dataclass, field, replace
from typing import Any

import pong_emulator
from lib.envs.preprocessing import PONG_ACTIONS, PONG_ROWS, Preprocessing
from lib.training.options import PrecisionOptions, option, playing_option, too_large, wrapper_option


@dataclass(frozen=True)
class SpeedrunOptions(PrecisionOptions):
    """Settings of parallel Q(lambda) on the rows between Pong's walls, at half the resolution."""

    learning_rate: float = option(5e-4, "learning rate of Adam at the start", low=1e-12, high=1)
    learning_rate_final: float = option(6e-5, "learning rate of Adam at the end", low=1e-12, high=1)
    adam_epsilon: float = option(1e-5, "epsilon of Adam; damps small gradients", low=1e-12, high=1)
    batch_size: int = option(64, "frames per update, from the last rollout", low=1, high=65_536)
    epochs: float = option(4.0, "uses of each frame at the start", low=0.01, high=1_000)
    epochs_final: float = option(1.0, "uses of each frame at the end", low=0.01, high=1_000)
    averaged: int = option(1_000, "updates that the weights are averaged over at the end", low=1)
    envs: int = playing_option(32, "environments, stepped together", low=1, high=16_384)
    rollout: int = playing_option(64, "frames of each environment in a rollout", low=1, high=1_024)
    trial_games: int = option(
        64,
        "new games that the agent must win at the end, with a mean of --stop-reward or more",
        low=1,
        high=1_024,
        group="run",
    )
    q_lambda: float = option(0.97, "lambda of the Q(lambda) returns", low=0, high=1)
    stack: int = wrapper_option(2, "stacked frames per state", low=1, high=16)
    # It must exceed 0, because --epsilon-floor falls to it geometrically.
    epsilon_final: float = playing_option(
        0.01, "probability of a random action at the end", low=1e-6, high=1
    )
    temperature: float = playing_option(
        0.01, "temperature of the softmax that draws actions; 0: greedy", low=0, high=1
    )
    epsilon_frames: int = playing_option(
        100_000, "frames over which epsilon falls, from the first frame on", low=1
    )
    epsilon_floor: float = playing_option(
        0.06,
        "lower bound of epsilon, which falls to --epsilon-final as points are won",
        low=0,
        high=1,
    )
    vector_env = True  # preprocess like ALE's vector environment, not like the wrappers

    @property
    def preprocessing(self) -> Preprocessing:
        return replace(super().preprocessing, half=True, rows=PONG_ROWS, actions=PONG_ACTIONS)

    def validation_error(self) -> str | None:
        size = 2 * self.stack * 42 * 42  # a frame's state, in this rollout and the last
        return too_large("rollout", self.rollout * self.envs, size) or super().validation_error()


@dataclass(frozen=True)
class SharedCoresOptions(SpeedrunOptions):
    """Settings of 07."""

    threads: int = option(
        0, "torch threads; 0: half the free cores (GPU: 1)", 0, 1_024, group="run", may_change=True
    )
    any_game: bool = playing_option(False, "play any game: all its actions, the whole picture")
    schedule_frames: int = option(
        10_000_000, "with --any-game: frames over which learning rate, epochs, epsilon fall", low=1
    )

    @property
    def preprocessing(self) -> Preprocessing:
        part = super().preprocessing
        return replace(part, rows=Preprocessing.rows, actions=None) if self.any_game else part

    def torch_threads(self, free: int) -> int:
        return self.threads or max(1, super().torch_threads(free) // 2)

    def validation_error(self) -> str | None:
        if not self.any_game and not self.env.startswith("Pong"):
            return f"--env: {self.env} needs --any-game: without it, this rung only plays Pong"
        return super().validation_error()


@dataclass(frozen=True)
class EmulatorOptions(SpeedrunOptions):
    """Settings of 08."""

    def validation_error(self) -> str | None:
        if not self.env.startswith("Pong"):
            return "--env: this emulator only plays Pong; 07_speedrun.py --any-game plays others"
        return pong_emulator.missing() or super().validation_error()


def other(name: str, default: Any) -> Any:
    """Return a setting of ``EmulatorOptions`` with another default."""
    return field(default=default, metadata=EmulatorOptions.__dataclass_fields__[name].metadata)


@dataclass(frozen=True)
class ThousandsOptions(EmulatorOptions):
    """Settings of 10."""

    envs: int = other("envs", 1_024)
    rollout: int = other("rollout", 32)
    batch_size: int = other("batch_size", 2_048)
    epochs: float = other("epochs", 3.0)
    averaged: int = other("averaged", 200)
    learning_rate: float = other("learning_rate", 7e-4)
    learning_rate_final: float = other("learning_rate_final", 1.4e-4)
    epsilon_frames: int = other("epsilon_frames", 1_000_000)
    games_per_warp: int = playing_option(
        0, "games per warp, which is 32 GPU threads; 0: the emulator's default", low=0, high=32
    )
