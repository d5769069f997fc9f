"""The columns of TensorBoard's HPARAMS tab: those that matter first, and the same for every rung.

The tab takes its columns from the first run that it finds. So each run names the columns of all
rungs, and runs of different rungs can be compared.
"""

from collections.abc import Mapping
from typing import Any

from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard.summary import hparams

# The tab first shows five settings and five figures. The settings are those that are marked to
# differ, in alphabetical order.
FIRST = ["script", "seed", "stop_reward", "threads", "torch"]
OUTCOME = ["fps", "minutes", "avg_reward", "solved", "frames", "updates", "episodes", "seconds"]
OUTCOME += ["reached_frames", "reached_minutes"]
# Settings that only some rungs have; a test says which are missing here.
NUMBERS = [
    "replay_size",
    "replay_initial",
    "target_sync",
    "envs",
    "steps",
    "stack",
    "rollout",
    "sync_frames",
    "player_timeout",
    "noop_max",
    "max_pool",
    "episodic_life",
    "fire_reset",
    "clip_reward",
    "any_game",
    "learning_rate_final",
    "adam_epsilon",
    "epochs",
    "epochs_final",
    "averaged",
    "trial_games",
    "trace",
    "epsilon_floor",
    "players",
    "n_steps",
    "message_steps",
    "frames_per_update",
    "sync_updates",
]
TEXTS = ["play_device", "resize", "precision", "address", "left_out"]


def summarize(settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The TensorBoard summaries of a run: the columns, its settings, and its end.

    Args:
        settings: by name: numbers, texts and switches, including those of the machine.
    """
    every = dict.fromkeys(TEXTS, "") | dict.fromkeys(NUMBERS, 0.0) | dict(settings)
    columns, *_ = hparams(every, {f"outcome/{name}": 0.0 for name in OUTCOME})
    plugin = columns.value[0].metadata.plugin_data
    told = HParamsPluginData.FromString(plugin.content)
    for info in told.experiment.hparam_infos:
        info.differs = info.name in FIRST
        info.display_name = "rung" if info.name == "script" else info.name
    for info in told.experiment.metric_infos:
        info.display_name = info.name.tag.removeprefix("outcome/")
    plugin.content = told.SerializeToString()
    _, begin, end = hparams(dict(settings), {})
    return columns, begin, end
