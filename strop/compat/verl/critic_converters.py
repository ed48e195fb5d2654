"""Converters of verl's `critic` section, and the conditions under which its keys have an effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    any_inactive,
    unless,
    written_by,
)
from strop.compat.ledger.value_types import number_list
from strop.compat.verl import switches, trainer_v1
from strop.compat.verl.actor_converters import micro_batch_size
from strop.compat.verl.data import mini_batch_size
from strop.compat.verl.lr_schedule import (
    by_steps,
    fsdp_schedule,
    megatron_schedule,
    requires_megatron,
    schedule_values,
)
from strop.compat.verl.model import overrides
from strop.compat.verl.recomputation import RecomputedModel
from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.model import ModelConfig

AT = "algorithm.critic"
OPTIM = "critic.optim"
dynamic_batch = any_inactive(switches.gae, unless("critic.use_dynamic_bsz", True))
fixed_batch = any_inactive(switches.gae, unless("critic.use_dynamic_bsz", False))
fsdp = any_inactive(switches.gae, unless("critic.strategy", "fsdp", "fsdp2"))
megatron = any_inactive(switches.gae, unless("critic.strategy", *switches.MEGATRON))
cosine = any_inactive(fsdp, unless("critic.optim.warmup_style", "cosine"))
falling = any_inactive(
    megatron, unless("critic.optim.lr_decay_style", "linear", "cosine", "inverse_square_root", "WSD")
)
wsd = any_inactive(megatron, unless("critic.optim.lr_decay_style", "WSD"))


def _no_path(foreign: ForeignValues) -> str | None:
    return "critic.model.path is null" if foreign["critic.model.path"] is None else None


def no_ratio(foreign: ForeignValues) -> str | None:
    """Warm-up steps take precedence over the ratio."""
    return "critic.optim.lr_warmup_steps takes precedence" if by_steps(foreign, OPTIM) else None


own_model = any_inactive(switches.gae, _no_path)
RECOMPUTED = RecomputedModel("critic.model", "critic", any_inactive(own_model, megatron))
"""Keys that decide which layers of a critic with a path of its own are recomputed; others are the policy's."""


def write_critic(run: Run) -> Mapping[str, Any]:
    """Write the value model; settings that it does not have are the policy's."""
    if not isinstance(run.algorithm, PpoConfig):
        return {}
    section = run.algorithm.critic
    size = section.microbatch or run.trainer.microbatch
    by_tokens = size.unit == "tokens"
    actor_update = run.trainer.tasks_per_update or run.trainer.tasks_per_step
    values: dict[str, Any] = {
        "critic.cliprange_value": section.value_clip,
        "critic.loss_agg_mode": section.aggregation,
        "trainer.critic_warmup": section.warmup_steps,
        "critic.ppo_mini_batch_size": section.tasks_per_update or actor_update,
        "critic.ppo_epochs": section.epochs_per_step or run.trainer.epochs_per_step,
        "critic.use_dynamic_bsz": by_tokens,
        "critic.ppo_max_token_len_per_gpu"
        if by_tokens
        else "critic.ppo_micro_batch_size_per_gpu": size.count,
        "critic.optim.lr": section.optimizer.lr,
        "critic.optim.weight_decay": section.optimizer.weight_decay,
    }
    values |= schedule_values(run, section.schedule, section.optimizer.lr, OPTIM)
    if requires_megatron(run):
        values[f"{OPTIM}.clip_grad"] = section.max_grad_norm or 0.0
    else:
        values["critic.grad_clip"] = section.max_grad_norm
        values[f"{OPTIM}.betas"] = list(getattr(section.optimizer, "betas", (0.9, 0.999)))
    return values | ({} if section.model is None else _write_model(section.model))


def _write_model(model: ModelConfig) -> dict[str, Any]:
    values = {
        "path": model.path,
        "tokenizer_path": model.tokenizer,
        "external_lib": list(model.imports) or None,
        "enable_gradient_checkpointing": bool(model.gradient_checkpointing),
        "enable_activation_offload": model.activation_offload,
        "trust_remote_code": model.trust_remote_code,
        "fsdp_config.model_dtype": {"float32": "fp32", "bfloat16": "bf16"}[model.dtype],
    }
    values |= {f"override_config.{name}": value for name, value in model.override.items()}
    return {f"critic.model.{name}": value for name, value in values.items()}


@written_by(write_critic)
def critic(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the value model, which starts from the policy's model if no path is set."""
    if switches.gae(foreign):
        return {}
    policys = foreign["actor_rollout_ref.actor.strategy"]
    if (foreign["critic.strategy"] in switches.MEGATRON) != (policys in switches.MEGATRON):
        raise foreign.error_for(
            "critic.strategy",
            f"critic.strategy is {foreign['critic.strategy']} and actor_rollout_ref.actor.strategy is "
            f"{policys}; one process trains both, so write the same strategy for both.",
        )
    settings = {
        "head": "normal",
        "value_clip": foreign["critic.cliprange_value"],
        "aggregation": foreign["critic.loss_agg_mode"],
        "warmup_steps": foreign["trainer.critic_warmup"] * trainer_v1.steps_per_version(foreign),
        "tasks_per_update": mini_batch_size(foreign, "critic.ppo_mini_batch_size"),
        "epochs_per_step": foreign["critic.ppo_epochs"],
        "microbatch": micro_batch_size(foreign, "critic"),
        "max_grad_norm": foreign["critic.grad_clip"],
        "optimizer.lr": foreign[f"{OPTIM}.lr"],
        "optimizer.weight_decay": foreign[f"{OPTIM}.weight_decay"],
    }
    if fsdp(foreign) is None:
        settings["optimizer.betas"] = number_list(foreign[f"{OPTIM}.betas"])
        schedule = fsdp_schedule(foreign, OPTIM)
    else:
        settings["max_grad_norm"] = foreign[f"{OPTIM}.clip_grad"] or None
        schedule = megatron_schedule(foreign, OPTIM)
    settings |= {f"schedule.{name}": value for name, value in schedule.items()}
    settings |= {f"model.{name}": value for name, value in _model(foreign).items()}
    return {f"{AT}.{name}": value for name, value in settings.items()}


def _model(foreign: ForeignValues) -> Mapping[str, Any]:
    if _no_path(foreign):
        return {}
    kind = foreign["critic.model.fsdp_config.model_dtype"]
    libraries = foreign["critic.model.external_lib"]
    settings = {
        "path": foreign["critic.model.path"],
        "tokenizer": foreign["critic.model.tokenizer_path"],
        "gradient_checkpointing": RECOMPUTED.recomputes(foreign),
        "activation_offload": RECOMPUTED.offloads(foreign),
        "trust_remote_code": foreign["critic.model.trust_remote_code"],
        "imports": [libraries] if isinstance(libraries, str) else libraries or [],
        "dtype": {"fp32": "float32", "bf16": "bfloat16"}.get(kind, kind),
        "compute_dtype": "bfloat16",
    }
    return settings | {"override": overrides(foreign, "critic.model.override_config")}
