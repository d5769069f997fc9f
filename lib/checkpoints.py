"""Reading checkpoints: finding one, and checking that it is complete.

ignite's ``Checkpoint`` writes them to ``RUN_DIR/checkpoints`` (see ``lib.saving``). The number in
a name is the number of updates: ``latest-12000.pt``, ``best-9000.pt``, ``solved-12345.pt``.
"""

import pickle
import re
import sys
from pathlib import Path
from typing import Any

import torch

FOLDER = "checkpoints"
KINDS = ("solved", "best", "latest")  # play.py takes the first kind that exists
SETTINGS = "settings"  # the key of the script and the hyperparameters


class CheckpointError(Exception):
    """There is no checkpoint, or it cannot be used; the message says why in one line."""


def find_checkpoint(path: Path, *kinds: str) -> Path:
    """The newest checkpoint of the first kind that exists.

    Args:
        path: a run folder, or a checkpoint.
        kinds: some of ``KINDS``, the preferred one first.

    Raises:
        CheckpointError: if there is none.
    """
    if path.is_file():
        return path
    for kind in kinds:
        found = {
            int(match[1]): file
            for file in (path / FOLDER).glob(f"{kind}-*.pt")
            if (match := re.fullmatch(rf"{kind}-(\d+)\.pt", file.name))
        }
        if found:
            return found[max(found)]
    raise CheckpointError(f"{path} has no checkpoint in a folder {FOLDER}")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint of this project; large tensors stay in the file until they are used.

    Raises:
        CheckpointError: if the file is damaged, or not a checkpoint of this project.
    """
    mapped = sys.platform != "win32"  # which cannot delete mapped files, and old ones get deleted
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).strip().split("\n")[0].split(". ")[0][:120] or type(error).__name__
        raise CheckpointError(f"{path} is damaged, or not a checkpoint: {reason}") from None
    if not isinstance(checkpoint, dict) or SETTINGS not in checkpoint:
        raise CheckpointError(f"{path} is not a checkpoint of this project")
    return checkpoint
