"""Arrays sent to the training device in one copy, for which nobody waits.

A copy from ordinary memory to the GPU first waits until the GPU has finished all earlier work. From
pinned memory (which the system never moves) the GPU reads the data when it is ready, and the CPU
continues. Every copy has a launch cost, so arrays that belong together are sent together.
"""

import math

import numpy as np
import torch

ASYNCHRONOUS = ("cuda",)  # kinds of devices that work through their own queue


def is_asynchronous(device: torch.device) -> bool:
    """Whether the CPU continues while this device copies and computes."""
    return device.type in ASYNCHRONOUS


class Parcel:
    """Arrays side by side in memory that is pinned for a GPU: fill them, then send them.

    torch owns the memory, and gives it to nobody else before the copy is done.

    Args:
        device: where they go.
        contents: shape and dtype of each array.
    """

    def __init__(
        self, device: torch.device, *contents: tuple[tuple[int, ...], np.dtype | type]
    ) -> None:
        self._device = device
        self._places: list[tuple[int, int]] = []
        end = 0
        for shape, dtype in contents:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            self._places.append((end, end + size))
            end += -(-size // 16) * 16  # a multiple of the size of every dtype
        self._memory = torch.empty(end, dtype=torch.uint8, pin_memory=is_asynchronous(device))
        memory = self._memory.numpy()
        self.arrays = [
            memory[begin:end].view(dtype).reshape(shape)
            for (begin, end), (shape, dtype) in zip(self._places, contents, strict=True)
        ]

    def send(self) -> list[torch.Tensor]:
        """The arrays as tensors on the device; on the CPU they share their memory."""
        tensors = [torch.from_numpy(array) for array in self.arrays]
        if not is_asynchronous(self._device):
            return [tensor.to(self._device) for tensor in tensors]
        sent = self._memory.to(self._device, non_blocking=True)
        return [
            sent[begin:end].view(tensor.dtype).view(tensor.shape)
            for (begin, end), tensor in zip(self._places, tensors, strict=True)
        ]


def upload(device: torch.device, *arrays: np.ndarray | torch.Tensor) -> list[torch.Tensor]:
    """The arrays as tensors on the device; on the CPU they share their memory.

    Tensors are returned as they are; arrays and tensors cannot be mixed.
    """
    if tensors := [array for array in arrays if isinstance(array, torch.Tensor)]:
        return tensors
    outside = [array for array in arrays if isinstance(array, np.ndarray)]
    if not is_asynchronous(device):
        return [torch.from_numpy(array).to(device) for array in outside]
    parcel = Parcel(device, *((array.shape, array.dtype) for array in outside))
    for place, array in zip(parcel.arrays, outside, strict=True):
        place[...] = array
    return parcel.send()


def gather(device: torch.device, *tables: tuple[np.ndarray, np.ndarray]) -> list[torch.Tensor]:
    """Rows of tables as tensors on the device, gathered directly into memory that the GPU reads.

    Args:
        device: where they go.
        tables: a table and the numbers of its rows, int64 of any shape; all rows must exist.
    """
    parcel = Parcel(
        device, *(((*rows.shape, *table.shape[1:]), table.dtype) for table, rows in tables)
    )
    for place, (table, rows) in zip(parcel.arrays, tables, strict=True):
        # NumPy has copied a few hundred frames before torch has woken up its threads. In any
        # other mode NumPy would copy twice, first into memory of its own.
        np.take(table, rows, axis=0, out=place, mode="clip")
    return parcel.send()


class Download:
    """The numbers that a tensor has now, on their way from the device; whoever reads them waits."""

    def __init__(self, tensor: torch.Tensor) -> None:
        there = is_asynchronous(tensor.device)
        self._place = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=there)
        self._place.copy_(tensor, non_blocking=there)
        self._arrived = torch.cuda.Event() if there else None
        if self._arrived:
            self._arrived.record()

    def read(self) -> np.ndarray:
        """The numbers, as they were when this was made."""
        if self._arrived:
            self._arrived.synchronize()
        return self._place.numpy()
