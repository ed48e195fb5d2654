"""Ledger rows of verl's parallelism and sharding keys, shared by actor, reference model and critic."""

from __future__ import annotations

from strop.dialects.ledger.key_mapping import UNSET, InactiveCheck, KeyMapping, never, placement, refused
from strop.dialects.ledger.placement_notes import NO_SHARDS

_PARALLEL = (
    "tensor_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "sequence_parallel",
    "use_distributed_optimizer",
    "use_dist_checkpointing",
    "dist_checkpointing_path",
    "param_offload",
    "grad_offload",
    "optimizer_offload",
)


def megatron_parallelism_rows(section: str, inactive: InactiveCheck) -> tuple[KeyMapping, ...]:
    """Rows of a `megatron` section: parallel sizes are placement, all other keys are refused."""
    return (
        *(
            placement(f"{section}.{name}", UNSET, NO_SHARDS, supported=never, inactive=inactive)
            for name in _PARALLEL
        ),
        refused(
            f"{section}.*",
            UNSET,
            "Strop has no Megatron engine yet; only Megatron's optimizer keys under `optim` are supported",
            supported=never,
            inactive=inactive,
        ),
    )
