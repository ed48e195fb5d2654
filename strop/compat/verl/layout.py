"""Ledger rows of verl's keys that divide the trained models over the trainer's ranks: FSDP's and Megatron's sizes,
offload, and Ulysses.

Where the run uses its GPUs, they become the layout of `trainer.engine: fsdp2`. The gradient is the same in every
layout; where FSDP2 stands in for another mechanism, a notice says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    always,
    only,
    placement,
    unless,
    written_by,
)
from strop.compat.ledger.placement_notes import NO_SHARDS
from strop.compat.ledger.value_types import INTEGER, NUMBER, STRING_OR_LIST, ValueType, nullable, one_of
from strop.compat.verl import switches
from strop.compat.verl.gpus import gpus, uses_gpus
from strop.config.schema import Run
from strop.config.schema.training_engine import Fsdp2EngineConfig

_ACTOR, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
_FSDP, _MEGATRON = f"{_ACTOR}.fsdp_config", f"{_ACTOR}.megatron"
_ULYSSES = f"{_ACTOR}.ulysses_sequence_parallel_size"
_REF_OFFLOAD = f"{_REF}.fsdp_config.param_offload"
_TIMEOUT = "actor_rollout_ref.nccl_timeout"
_SIZE = f"{_FSDP}.fsdp_size"
_LAYERS, _MIN_PARAMETERS = (
    f"{_FSDP}.wrap_policy.{name}" for name in ("transformer_layer_cls_to_wrap", "min_num_params")
)
_OFFLOAD = tuple(f"{_FSDP}.{name}" for name in ("param_offload", "optimizer_offload"))
_MEGATRON_OFFLOAD = tuple(
    f"{_MEGATRON}.{name}" for name in ("param_offload", "grad_offload", "optimizer_offload")
)
_CONTEXT, _TENSOR = (
    f"{_MEGATRON}.{name}" for name in ("context_parallel_size", "tensor_model_parallel_size")
)
_UNSUPPORTED_SIZES: Mapping[str, int | None] = {
    f"{_MEGATRON}.pipeline_model_parallel_size": 1,
    f"{_MEGATRON}.virtual_pipeline_model_parallel_size": None,
    f"{_MEGATRON}.expert_model_parallel_size": 1,
    f"{_MEGATRON}.expert_tensor_parallel_size": None,
}
"""Sizes of pipelines and of experts' groups, which must be 1 or null, with their defaults."""
_DTYPES = {"fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}
_SHARDS_OFFLOADED = (
    "FSDP2's CPUOffloadPolicy stands in for it: shards stay in the CPU's memory, where the optimizer runs"
)
STANDS_IN: Mapping[str, str] = {
    **dict.fromkeys((*_OFFLOAD, *_MEGATRON_OFFLOAD), _SHARDS_OFFLOADED),
    _REF_OFFLOAD: "FSDP2's CPUOffloadPolicy stands in for it: shards stay in the CPU's memory",
    _CONTEXT: "Ulysses sequence parallelism stands in for it, with the same gradient",
    _TENSOR: "torch's tensor parallelism stands in for it, with the same gradient; FSDP2 shards the parts over the "
    "other ranks",
}
"""Notices of the mechanism that takes the place of a key's own."""


def write_layout(run: Run) -> Mapping[str, Any]:
    """Write the layout of the trainer's ranks as keys of verl's FSDP engine."""
    engine = run.trainer.engine
    if not isinstance(engine, Fsdp2EngineConfig):
        return {}
    size = -1 if engine.replicate == 1 else engine.ranks // engine.replicate
    layers = list(engine.wrap.layers) or None
    return {
        _TIMEOUT: engine.hang_timeout_seconds,
        _ULYSSES: engine.sequence_parallel,
        _SIZE: size,
        **dict.fromkeys(_OFFLOAD, engine.cpu_offload),
        f"{_FSDP}.reshard_after_forward": engine.reshard_after_forward,
        f"{_FSDP}.forward_prefetch": engine.forward_prefetch > 0,
        _LAYERS: layers,
        _MIN_PARAMETERS: engine.wrap.min_parameters,
        f"{_FSDP}.mixed_precision.reduce_dtype": {"float32": "fp32", "bfloat16": "bf16"}[engine.reduce_dtype],
        _REF_OFFLOAD: engine.reference_cpu_offload,
    }


@written_by(write_layout)
def layout(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the layout of the ranks; nothing where a single process trains."""
    ranks = gpus(foreign).get("trainer.engine.ranks", 1)
    timeout = foreign[_TIMEOUT]
    waits = {} if ranks == 1 or timeout == 600 else {"trainer.engine.hang_timeout_seconds": timeout}
    return {**layout_of_ranks(foreign, ranks), **waits}


def layout_of_ranks(foreign: ForeignValues, ranks: int) -> dict[str, Any]:
    """Fields of `trainer.engine` for a number of ranks, without those that have their default.

    Raises ConfigError for sizes that do not divide the ranks.
    """
    if ranks == 1:
        return {}
    read = _fsdp_layout if switches.megatron(foreign) else _megatron_layout
    found = read(foreign, ranks)
    found["reference_cpu_offload"] = bool(foreign[_REF_OFFLOAD])
    defaults = Fsdp2EngineConfig()
    settings = {
        f"trainer.engine.{name}": value for name, value in found.items() if value != getattr(defaults, name)
    }
    return settings | _wrap_policy(foreign)


def _fsdp_layout(foreign: ForeignValues, ranks: int) -> dict[str, Any]:
    size, sequence = foreign[_SIZE], foreign[_ULYSSES]
    shards = size if 0 < size < ranks else ranks
    if ranks % shards:
        raise foreign.error_for(
            _SIZE, f"{_SIZE} is {size}, which does not divide the trainer's {ranks} ranks."
        )
    if sequence < 1 or shards % sequence:
        raise foreign.error_for(
            _ULYSSES,
            f"{_ULYSSES} is {sequence}, which does not divide the {shards} ranks over which the model is sharded; "
            "write a size that divides them.",
        )
    fsdp2 = foreign[f"{_ACTOR}.strategy"] == "fsdp2"
    return {
        "replicate": ranks // shards,
        "sequence_parallel": sequence,
        "cpu_offload": any(foreign[key] for key in _OFFLOAD)
        or (fsdp2 and foreign[f"{_FSDP}.offload_policy"]),
        "reshard_after_forward": bool(foreign[f"{_FSDP}.reshard_after_forward"]),
        "forward_prefetch": int(bool(foreign[f"{_FSDP}.forward_prefetch"])),
        "reduce_dtype": _DTYPES[foreign[f"{_FSDP}.mixed_precision.reduce_dtype"]],
    }


def _megatron_layout(foreign: ForeignValues, ranks: int) -> dict[str, Any]:
    for key in _UNSUPPORTED_SIZES:
        if foreign[key] not in (None, 1):
            raise foreign.error_for(
                key,
                f"{key} is {foreign[key]}, and Strop has no pipeline or expert parallelism. Write 1: FSDP2 divides "
                f"every layer, experts included, over all ranks, and {_CONTEXT} divides the tokens of long sequences.",
            )
    sequence, tensor = foreign[_CONTEXT] or 1, foreign[_TENSOR] or 1
    for key, size, others in ((_TENSOR, tensor, ranks), (_CONTEXT, sequence, ranks // tensor)):
        if size < 1 or others % size:
            raise foreign.error_for(
                key,
                f"{key} is {size}, which does not divide "
                + (f"the trainer's {ranks} ranks." if key == _TENSOR else f"{others} groups of ranks."),
            )
    return {
        "sequence_parallel": sequence,
        "tensor_parallel": tensor,
        "cpu_offload": any(foreign[key] for key in _MEGATRON_OFFLOAD),
    }


def _wrap_policy(foreign: ForeignValues) -> dict[str, Any]:
    layers, minimum = foreign[_LAYERS], foreign[_MIN_PARAMETERS]
    settings: dict[str, Any] = {}
    if layers:
        settings["trainer.engine.wrap.layers"] = [layers] if isinstance(layers, str) else layers
    if minimum:
        settings["trainer.engine.wrap.min_parameters"] = minimum
    return settings


def _row(
    key: str,
    default: Any,
    field: str,
    *,
    inactive: InactiveCheck | None = None,
    value_type: ValueType | None = None,
    one_process: tuple[Any, ...] = (),
) -> KeyMapping:
    """The row of a key that needs ranks: a single process takes its default and the values in `one_process`."""

    def warn(foreign: ForeignValues) -> str | None:
        return STANDS_IN[key] if uses_gpus(foreign) and foreign[key] != default else None

    row = placement(
        key,
        default,
        NO_SHARDS,
        supported=only(default, *one_process),
        value_type=value_type,
        inactive=inactive,
        fields=(f"trainer.engine.{field}",),
        read=layout,
    )
    return replace(row, warn=warn) if key in STANDS_IN else row


TIMEOUT = replace(
    _row(_TIMEOUT, 600, "hang_timeout_seconds", value_type=NUMBER),
    supported=always,
    note="of collective operations",
)
ULYSSES = _row(_ULYSSES, 1, "sequence_parallel")
MIN_PARAMETERS = _row(_MIN_PARAMETERS, 0, "wrap.min_parameters")
OFFLOAD = tuple(_row(key, False, "cpu_offload") for key in _OFFLOAD)
SIZE = _row(_SIZE, -1, "replicate", one_process=(1,))
REF_OFFLOAD = _row(_REF_OFFLOAD, False, "reference_cpu_offload")
NOT_ON_PAGE = (
    _row(_LAYERS, None, "wrap.layers", value_type=nullable(STRING_OR_LIST)),
    _row(f"{_FSDP}.forward_prefetch", False, "forward_prefetch"),
    _row(f"{_FSDP}.reshard_after_forward", True, "reshard_after_forward"),
    _row(
        f"{_FSDP}.offload_policy",
        False,
        "cpu_offload",
        inactive=unless(f"{_ACTOR}.strategy", "fsdp2"),
    ),
    _row(
        f"{_FSDP}.mixed_precision.reduce_dtype",
        "fp32",
        "reduce_dtype",
        value_type=one_of(*_DTYPES),
    ),
    _row(_CONTEXT, 1, "sequence_parallel", inactive=switches.megatron),
    _row(_TENSOR, 1, "tensor_parallel", inactive=switches.megatron),
    *(_row(key, False, "cpu_offload", inactive=switches.megatron) for key in _MEGATRON_OFFLOAD),
    *(
        _row(key, default, "ranks", inactive=switches.megatron, value_type=nullable(INTEGER))
        for key, default in _UNSUPPORTED_SIZES.items()
    ),
)
"""Rows of keys that the page of verl does not list."""
