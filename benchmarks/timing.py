"""Where something is measured, and the time there."""

from time import perf_counter

import torch

from benchmarks import UserError


def chosen_device(cuda: bool) -> torch.device:
    """The device that ``--cuda`` asks for.

    Raises:
        UserError: there is no such device.
    """
    if cuda and not torch.cuda.is_available():
        raise UserError("--cuda: torch finds no usable GPU here")
    return torch.device("cuda" if cuda else "cpu")


def now(device: torch.device) -> float:
    """The time in seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
