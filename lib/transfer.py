"""Asynchronous copies to and from the training device.

A copy from ordinary memory to the GPU waits for all earlier work of the GPU. From pinned memory,
which the system never moves, the GPU copies when it is ready, and the CPU continues.
"""

import numpy as np
import torch

ASYNCHRONOUS = ("cuda",)  # device types with their own queue of work


def is_asynchronous(device: torch.device) -> bool:
    """Return whether the CPU continues while this device copies and computes."""
    return device.type in ASYNCHRONOUS


def upload(device: torch.device, *arrays: np.ndarray) -> list[torch.Tensor]:
    """Return the arrays as tensors on the device; on the CPU they share memory."""
    pinned, tensors = is_asynchronous(device), map(torch.from_numpy, arrays)
    return [(t.pin_memory() if pinned else t).to(device, non_blocking=pinned) for t in tensors]


def gather(device: torch.device, *tables: tuple[torch.Tensor, np.ndarray]) -> list[torch.Tensor]:
    """Gather rows of CPU tables into tensors on the device, via pinned memory for a GPU.

    Each table comes with row numbers, int64 of any shape; all rows must exist.
    """
    pinned, sent = is_asynchronous(device), []
    for table, numbers in tables:
        shape = (*numbers.shape, *table.shape[1:])
        place = torch.empty(shape, dtype=table.dtype, pin_memory=pinned)
        # NumPy copies a few hundred frames in less time than torch needs to wake its threads.
        # Without "clip", it would copy twice.
        np.take(table.numpy(), numbers, axis=0, out=place.numpy(), mode="clip")
        sent.append(place.to(device, non_blocking=pinned))
    return sent


@torch.library.custom_op("pong::take_rows", mutates_args=())
def take_rows(table: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return ``table[numbers]``, and keep the compiler from fusing it with later operations.

    A fused loop would compute a pixel's address again for every use: an update of 256 states took
    61 ms instead of 48 on two cores.
    """
    # Copying whole rows takes a tenth of the time of table[numbers].
    return table.index_select(0, numbers.flatten()).unflatten(0, numbers.shape)


@take_rows.register_fake
def _shape_of_rows(table: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return table.new_empty((*numbers.shape, *table.shape[1:]))


class Download:
    """An asynchronous copy of a tensor's present values to the CPU; ``read`` waits for it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        pinned = is_asynchronous(tensor.device)
        self._place = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        self._place.copy_(tensor, non_blocking=pinned)
        self._arrived = torch.cuda.Event() if pinned else None
        if self._arrived:
            self._arrived.record()

    def read(self) -> np.ndarray:
        if self._arrived:
            self._arrived.synchronize()
        return self._place.numpy()
