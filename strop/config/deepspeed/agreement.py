"""Contradictions between a DeepSpeed configuration and the run file; `auto` agrees with everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strop.config.deepspeed.sections import AUTO, section_faults
from strop.config.deepspeed.settings import offload_device, read_config
from strop.config.schema.optimizer import AdagradConfig, AdamWConfig, SgdConfig
from strop.config.schema.run import Run
from strop.config.schema.training_engine import DeepSpeedEngineConfig
from strop.errors import ConfigError

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
