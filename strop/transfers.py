"""Copies of arrays from the host to a device, which the host does not wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True)
class Positions:
    """Numbers of tokens, on the host and on a device: neither waits for the other to know them."""

    on_host: npt.NDArray[np.int64]
    """[n]"""
    on_device: torch.Tensor
    """[n] int64"""

    @classmethod
    def of(cls, numbers: npt.NDArray[np.int64], device: torch.device | str) -> Positions:
        """Numbers [n] of the host."""
        return cls(numbers, to_device(numbers, device))

    def __len__(self) -> int:
        return len(self.on_host)

    def __getitem__(self, part: slice) -> Positions:
        return Positions(self.on_host[part], self.on_device[part])


def to_device(values: npt.NDArray[Any] | torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Values of the host as a tensor on a device; on the CPU the tensor shares their memory.

    For a GPU they are copied from pinned memory, in order with the work that the device has already been given.
    """
    tensor = values if isinstance(values, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
