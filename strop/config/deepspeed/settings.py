"""The DeepSpeed configuration of a run: `trainer.engine.config` with its `auto` values resolved."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from strop.config.deepspeed.sections import AUTO, read_deepspeed_file, type_faults, without_inert
from strop.config.schema.training_engine import DeepSpeedEngineConfig
from strop.errors import ConfigError

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
