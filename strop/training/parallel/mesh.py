"""Dimensions of parallel training, and the device meshes of its ranks."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from strop.config.schema.trainer import DeepSpeedEngineConfig, Fsdp2EngineConfig, TrainingEngineConfig
from strop.errors import PlacementError
from strop.models.packed_attention.model_ranks import SequenceGroup


@dataclass(frozen=True, slots=True)
class ParallelDims:
    """Sizes of the dimensions of parallel training; their product is the number of ranks.

    Raises PlacementError for replicas that do not divide the data-parallel ranks.
    """

    dp: int
    """Data-parallel size: ranks that train on different experiences."""
    replicate: int = 1
    """Number of replicas of the model among the data-parallel ranks; a replica is sharded over its ranks."""
    sp: int = 1
    """Sequence-parallel size: ranks that get the same experiences and split their tokens."""
    tp: int = 1
    """Tensor-parallel size: ranks that get the same experiences and split each layer's matrices."""

    def __post_init__(self) -> None:
        if self.dp % self.replicate:
            raise PlacementError(
                f"trainer.engine: {self.dp} data-parallel ranks cannot be divided into {self.replicate} replicas of "
                "the model. Write a `replicate` that divides them."
            )

    @classmethod
    def of(cls, section: TrainingEngineConfig) -> ParallelDims:
        """The dimensions of a section of the run file."""
        if isinstance(section, Fsdp2EngineConfig):
            sp, tp = section.sequence_parallel, section.tensor_parallel
            return cls(dp=section.ranks // (sp * tp), replicate=section.replicate, sp=sp, tp=tp)
        if isinstance(section, DeepSpeedEngineConfig):
            return cls(dp=section.ranks // section.sequence_parallel, sp=section.sequence_parallel)
        return cls(dp=1 if section.workers == "auto" else section.workers)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.dp * self.sp * self.tp

    @property
    def shard_ranks(self) -> int:
        """Number of ranks over which one replica is sharded, without those of tensor parallelism."""
        return self.dp // self.replicate * self.sp

    @property
    def replica_ranks(self) -> int:
        """Number of ranks of one replica; the first of them hold all parameters."""
        return self.shard_ranks * self.tp

    def data_rank(self, rank: int) -> int:
        """The data-parallel rank of a rank; ranks with the same one get the same experiences."""
        return rank // (self.sp * self.tp)

    def leaders(self) -> range:
        """The first of the ranks that get the same experiences, for each data-parallel rank."""
        return range(0, self.ranks, self.sp * self.tp)

    def build_meshes(self, device_type: str) -> RankMeshes:
        """The meshes of all ranks; every rank calls it.

        Parameters are sharded over sequence-parallel ranks as over data-parallel ones.
        """
        parameters = init_device_mesh(
            device_type,
            (self.replicate, self.shard_ranks, self.tp),
            mesh_dim_names=("replicate", "shard", "tp"),
        )
        if self.sp == 1:
            return RankMeshes(parameters, None)
        tokens = init_device_mesh(
            device_type, (self.dp, self.sp, self.tp), mesh_dim_names=("data", "sequence", "tensor")
        )
        return RankMeshes(parameters, SequenceGroup.of(tokens["sequence"].get_group()))


@dataclass(frozen=True, slots=True)
class RankMeshes:
    """Groups of ranks that communicate with each other."""

    parameters: DeviceMesh
    """Mesh over which parameters are divided, with dimensions `replicate`, `shard` and `tp`."""
    sequence: SequenceGroup | None
    """Ranks that divide the tokens of a micro-batch; None without sequence parallelism."""

    @property
    def groups(self) -> list[ProcessGroup]:
        """Process groups of this rank."""
        own = [] if self.sequence is None else [self.sequence.group]
        return [*self.parameters.get_all_groups(), *own]
