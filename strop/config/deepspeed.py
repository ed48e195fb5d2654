"""DeepSpeed configurations: their sections and keys, the values of `auto`, and contradictions with the run file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator

from strop.config.load.config_tree import is_deeper
from strop.config.load.yaml_file import MAX_DEPTH, read_bounded
from strop.config.paths import expand_user
from strop.config.redact import redacted_repr
from strop.config.schema.optimizer import AdagradConfig, AdamWConfig, SgdConfig
from strop.config.schema.run import Run
from strop.config.schema.trainer import DeepSpeedEngineConfig
from strop.errors import ConfigError
from strop.printable import did_you_mean
from strop.workers.json_text import parse_json

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
        values = parse_json(read_bounded(expand_user(path), regular=True))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from None
    if is_deeper(values, MAX_DEPTH):
        raise ConfigError(f"{path} nests more than {MAX_DEPTH} objects or lists.")
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a JSON object; write a DeepSpeed configuration.")
    return values


LOGGING = ("steps_per_print", "wall_clock_breakdown", "dump_state", "memory_breakdown", "log_level")
"""Keys of DeepSpeed's own messages, which Strop does not show."""
_DROPPED = ("train_batch_size", "gradient_clipping", "optimizer", "scheduler", *LOGGING)
"""Sections that agree with the run file, which Strop applies itself, and those without effect."""
_SIZES: Mapping[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""`auto` values that depend on the model's hidden size, as transformers resolves them."""


@dataclass(frozen=True, slots=True)
class ZeroSettings:
    """Division of a model over the ranks of a run, and offload."""

    stage: int
    """1 is optimizer state, 2 also gradients, 3 also parameters."""
    offload_optimizer: bool
    offload_parameters: bool


def read_config(section: DeepSpeedEngineConfig) -> dict[str, Any]:
    """The user's DeepSpeed configuration; empty for none. Raises ConfigError for a file that cannot be read, and for
    values of another type than DeepSpeed reads."""
    if section.config is None:
        return {}
    try:
        found = section.config if isinstance(section.config, dict) else read_deepspeed_file(section.config)
    except ConfigError as error:
        raise ConfigError(f"trainer.engine.config: {error}") from None
    if faults := [f"trainer.engine.config: {fault}." for fault in type_faults(found)]:
        raise ConfigError(*faults)
    return copy.deepcopy(found)


def zero_settings(section: DeepSpeedEngineConfig, config: Mapping[str, Any]) -> ZeroSettings:
    """Stage and offload of a run. A configuration without ZeRO, or of stage 0, gets stage 1: the results are equal."""
    zero = config.get("zero_optimization") or {}
    default = 3 if section.config is None else 1
    stage = zero.get("stage", default)
    stage = default if stage in (None, AUTO) else max(int(stage), 1)
    return ZeroSettings(
        section.zero_stage or stage,
        _offloads(section.offload_optimizer, zero.get("offload_optimizer")),
        _offloads(section.offload_parameters, zero.get("offload_param")),
    )


def resolved(section: DeepSpeedEngineConfig) -> DeepSpeedEngineConfig:
    """The same engine without a file: with its sections, stage and offload. Raises ConfigError for a file that cannot
    be read."""
    config = read_config(section)
    settings = zero_settings(section, config)
    return section.model_copy(
        update={
            "config": config,
            "zero_stage": settings.stage,
            "offload_optimizer": settings.offload_optimizer,
            "offload_parameters": settings.offload_parameters,
        }
    )


def _offloads(written: bool | None, offload: Mapping[str, Any] | None) -> bool:
    return written if written is not None else offload_device(offload) == "cpu"


def offload_device(offload: Mapping[str, Any] | None) -> str:
    """The device of a configuration's section of offload; `none` without one."""
    return str((offload or {}).get("device", "none"))


def engine_config(section: DeepSpeedEngineConfig, device_type: str) -> dict[str, Any]:
    """The configuration that ranks on `cpu` or `cuda` pass to DeepSpeed; `auto` remains for sizes of the model.

    Micro-batches, their number in an update, clipping, optimizer and schedule are Strop's.
    """
    config = without_inert(read_config(section))
    settings = zero_settings(section, config)
    zero = {
        key: value
        for key, value in (config.get("zero_optimization") or {}).items()
        if value not in (None, AUTO)
    }
    zero |= {key: AUTO for key in _SIZES if (config.get("zero_optimization") or {}).get(key) == AUTO}
    zero["stage"] = settings.stage
    for name, is_on in (
        ("offload_optimizer", settings.offload_optimizer),
        ("offload_param", settings.offload_parameters and settings.stage == 3),
    ):
        offload = dict(zero.get(name) or {}) | {"device": "cpu" if is_on else "none"}
        if device_type == "cpu":
            offload["pin_memory"] = False
        zero[name] = offload
    if settings.stage != 2 or device_type == "cpu":
        zero["overlap_comm"] = False  # what DeepSpeed allows where Strop ends the accumulation
    kept = {key: value for key, value in config.items() if key not in _DROPPED and value != AUTO}
    precision = {
        name: {key: value for key, value in (config.get(name) or {}).items() if value != AUTO}
        for name in ("bf16", "fp16")
    }
    return kept | {
        **precision,
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def with_hidden_size(config: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
    """A copy of a configuration with the `auto` sizes of a model's hidden size."""
    resolved = copy.deepcopy(dict(config))
    zero = resolved["zero_optimization"]
    for key, size in _SIZES.items():
        if zero.get(key) == AUTO:
            zero[key] = size(hidden_size)
    return resolved


_OPTIMIZERS = {"AdamW": "adamw", "Adam": "adamw", "SGD": "sgd", "Adagrad": "adagrad"}
"""`trainer.optimizer.type` of each of DeepSpeed's optimizers that Strop has; its Adam is AdamW by default."""
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
"""`trainer.schedule.type` of each of DeepSpeed's schedulers that Strop has."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two values that must be equal."""

    key: str
    value: Any
    """Value in the DeepSpeed configuration; None where it does not set the key."""
    run_key: str
    run_value: Any

    @property
    def is_contradiction(self) -> bool:
        return self.value not in (None, AUTO) and self.value != self.run_value

    def __str__(self) -> str:
        return f"{self.key} is {self.value!r}, and {self.run_key} is {self.run_value!r}"


def deepspeed_faults(run: Run) -> Iterator[str]:
    """Faults of the DeepSpeed engine and its configuration, each with the keys and both values."""
    section = run.trainer.engine
    yield from _model_faults(run)
    if not isinstance(section, DeepSpeedEngineConfig):
        return
    try:
        config = read_config(section)
    except ConfigError as error:
        yield from (fault.message.rstrip(".") for fault in error.faults)
        return
    faults = list(section_faults(config))
    if not faults:
        pairs = [pair for pair in _pairs(run, section, config) if pair.is_contradiction]
        faults = [f"{pair}; write 'auto', or the same value" for pair in pairs]
        faults += [*_optimizer_faults(run, config), *_scheduler_faults(run, config)]
    for fault in faults:
        yield f"trainer.engine.config: {fault}"


def _model_faults(run: Run) -> Iterator[str]:
    uses_deepspeed = isinstance(run.trainer.engine, DeepSpeedEngineConfig)
    models = {"model": run.model}
    critic = run.algorithm.trained_models.get("critic")
    if critic is not None and critic.model is not None:
        models["algorithm.critic.model"] = critic.model
    for key, model in models.items():
        if not uses_deepspeed and model.compute_dtype == "float16":
            yield (
                f"{key}.compute_dtype is float16, whose gradients underflow unless losses are scaled, which only "
                "trainer.engine: deepspeed does; write that engine, or bfloat16"
            )
        if uses_deepspeed and model.compile:
            yield (
                f"{key}.compile is true, and DeepSpeed's hooks on a layer's parameters are not compiled with it; "
                "remove it, or write trainer.engine: fsdp2"
            )
        if uses_deepspeed and model.dtype != "float32":
            yield (
                f"{key}.dtype is {model.dtype}, and DeepSpeed keeps float32 masters of the trained weights; write "
                f"dtype: float32 with compute_dtype: {model.dtype}"
            )


def _pairs(run: Run, section: DeepSpeedEngineConfig, config: Mapping[str, Any]) -> Iterator[_Pair]:
    zero = config.get("zero_optimization") or {}
    if section.zero_stage is not None:
        yield _Pair(
            "zero_optimization.stage", zero.get("stage"), "trainer.engine.zero_stage", section.zero_stage
        )
    for name, written, field in (
        ("offload_optimizer", section.offload_optimizer, "offload_optimizer"),
        ("offload_param", section.offload_parameters, "offload_parameters"),
    ):
        if written is not None and zero.get(name) is not None:
            found = offload_device(zero[name]) == "cpu"
            yield _Pair(f"zero_optimization.{name}", found, f"trainer.engine.{field}", written)
    compute = run.model.compute_dtype or run.model.dtype
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        enabled = (config.get(name) or {}).get("enabled")
        if enabled not in (None, AUTO) and enabled != (compute == dtype):
            yield _Pair(f"{name}.enabled", enabled, "model.compute_dtype", compute)
    clip = run.trainer.max_grad_norm
    yield _Pair("gradient_clipping", config.get("gradient_clipping"), "trainer.max_grad_norm", clip or 0.0)
    yield from _batch_pairs(run, config)


def _batch_pairs(run: Run, config: Mapping[str, Any]) -> Iterator[_Pair]:
    trainer, size = run.trainer, run.trainer.microbatch
    tasks = trainer.tasks_per_update or trainer.tasks_per_step
    batch = tasks * run.algorithm.rollouts_per_task
    yield _Pair(
        "train_batch_size", config.get("train_batch_size"), "the number of sequences of an update", batch
    )
    micro = int(size.count) if size.unit == "sequences" else str(size)
    yield _Pair(
        "train_micro_batch_size_per_gpu",
        config.get("train_micro_batch_size_per_gpu"),
        "trainer.microbatch",
        micro,
    )
    accumulated: Any = f"not fixed by a micro-batch of {size}"
    if isinstance(micro, int):
        accumulated = -(-batch // (micro * trainer.engine.ranks))
    yield _Pair(
        "gradient_accumulation_steps",
        config.get("gradient_accumulation_steps"),
        f"the number of micro-batches of each of {trainer.engine.ranks} ranks",
        accumulated,
    )


def _optimizer_faults(run: Run, config: Mapping[str, Any]) -> Iterator[str]:
    section, optimizer = config.get("optimizer"), run.trainer.optimizer
    if not section:
        return
    name, params = section.get("type"), section.get("params") or {}
    if name not in _OPTIMIZERS:
        yield (
            f"optimizer.type {name!r} is not one that Strop has; write {', '.join(_OPTIMIZERS)}, or remove the section "
            "and write trainer.optimizer"
        )
        return
    if _OPTIMIZERS[name] != optimizer.type:
        yield f"{_Pair('optimizer.type', name, 'trainer.optimizer.type', optimizer.type)}; remove one of them"
        return
    values: dict[str, Any] = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay}
    if isinstance(optimizer, AdamWConfig):
        values |= {"betas": list(optimizer.betas), "eps": optimizer.eps, "bias_correction": True}
        values |= {"adam_w_mode": True, "torch_adam": params.get("torch_adam")}
    elif isinstance(optimizer, SgdConfig):
        values |= {"momentum": optimizer.momentum, "nesterov": optimizer.nesterov}
        values |= {"dampening": optimizer.dampening}
    elif isinstance(optimizer, AdagradConfig):
        values |= {"eps": optimizer.eps}
    yield from _param_faults("optimizer", params, "trainer.optimizer", values)


def _scheduler_faults(run: Run, config: Mapping[str, Any]) -> Iterator[str]:
    section, schedule = config.get("scheduler"), run.trainer.schedule
    if not section:
        return
    name, params = section.get("type"), section.get("params") or {}
    if name not in _SCHEDULES:
        yield (
            f"scheduler.type {name!r} is not one that Strop has; write {', '.join(_SCHEDULES)}, or remove the section "
            "and write trainer.schedule"
        )
        return
    if _SCHEDULES[name] != schedule.type:
        yield f"{_Pair('scheduler.type', name, 'trainer.schedule.type', schedule.type)}; remove one of them"
        return
    warmup = schedule.warmup
    if warmup.count and params.get("warmup_type", "log") != "linear":
        yield (
            "scheduler.params.warmup_type is 'log', DeepSpeed's default, and trainer.schedule.warmup is linear; "
            "write 'linear', or remove the section"
        )
    length = run.trainer.duration
    values = {
        "warmup_min_lr": schedule.start_ratio * run.trainer.optimizer.lr,
        "warmup_max_lr": run.trainer.optimizer.lr,
        "warmup_num_steps": int(warmup.count) if warmup.unit in ("steps", "updates") else str(warmup),
        "total_num_steps": int(length.count) if length.unit in ("steps", "updates") else str(length),
        "warmup_type": params.get("warmup_type"),
        "warmup_min_ratio": schedule.start_ratio,
        "cos_min_ratio": getattr(schedule, "min_ratio", 0.0),
        "last_batch_iteration": -1,
    }
    yield from _param_faults("scheduler", params, "trainer.schedule", values)


def _param_faults(
    section: str, params: Mapping[str, Any], run_section: str, values: Mapping[str, Any]
) -> Iterator[str]:
    for key, value in params.items():
        if key not in values:
            yield f"{section}.params.{key} has no equal in {run_section}; remove it"
            continue
        pair = _Pair(f"{section}.params.{key}", value, f"the run's {key}", values[key])
        if pair.is_contradiction:
            yield f"{pair}; write 'auto', or the same value in {run_section}"
