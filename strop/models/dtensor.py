"""Helpers that treat sharded tensors (FSDP2's DTensors, DeepSpeed's parameters) and plain tensors alike."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from strop.models.zero_parameters import full_zero_parameter, is_zero_parameter


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, or the gathered tensor of a sharded one, for which all ranks must call; detached."""
    if is_zero_parameter(tensor):
        return full_zero_parameter(tensor)
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, or this rank's rows of a sharded one."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def distribute_like(
    rows: Callable[[int, int], Tensor], like: DTensor, device: torch.device | None = None
) -> DTensor:
    """A tensor with `like`'s shape and layout, on `device` (None: `like`'s).

    `rows` returns the rows from one number to before another; it is called for this rank's rows only.
    """
    mesh = like.device_mesh
    (count, *_), (first, *_) = compute_local_shape_and_global_offset(like.shape, mesh, like.placements)
    own = rows(first, first + count).to(device or like.device)
    return DTensor.from_local(
        own, mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
