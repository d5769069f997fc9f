"""A run in TensorBoard's HPARAMS tab: settings, machine, and outcome.

The tab takes its columns from the first run, so each run names those of all rungs. TensorBoard
keeps the first settings that it reads. So settings have their own file, read before the curves; a
resumed run replaces it.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import hparams

SHOWN = ["batch_size", "envs", "learning_rate", "script", "seed"]
FILE = "events.out.tfevents.0.hparams"
OUTCOME = ["fps", "minutes", "avg_reward", "solved", "frames", "updates", "episodes", "seconds"]
OUTCOME += ["reached_frames", "reached_minutes"]
# Settings that are numbers; a test names any that are missing.
NUMBERS = ["stop_reward", "replay_size", "replay_initial", "target_sync", "envs", "steps"]
NUMBERS += ["stack", "rollout", "sync_frames", "player_timeout", "noop_max", "max_pool", "skip"]
NUMBERS += ["episodic_life", "fire_reset", "clip_reward", "any_game", "learning_rate_final"]
NUMBERS += ["epochs", "epochs_final", "averaged", "trial_games", "q_lambda"]
NUMBERS += ["epsilon_floor", "players", "n_steps", "message_steps", "frames_per_update"]
NUMBERS += ["sync_updates", "schedule_frames", "temperature", "games_per_warp"]
TEXTS = ["init_from", "play_device", "resize", "precision", "address", "left_out"]


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings and the machine of a run, in place of earlier ones."""
    settings = {name: value for name, value in settings.items() if value is not None}
    every = dict.fromkeys(TEXTS, "") | dict.fromkeys(NUMBERS, 0.0) | settings
    columns, *_ = hparams(every, {f"outcome/{name}": 0.0 for name in OUTCOME})
    plugin = columns.value[0].metadata.plugin_data
    content = HParamsPluginData.FromString(plugin.content)
    for column in content.experiment.hparam_infos:
        column.differs = column.name in SHOWN
    plugin.content = content.SerializeToString()
    _, begin, _ = hparams(settings, {})
    written = folder / "hparams.tmp"
    with written.open("wb") as file:
        records = RecordWriter(file)
        for event in ({"file_version": "brain.Event:2"}, {"summary": columns}, {"summary": begin}):
            records.write(Event(wall_time=time.time(), **event).SerializeToString())
    written.replace(folder / FILE)
