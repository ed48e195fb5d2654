"""Sections and keys of a DeepSpeed configuration, and how Strop treats each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator

from strop.config.load.config_tree import is_deeper
from strop.config.load.yaml_file import MAX_DEPTH, read_bounded
from strop.config.paths import expand_user
from strop.config.redact import redacted_repr
from strop.config.suggest import did_you_mean
from strop.errors import ConfigError

_OFFLOAD = ("device", "pin_memory", "buffer_count", "buffer_size", "max_in_cpu", "fast_init")
KEYS: Mapping[str, tuple[str, ...] | None] = {
    "train_batch_size": None,
    "train_micro_batch_size_per_gpu": None,
    "gradient_accumulation_steps": None,
    "gradient_clipping": None,
    "steps_per_print": None,
    "wall_clock_breakdown": None,
    "dump_state": None,
    "memory_breakdown": None,
    "log_level": None,
    "communication_data_type": None,
    "prescale_gradients": None,
    "gradient_predivide_factor": None,
    "disable_allgather": None,
    "zero_allow_untested_optimizer": None,
    "zero_force_ds_cpu_optimizer": None,
    "bf16": ("enabled", "immediate_grad_update", "check_grad_overflow"),
    "fp16": (
        "enabled",
        "auto_cast",
        "loss_scale",
        "initial_scale_power",
        "loss_scale_window",
        "hysteresis",
        "consecutive_hysteresis",
        "min_loss_scale",
    ),
    "zero_optimization": (
        "stage",
        "contiguous_gradients",
        "reduce_scatter",
        "reduce_bucket_size",
        "use_multi_rank_bucket_allreduce",
        "allgather_partitions",
        "allgather_bucket_size",
        "overlap_comm",
        "offload_param",
        "offload_optimizer",
        "sub_group_size",
        "round_robin_gradients",
        "ignore_unused_parameters",
        "elastic_checkpoint",
        "load_from_fp32_weights",
        "memory_efficient_linear",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
        "stage3_model_persistence_threshold",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_module_granularity_threshold",
        "stage3_use_all_reduce_for_fetch_params",
        "stage3_allgather_sequential",
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_gather_fp16_weights_on_model_save",
        "log_trace_cache_warnings",
    ),
    "zero_optimization.offload_optimizer": _OFFLOAD,
    "zero_optimization.offload_param": _OFFLOAD,
    "optimizer": ("type", "params"),
    "scheduler": ("type", "params"),
}
"""Keys of a configuration, by section; None for a section that is a single value."""

SWITCHED_OFF: Mapping[str, str] = {
    "activation_checkpointing": "write model.gradient_checkpointing in the run file",
    "amp": "write model.compute_dtype in the run file",
    "aio": "parameters and states are offloaded to the CPU's memory only",
    "autotuning": "`strop plan` estimates the memory of a run",
    "checkpoint": "Strop writes its own checkpoints",
    "compile": "models are not compiled",
    "compression_training": "weights are trained in full precision",
    "csv_monitor": "write record.monitors in the run file",
    "curriculum_learning": "write data.train in the run file",
    "data_efficiency": "write data.train in the run file",
    "data_types": "gradients are accumulated in float32",
    "elasticity": "a checkpoint can be resumed with any number of ranks",
    "flops_profiler": "Strop records the time of each phase",
    "hybrid_engine": "write rollout.engine in the run file",
    "nebula": "Strop writes its own checkpoints",
    "pipeline": "write zero_optimization, which divides the model over ranks",
    "sparse_attention": "Strop uses its packed attention",
    "tensor_parallel": "write zero_optimization, which divides the model over ranks",
    "tensorboard": "write record.monitors in the run file",
    "torch_autocast": "write model.compute_dtype in the run file",
    "wandb": "write record.monitors in the run file",
    "zero_optimization.zenflow": "remove it",
    "zero_optimization.zero_quantized_weights": "weights are gathered without rounding",
    "zero_optimization.zero_quantized_nontrainable_weights": "weights are gathered without rounding",
    "zero_optimization.zero_quantized_gradients": "gradients are summed without rounding",
    "zero_optimization.legacy_stage1": "remove it",
    "zero_optimization.cpu_offload": "write offload_optimizer: {device: cpu}",
    "zero_optimization.cpu_offload_param": "write offload_param: {device: cpu}",
    "zero_optimization.offload_optimizer.nvme_path": "write device: cpu",
    "zero_optimization.offload_param.nvme_path": "write device: cpu",
    "bf16.bf16_master_weights_and_grads": "masters are float32",
    "bf16.bf16_optimizer_states": "the optimizer's state is float32",
    "fp16.fp16_master_weights_and_grads": "masters are float32",
    "dataloader_drop_last": "write data.incomplete_batch in the run file",
}
"""Sections and keys that are accepted only where they are switched off, with what to do instead."""

VALUES_OFF: Mapping[str, tuple[Any, str]] = {
    "zero_optimization.mics_shard_size": (-1, "a model is divided over all ranks"),
    "zero_optimization.zero_hpz_partition_size": (1, "a model is divided over all ranks"),
    "zero_optimization.offload_optimizer.ratio": (1, "all states are offloaded"),
    "gradient_allreduce_op": ("mean", "Strop multiplies losses by the number of ranks itself"),
    "managed_gradient_accumulation": (False, "Strop decides when an update is complete"),
}
"""Keys that are accepted with one value, with the reason."""


def section_faults(values: Mapping[str, Any], section: str = "") -> Iterator[str]:
    """A sentence for each section or key that Strop does not know or support."""
    known = KEYS[section] if section else tuple(KEYS)
    assert known is not None
    for key, value in values.items():
        path = f"{section}.{key}" if section else key
        if path in SWITCHED_OFF:
            if not _is_off(value):
                yield f"{path} is {value!r}, which Strop does not support: {SWITCHED_OFF[path]}"
        elif path in VALUES_OFF:
            expected, reason = VALUES_OFF[path]
            if value != expected:
                yield f"{path} is {value!r}, and only {expected!r} is supported: {reason}"
        elif key not in known:
            options = [key for key in known if "." not in key]
            yield f"{path} is not a key of a DeepSpeed configuration that Strop knows{did_you_mean(key, options)}"
        elif KEYS.get(path) is not None:
            if isinstance(value, Mapping):
                yield from section_faults(value, path)
            elif value is not None:
                yield f"{path} is {value!r}; write a mapping"
    if section.startswith("zero_optimization.offload") and values.get("device", "cpu") not in ("cpu", "none"):
        yield f"{section}.device is {values['device']!r}; Strop offloads to `cpu`, or `none`"


def without_inert(values: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """A copy without the sections and keys that are accepted only where they have no effect: DeepSpeed refuses some of
    them even switched off."""
    kept = {}
    for key, value in values.items():
        path = f"{section}.{key}" if section else key
        if path not in SWITCHED_OFF and path not in VALUES_OFF:
            kept[key] = without_inert(value, path) if isinstance(value, Mapping) else value
    return kept


def _is_off(value: Any) -> bool:
    """Whether a section or switch has no effect: every switch in it is off, or none is `enabled`."""
    if isinstance(value, Mapping):
        switches = [each for each in value.values() if isinstance(each, bool)]
        return value.get("enabled") is False or (not any(switches) and "enabled" not in value)
    return not value


AUTO = "auto"


def _or_auto(value: Any, validate: Callable[[Any], Any]) -> Any:
    return value if value == AUTO else validate(value)


Value = TypeVar("Value")
OrAuto = Annotated[Value | None, WrapValidator(_or_auto)]


class _Section(BaseModel):
    """A section; `section_faults` judges its other keys."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Precision(_Section):
    enabled: OrAuto[bool] = None


