"""Tensors whose parts stand on several ranks (FSDP2's DTensors), and plain ones, treated alike."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself; of a sharded one all parts together, for which every rank must ask at once."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor that every rank has, laid out as `like` is, where the two are of one shape."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    # No rank sends anything: each cuts its own part.
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
