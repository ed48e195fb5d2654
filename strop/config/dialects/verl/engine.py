"""What verl's keys say of its training engines: where and in how many parts a model is held."""

from __future__ import annotations

from strop.config.dialects.row import UNSET, Off, Row, never, placement, refused

NO_SHARDS = "one process holds the whole model"
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


def engine(section: str, off: Off) -> tuple[Row, ...]:
    """The rows of a `megatron` section: its parallel sizes are placement, all else in it is refused."""
    return (
        *(placement(f"{section}.{name}", UNSET, NO_SHARDS, can=never, off=off) for name in _PARALLEL),
        refused(
            f"{section}.*",
            UNSET,
            "Megatron's own engine is not built yet; its optimizer is, under `optim`",
            can=never,
            off=off,
        ),
    )
