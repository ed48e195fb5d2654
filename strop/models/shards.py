"""Tensors whose parts stand on several ranks (FSDP2's DTensors), and plain ones, treated alike."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself; of a sharded one all parts together, for which every rank must ask at once."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: Tensor) -> Tensor:
    """The tensor itself; of a sharded one this rank's rows."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def laid_out(rows: Callable[[int, int], Tensor], like: DTensor) -> DTensor:
    """A tensor of `like`'s shape laid out as that is; of its rows, `rows` gives those from one to before
    another, and is asked for this rank's alone."""
    mesh = like.device_mesh
    share = -(-like.shape[0] // mesh.size())  # the last ranks may have fewer, or none
    first = min(mesh.get_local_rank() * share, like.shape[0])
    own = rows(first, min(first + share, like.shape[0])).to(like.device)
    return DTensor.from_local(
        own, mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