class _Offload(_Section):
    device: str | None = None


class _Zero(_Section):
    stage: OrAuto[Annotated[int, Field(ge=0, le=3)]] = None
    offload_optimizer: _Offload | None = None
    offload_param: _Offload | None = None


class _Named(_Section):
    """An optimizer or a scheduler."""

    type: str | None = None
    params: dict[str, Any] | None = None


class _Configuration(_Section):
    train_batch_size: OrAuto[int] = None
    train_micro_batch_size_per_gpu: OrAuto[int] = None
    gradient_accumulation_steps: OrAuto[int] = None
    gradient_clipping: OrAuto[float] = None
    bf16: _Precision | None = None
    fp16: _Precision | None = None
    zero_optimization: _Zero | None = None
    optimizer: _Named | None = None
    scheduler: _Named | None = None


def type_faults(values: dict[str, Any]) -> Iterator[str]:
    """A sentence for each value of another type than DeepSpeed reads."""
    try:
        _Configuration.model_validate(values)
    except ValidationError as error:
        for detail in error.errors():
            path = ".".join(map(str, detail["loc"]))
            advice = (
                "write a mapping" if detail["type"] in ("model_type", "dict_type") else detail["msg"].lower()
            )
            yield f"{path} is {redacted_repr(detail['input'], path)}; {advice}"


def read_deepspeed_file(path: str | Path) -> dict[str, Any]:
    """The sections of a file. Raises ConfigError unless it is a JSON object."""
    try:
        values = json.loads(read_bounded(expand_user(path), regular=True))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from None
    if is_deeper(values, MAX_DEPTH):
        raise ConfigError(f"{path} nests more than {MAX_DEPTH} objects or lists.")
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a JSON object; write a DeepSpeed configuration.")
    return values
