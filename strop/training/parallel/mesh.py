"""Dimensions of parallel training, and the device mesh of its ranks."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from strop.errors import PlacementError

_LONG_NAMES = {"sp": "sequence parallelism", "tp": "tensor parallelism"}


@dataclass(frozen=True, slots=True)
class ParallelDims:
    """Sizes of the mesh's dimensions; their product is the number of ranks.

    Raises PlacementError for dimensions that are not supported yet.
    """

    dp: int
    """Data-parallel size: ranks that train on different experiences and each hold a shard of the model."""
    sp: int = 1
    """Sequence-parallel size: ranks that get the same experiences and split their tokens."""
    tp: int = 1
    """Tensor-parallel size: ranks that get the same experiences and split each layer's matrices."""

    def __post_init__(self) -> None:
        for name, meaning in _LONG_NAMES.items():
            if getattr(self, name) != 1:
                raise PlacementError(
                    f"trainer.engine: {meaning} ({name}) is {getattr(self, name)}, and only 1 is supported."
                )

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.dp * self.sp * self.tp

    def data_rank(self, rank: int) -> int:
        """The data-parallel rank of a rank; ranks with the same one get the same experiences."""
        return rank // (self.sp * self.tp)

    def build_mesh(self, device_type: str) -> DeviceMesh:
        """The mesh of all ranks, with dimensions `dp`, `sp` and `tp`; every rank calls it."""
        return init_device_mesh(device_type, (self.dp, self.sp, self.tp), mesh_dim_names=("dp", "sp", "tp"))
