"""Reading checkpoints: finding one, and checking that it is complete.

ignite's ``Checkpoint`` writes them to ``RUN_DIR/checkpoints``, see ``lib.running.saving``. The
number in a name is the number of updates: ``latest-12000.pt``, ``best-9000.pt``,
``solved-12345.pt``.
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
        if found := checkpoints_of(path, kind):
            return found[max(found)]
    raise CheckpointError(f"{path} has no checkpoint in a folder {FOLDER}")


def checkpoints_of(folder: Path, kind: str) -> dict[int, Path]:
    """The checkpoints of one kind in a run folder, by their number of updates."""
    return {
        int(match[1]): file
        for file in (folder / FOLDER).glob(f"{kind}-*.pt")
        if (match := re.fullmatch(rf"{kind}-(\d+)\.pt", file.name))
    }


def read_latest(folder: Path) -> tuple[dict[str, Any], str | None]:
    """Load the newest intact checkpoint from which a run can be resumed.

    Returns:
        The checkpoint, and one line if newer ones are damaged.

    Raises:
        CheckpointError: if there is none.
    """
    newest = find_checkpoint(folder, "latest")
    damage = None
    for _, file in sorted(checkpoints_of(folder, "latest").items(), reverse=True):
        try:
            checkpoint = read_checkpoint(file)
        except CheckpointError as error:
            damage = damage or error
            continue
        return checkpoint, f"{damage}; {file.name} takes its place" if damage else None
    raise damage or CheckpointError(f"{newest} is gone")


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
