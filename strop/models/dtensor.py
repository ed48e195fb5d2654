"""Helpers that treat sharded tensors (FSDP2's DTensors, DeepSpeed's parameters) and plain tensors alike.

A parameter that DeepSpeed partitions (ZeRO-3) is empty between two passes; all ranks must call for its full values. A
trained one has a float32 master value, of which each rank holds a part, in every stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor import _redistribute as redistribution
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

Block = tuple[slice, ...]
"""A rectangular part of a tensor: first index and end in each dimension."""


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, or the gathered tensor of a sharded one, for which all ranks must call; detached."""
    if _is_zero_parameter(tensor):
        return full_zero_parameter(tensor)
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, or this rank's part of a sharded one."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_parameter(parameter: Tensor, *, is_gradient_partial: bool = False) -> Tensor:
    """A parameter inside the forward pass of its model: the parameter itself, or gathered from tensor-parallel ranks.

    `is_gradient_partial` is whether its gradient is the sum of those of these ranks; otherwise theirs are equal.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    everywhere = [Replicate()] * parameter.device_mesh.ndim
    partial = [Partial()] * parameter.device_mesh.ndim if is_gradient_partial else None
    return parameter.redistribute(placements=everywhere).to_local(grad_placements=partial)


def local_block(like: DTensor) -> Block:
    """This rank's part of a sharded tensor."""
    shape, offset = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    return tuple(slice(first, first + count) for first, count in zip(offset, shape, strict=True))


def distribute_like(
    read: Callable[[Block], Tensor], like: DTensor, device: torch.device | None = None
) -> DTensor:
    """A tensor with `like`'s shape and layout, on `device` (None: `like`'s); `read` returns this rank's part."""
    own = read(local_block(like)).to(device or like.device)
    return DTensor.from_local(
        own, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def forget_meshes() -> None:
    """Empty torch's caches of sharded operations, so that this process can join other ranks afterwards.

    A later mesh of the same shape equals an earlier one, whose process groups exist no longer.
    """
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    redistribution._gen_transform_infos.cache_clear()
    redistribution._planner_cache.clear()


def _is_zero_parameter(tensor: Tensor) -> bool:
    """Whether DeepSpeed holds the tensor's value, or its master value, in parts."""
    return hasattr(tensor, "ds_id") or hasattr(tensor, "_hp_mapping")


@torch.no_grad()
def full_zero_parameter(parameter: Any) -> Tensor:
    """The full value: of a trained parameter its float32 master, of a frozen one the value that computes."""
    if parameter.requires_grad:
        from deepspeed.utils import safe_get_full_fp32_param

        master: Tensor = safe_get_full_fp32_param(parameter)
        return master
    if not hasattr(parameter, "ds_id"):
        whole: Tensor = parameter.detach()
        return whole
    parameter.all_gather()
    gathered: Tensor = parameter.detach().clone()
    parameter.partition()
    return gathered
