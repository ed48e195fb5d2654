"""verl's engines that train: how models are divided over the trainer's ranks, which layers are recomputed, and the rows
that actor, critic and reference model share.

Where the run uses its GPUs, sizes of FSDP, Megatron and Ulysses become the layout of `trainer.engine: fsdp2`. The
gradient is the same in every layout; where FSDP2 stands in for another mechanism, a notice says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from strop.compat.ledger.key_mapping import (
    ALWAYS_PACKED,
    ANY,
    INTEGER,
    NO_QUANTIZED_TRAINING,
    NO_SHARDS,
    NUMBER,
    ONE_GPU,
    ONE_MACHINE,
    ONE_TRAINER,
    OWN_KERNELS,
    STRING_OR_LIST,
    TRAINER_MICRO_BATCHES,
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    SupportCheck,
    ValueType,
    always,
    any_inactive,
    falsy,
    mapped,
    no_effect,
    nullable,
    one_of,
    only,
    placement,
    placement_section,
    refused,
    same_as,
    unless,
    written_by,
)
from strop.compat.verl import switches
from strop.compat.verl.switches import serving_engine
from strop.config.machine import count_cuda_devices, described_machine
from strop.config.schema import Run
from strop.config.schema.rollout import ServingEngineConfig
from strop.config.schema.run import RayClusterConfig
from strop.config.schema.trainer import Fsdp2EngineConfig


def devices_per_engine(foreign: ForeignValues) -> int:
    """Number of GPUs of one engine; 1 for the native sampler."""
    name = serving_engine(foreign)
    sizes = {
        "vllm": ("tensor_model_parallel_size", "pipeline_model_parallel_size"),
        "sglang": ("tensor_model_parallel_size",),
    }
    return prod(int(foreign[f"actor_rollout_ref.rollout.{size}"]) for size in sizes.get(name or "", ()))


_NODES, _GPUS, _DEVICE = "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.device"
_RELEASE = "actor_rollout_ref.rollout.free_cache_engine"
_DATA_PARALLEL = "actor_rollout_ref.rollout.data_parallel_size"
_HARDWARE = (
    _NODES,
    _GPUS,
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.pipeline_model_parallel_size",
    _DATA_PARALLEL,
)
"""Keys that ask for hardware or an engine; where it lacks, no notice replaces it."""
_RELEASING = ("vllm", "sglang")
"""Engines that free their memory between two phases."""
_WITH_RANKS = {
    NO_SHARDS: "the trainer's ranks hold shards of the model (FSDP2)",
    ONE_TRAINER: "FSDP2 trains on the trainer's ranks",
}
"""Notes on a single process, and what they are where the trainer has ranks."""


def uses_gpus(foreign: ForeignValues) -> bool:
    """Whether the run uses the GPUs that the configuration asks for: they are set and present, and `--here` does not
    replace them."""
    return foreign.is_set(_GPUS) and not foreign.here and _are_present(foreign)


def _are_present(foreign: ForeignValues) -> bool:
    """One node's GPUs are those of this machine; several nodes are a Ray cluster, which the start of the run checks."""
    nodes, gpus = foreign[_NODES], foreign[_GPUS]
    if _on_cpu(foreign):
        return bool(nodes == 1 and gpus > 0)
    if nodes == 1:
        return bool(0 < gpus <= count_cuda_devices())
    machine = described_machine()
    if machine is None:
        return bool(os.environ.get("RAY_ADDRESS"))
    return sum(node.gpus >= gpus for node in machine.nodes) >= nodes


def _on_cpu(foreign: ForeignValues) -> bool:
    """Whether the ranks are processes that share the CPU of this machine."""
    return bool(foreign[_DEVICE] == "cpu")


def write_gpus(run: Run) -> Mapping[str, Any]:
    """Write the number of GPUs of a cluster, or of the trainer's ranks that share them with the engines."""
    if isinstance(run.cluster, RayClusterConfig):
        return {_NODES: run.cluster.nodes, _GPUS: run.cluster.gpus_per_node}
    if run.trainer.engine.device == "cpu":
        return {_DEVICE: "cpu", _NODES: 1, _GPUS: run.trainer.engine.ranks} | _write_data_parallel(run)
    if not run.rollout.colocated:
        return _write_data_parallel(run)
    return {_GPUS: run.trainer.engine.ranks, _RELEASE: run.releases_engine_memory}


