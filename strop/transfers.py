"""Copies of arrays from the host to a device, which the host does not wait for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def to_device(values: npt.NDArray[Any], device: torch.device | str) -> torch.Tensor:
    """The values as a tensor on a device; on the CPU the tensor shares the array's memory.

    For a GPU they are copied from pinned memory, in order with the work that the device has already been given.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
