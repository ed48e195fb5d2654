"""`trainer.engine`: processes that train the model, and how they divide it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.schema.deepspeed_engine import DeepSpeedEngineConfig
from strop.config.schema.rank_network import RankNetworkConfig
from strop.config.units import MAX_SECONDS


class LocalEngineConfig(Section):
    """One process, on the CPU or on one GPU."""

    type: Literal["local"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the model; `auto` is the GPU if there is one, otherwise the CPU."""

    @property
    def ranks(self) -> int:
        """The number of processes, which is 1."""
        return 1


class WrapPolicyConfig(Section):
    """Modules whose parameters are gathered together and freed together."""

    layers: tuple[str, ...] = ()
    """Class names of these modules; empty for the decoder layers that the model names."""
    min_parameters: int = Field(0, ge=0)
    """Minimum number of parameters of such a module; those of a smaller one are gathered with the module around it."""


class Fsdp2EngineConfig(Section):
    """Several processes (ranks), each with a shard of every parameter, gradient and optimizer state (FSDP2)."""

    type: Literal["fsdp2"] = "fsdp2"
    ranks: int = Field(2, gt=0)
    """Number of processes, including the run's own; on GPUs each process has its own GPU."""
    replicate: int = Field(1, gt=0)
    """Number of replicas of the model (HSDP): each replica is sharded over `ranks / replicate` ranks, and gradients
    are summed over the replicas."""
    sequence_parallel: int = Field(1, gt=0)
    """Number of ranks that divide the tokens of a micro-batch (Ulysses): activations of one rank shrink by that factor.
    `microbatch` counts the tokens of all of them; the model's attention heads must be a multiple."""
    tensor_parallel: int = Field(1, gt=0)
    """Number of ranks that divide each layer's matrices and attention heads (tensor parallelism), for models with a
    plan in transformers; FSDP2 shards the parts over the other ranks."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the ranks; `auto` is one GPU per rank if there are GPUs, otherwise the CPU."""
    reshard_after_forward: bool = True
    """Free a layer's gathered parameters after its forward pass and gather them again for the backward pass; false
    keeps them in memory between the two."""
    cpu_offload: bool = False
    """Keep shards of parameters, gradients and optimizer states in the CPU's memory; the optimizer updates them
    there."""
    reference_cpu_offload: bool = False
    """Keep the shards of frozen models (the reference model, teachers) in the CPU's memory."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type in which gradients are summed over ranks in mixed precision (`model.compute_dtype`)."""
    gradient_sync: Literal["each_microbatch", "last_microbatch"] = "each_microbatch"
    """Moment at which gradients are summed over the ranks of a replica: after each micro-batch, or after the last one
    of a batch, which communicates less, and until then each rank holds the gradients of all parameters. Over
    replicas they are always summed after the last one."""
    wrap: WrapPolicyConfig = WrapPolicyConfig()
    """Modules whose parameters are gathered together."""
    forward_prefetch: int = Field(0, ge=0)
    """Number of layers whose parameters are gathered ahead of the one that runs, in addition to FSDP2's own
    overlap."""
    backward_prefetch: int = Field(1, gt=0)
    """Number of layers whose parameters are gathered ahead of the one whose backward pass runs; 1 is FSDP2's own
    overlap."""
    hang_timeout_seconds: float = Field(600.0, gt=0, le=MAX_SECONDS)
    """Maximum time, in seconds, for which the other ranks wait for a rank that is stopped or makes no progress; then
    the run ends with exit code 75, or restarts its trainer. It is also the timeout of collective operations (gloo and
    NCCL)."""
    network: RankNetworkConfig = RankNetworkConfig()
    """Network between the ranks."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.ranks % (self.replicate * self.sequence_parallel * self.tensor_parallel):
            yield (
                f"ranks ({self.ranks}) is not a multiple of replicate ({self.replicate}) x sequence_parallel "
                f"({self.sequence_parallel}) x tensor_parallel ({self.tensor_parallel}); write sizes whose product "
                "divides the ranks"
            )


TrainingEngineConfig = Annotated[
    LocalEngineConfig | Fsdp2EngineConfig | DeepSpeedEngineConfig, Field(discriminator="type")
]