def _write_data_parallel(run: Run) -> dict[str, Any]:
    """Write several serving engines that do not share the trainer's GPUs as data-parallel ranks."""
    if run.rollout.pool is None or not isinstance(run.rollout.engine, ServingEngineConfig):
        return {}
    return {_DATA_PARALLEL: run.rollout.pool.engines}


@written_by(write_gpus, off={_GPUS: UNSET, _DATA_PARALLEL: 1})
def gpus(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the GPUs: ranks of the trainer, and the number of engines."""
    if not uses_gpus(foreign):
        return _data_parallel(foreign)
    nodes, per_node = foreign[_NODES], foreign[_GPUS]
    if _on_cpu(foreign):
        return _ranks(per_node) | {"trainer.engine.device": "cpu"} | _data_parallel(foreign)
    each = devices_per_engine(foreign)
    if each > per_node:
        raise foreign.error_for(
            "actor_rollout_ref.rollout.tensor_model_parallel_size",
            f"each engine needs {each} GPUs of one node (tensor_model_parallel_size x "
            f"pipeline_model_parallel_size), and {_GPUS} is {per_node}; write smaller sizes.",
        )
    if nodes == 1:
        return _on_one_node(per_node, each, serving_engine(foreign), bool(foreign[_RELEASE]))
    total = nodes * per_node
    engines = max(1, min(total // 2 // each, nodes * (per_node // each)))
    settings: dict[str, Any] = {
        "cluster.type": "ray",
        "cluster.address": "auto",
        "cluster.nodes": nodes,
        "cluster.gpus_per_node": per_node,
        "rollout.pool.engines": engines,
    }
    return settings | _ranks(total - engines * each)


def _data_parallel(foreign: ForeignValues) -> dict[str, Any]:
    size = foreign[_DATA_PARALLEL] if serving_engine(foreign) is not None else 1
    return {} if size == 1 else {"rollout.pool.engines": size}


def _on_one_node(gpus: int, each: int, engine: str | None, releases: bool) -> dict[str, Any]:
    if engine is None:
        return _ranks(gpus)
    sharing = {
        "rollout.pool.engines": gpus // each,
        "rollout.colocated": True,
        "rollout.release_memory": releases and engine in _RELEASING,
    }
    return _ranks(gpus) | sharing


def _ranks(number: int) -> dict[str, Any]:
    return {} if number == 1 else {"trainer.engine.type": "fsdp2", "trainer.engine.ranks": number}


def one_gpu(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports one GPU on a machine that has a GPU, because a single process trains."""
    return bool(value == 1) and count_cuda_devices() > 0


def _or_present(native: SupportCheck) -> SupportCheck:
    return lambda foreign, value: uses_gpus(foreign) or native(foreign, value)


def with_gpus(row: KeyMapping) -> KeyMapping:
    """The row of a key that needs no replacement where the run uses its GPUs; a notice says what is done instead."""
    native = row.supported
    if not row.is_placement or row.key in _HARDWARE or native is None:
        return row

    if row.fields and row.fields[0].startswith("trainer.engine."):
        return replace(row, supported=_or_present(native))

    def notice(foreign: ForeignValues) -> str | None:
        value = foreign[row.key]
        if not uses_gpus(foreign) or (native(foreign, value) and (row.fields or value == row.default)):
            return None
        return f"without effect: {_WITH_RANKS.get(row.note, row.note)}"

    return replace(row, supported=_or_present(native), warn=notice)


def _not_shared(foreign: ForeignValues) -> str | None:
    if uses_gpus(foreign) and serving_engine(foreign) in _RELEASING and foreign[_NODES] == 1:
        return None
    return "no engine of vLLM or SGLang shares GPUs with the trainer"


RELEASE = mapped(_RELEASE, True, "rollout.release_memory", read=gpus, inactive=_not_shared)
DATA_PARALLEL = placement(
    _DATA_PARALLEL,
    1,
    "each rank is an engine of its own, and engines fill all of n_gpus_per_node where it is set; with --here, there is "
    "one engine",
    supported=lambda foreign, value: value == 1 or serving_engine(foreign) is not None,
    fields=("rollout.pool.engines",),
    read=gpus,
)
NODES = placement(
    _NODES,
    1,
    f"{ONE_MACHINE}; several nodes need a running Ray cluster (RAY_ADDRESS)",
    supported=_or_present(only(1)),
    fields=("cluster.type", "cluster.nodes"),
    read=gpus,
)
GPUS = placement(
    _GPUS,
    8,
    f"{ONE_GPU}; a rank of the trainer on each of them needs a machine that has this number of GPUs",
    supported=_or_present(one_gpu),
    fields=("trainer.engine", "rollout.pool.engines", "rollout.colocated", "cluster.gpus_per_node"),
    read=gpus,
)
DEVICE = placement(
    _DEVICE,
    "cuda",
    "this machine's GPU, or its CPU if there is no GPU",
    value_type=one_of("cuda", "cpu", "npu"),
    supported=only("cuda"),
    fields=("trainer.engine.device",),
    read=gpus,
)


_ACTOR, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
_HALF = ("fp16", "float16")
PARAMETER_DTYPES = {
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    **dict.fromkeys(_HALF, "float32"),
}
"""Data type of `model.dtype` for each name. All float16 values are float32 values."""


def half_parameters(key: str) -> InactiveCheck:
    """Notice for parameters in float16, in which AdamW's state of small gradients is 0."""

    def notice(foreign: ForeignValues) -> str | None:
        if foreign[key] not in _HALF:
            return None
        return (
            "parameters in float16 are trained in float32, which takes twice their memory: the squares of small "
            "gradients are 0 in float16, and AdamW divides by them"
        )

    return notice


NO_PROFILER = "Strop does not profile a run; the metrics have the time of every part of a step"
ONE_SEED = "data.seed seeds all random choices"
ONE_ROUTING = "sampler and trainer compute with one model, so they route alike"


def default_only(key: str, default: Any, instead: str, inactive: InactiveCheck | None = None) -> KeyMapping:
    """A placement key of which only the default needs no replacement."""
    return placement(key, default, instead, supported=only(default), value_type=ANY, inactive=inactive)


def worker_rows(section: str, inactive: InactiveCheck | None = None) -> tuple[KeyMapping, ...]:
    """Rows that actor, critic and reference model share."""
    return (
        no_effect(f"{section}.profiler.*", UNSET, NO_PROFILER),
        no_effect(f"{section}.profile.*", UNSET, NO_PROFILER),
        no_effect(f"{section}.rollout_n", UNSET, "actor_rollout_ref.rollout.n applies"),
        default_only(f"{section}.nccl_timeout", 600, ONE_MACHINE, inactive),
        default_only(f"{section}.entropy_checkpointing", False, OWN_KERNELS, inactive),
        default_only(f"{section}.entropy_from_logits_with_chunking", False, OWN_KERNELS, inactive),
        default_only(f"{section}.entropy_from_logits_chunk_size", 2048, OWN_KERNELS, inactive),
        default_only(f"{section}.pad_to_length", False, ALWAYS_PACKED, inactive),
        placement(f"{section}.use_remove_padding", UNSET, ALWAYS_PACKED),
        *(
            placement_section(f"{section}.{engine}", NO_SHARDS, inactive=inactive)
            for engine in ("fsdp", "veomni", "torchtitan", "automodel", "mindspeed", "engine")
        ),
        placement_section(f"{section}.router_replay", ONE_ROUTING, inactive=inactive),
        refused(
            f"{section}.load_weight", True, "the weights are always loaded; leave it True", inactive=inactive
        ),
    )


def log_prob_rows(section: str, off: InactiveCheck | None = None) -> tuple[KeyMapping, ...]:
    """Rows of the micro-batches in which sampler and reference model compute log-probs: they are the actor's."""

    def row(name: str, default: Any, of_actor: str, dynamic: bool | None = None) -> KeyMapping:
        switch = unless(f"{section}.log_prob_use_dynamic_bsz", dynamic)
        checks = (*(() if off is None else (off,)), *(() if dynamic is None else (switch,)))
        supported = same_as(f"{_ACTOR}.{of_actor}") if of_actor else only(None)
        return placement(
            f"{section}.log_prob_{name}",
            default,
            TRAINER_MICRO_BATCHES,
            supported=supported,
            value_type=None if of_actor else nullable(INTEGER),
            inactive=any_inactive(*checks) if checks else None,
        )

    return (
        row("micro_batch_size", None, "", False),
        row("micro_batch_size_per_gpu", 16, "ppo_micro_batch_size_per_gpu", False),
        row("use_dynamic_bsz", f"${{{_ACTOR}.use_dynamic_bsz}}", "use_dynamic_bsz"),
        row(
            "max_token_len_per_gpu",
            f"${{{_ACTOR}.ppo_max_token_len_per_gpu}}",
            "ppo_max_token_len_per_gpu",
            True,
        ),
    )


ROUTER_LOSSES = ("moe_aux_loss_coeff", "moe_z_loss_coeff")
"""Coefficients of the routers' losses, which Strop has for the actor."""
_LOSSES = ("dsa_indexer_loss_coeff", "mtp_loss_scaling_factor")
"""Coefficients of losses that Megatron adds to the training loss."""
_DROPOUTS = ("attention_dropout", "hidden_dropout")
_BIAS = "moe_router_bias_update_rate"


def megatron_parallelism_rows(
    section: str, inactive: InactiveCheck, unsupported_losses: Sequence[str] = ROUTER_LOSSES
) -> tuple[KeyMapping, ...]:
    """Rows of a `megatron` section: all of its keys are placement, except those that change the training.

    `unsupported_losses` are coefficients that the section may only have at 0, in addition to those that no section
    may have.
    """
    override = f"{section}.override_transformer_config"
    return (
        *(
            _off(f"{override}.{name}", "Strop adds no such loss to the algorithm's loss", inactive)
            for name in (*unsupported_losses, *_LOSSES)
        ),
        *(
            _off(
                f"{override}.{name}",
                "write +actor_rollout_ref.model.override_config.attention_dropout for a model that has it",
                inactive,
            )
            for name in _DROPOUTS
        ),
        _off(f"{override}.{_BIAS}", "Strop does not change a router's bias outside the optimizer", inactive),
        refused(f"{section}.qat.enable", UNSET, NO_QUANTIZED_TRAINING, supported=falsy, inactive=inactive),
        placement_section(section, NO_SHARDS, inactive=inactive),
    )


def _off(key: str, reason: str, inactive: InactiveCheck) -> KeyMapping:
    """A key that may only have a value that switches it off."""
    return refused(key, UNSET, f"{reason}; write 0", supported=falsy, inactive=inactive)


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
_REDUCE_DTYPES = {"fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}
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


@written_by(write_layout, off={"trainer.n_gpus_per_node": UNSET})
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
        "reduce_dtype": _REDUCE_DTYPES[foreign[f"{_FSDP}.mixed_precision.reduce_dtype"]],
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


def _layout_row(
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
    _layout_row(_TIMEOUT, 600, "hang_timeout_seconds", value_type=NUMBER),
    supported=always,
    note="of collective operations",
)
ULYSSES = _layout_row(_ULYSSES, 1, "sequence_parallel")
MIN_PARAMETERS = _layout_row(_MIN_PARAMETERS, 0, "wrap.min_parameters")
OFFLOAD = tuple(_layout_row(key, False, "cpu_offload") for key in _OFFLOAD)
SIZE = _layout_row(_SIZE, -1, "replicate", one_process=(1,))
REF_OFFLOAD = _layout_row(_REF_OFFLOAD, False, "reference_cpu_offload")
NOT_ON_PAGE = (
    _layout_row(_LAYERS, None, "wrap.layers", value_type=nullable(STRING_OR_LIST)),
    _layout_row(f"{_FSDP}.forward_prefetch", False, "forward_prefetch"),
    _layout_row(f"{_FSDP}.reshard_after_forward", True, "reshard_after_forward"),
    _layout_row(
        f"{_FSDP}.offload_policy", False, "cpu_offload", inactive=unless(f"{_ACTOR}.strategy", "fsdp2")
    ),
    _layout_row(
        f"{_FSDP}.mixed_precision.reduce_dtype", "fp32", "reduce_dtype", value_type=one_of(*_REDUCE_DTYPES)
    ),
    _layout_row(_CONTEXT, 1, "sequence_parallel", inactive=switches.megatron),
    _layout_row(_TENSOR, 1, "tensor_parallel", inactive=switches.megatron),
    *(_layout_row(key, False, "cpu_offload", inactive=switches.megatron) for key in _MEGATRON_OFFLOAD),
    *(
        _layout_row(key, default, "ranks", inactive=switches.megatron, value_type=nullable(INTEGER))
        for key, default in _UNSUPPORTED_SIZES.items()
    ),
)
"""Rows of keys that the documentation of verl 0.3.1 does not list."""
