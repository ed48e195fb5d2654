"""Ledger rows of verl's `critic`, the value model of `gae`. The page only says that its keys are like the
actor's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.model import ModelConfig
from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    any_inactive,
    mapped,
    never,
    not_on_page,
    only,
    placement,
    refused,
    same_as,
    unless,
    written_by,
)
from strop.dialects.ledger.placement_notes import ALWAYS_PACKED, NO_SHARDS
from strop.dialects.ledger.value_types import (
    INTEGER,
    NUMBER,
    NUMBER_LIST,
    STRING,
    STRING_OR_LIST,
    nullable,
    one_of,
)
from strop.dialects.verl import switches
from strop.dialects.verl.actor_converters import micro_batch_size
from strop.dialects.verl.data import mini_batch_size
from strop.dialects.verl.lr_schedule import (
    by_steps,
    fsdp_schedule,
    megatron_schedule,
    requires_megatron,
    schedule_values,
)
from strop.dialects.verl.megatron_optimizer import schedule_rows
from strop.dialects.verl.model import overrides
from strop.dialects.verl.parallelism import megatron_parallelism_rows

_AT = "algorithm.critic"
_OPTIM = "critic.optim"
_dynamic = any_inactive(switches.gae, unless("critic.use_dynamic_bsz", True))
_fixed = any_inactive(switches.gae, unless("critic.use_dynamic_bsz", False))
_fsdp = any_inactive(switches.gae, unless("critic.strategy", "fsdp", "fsdp2"))
_megatron = any_inactive(switches.gae, unless("critic.strategy", "megatron"))
_cosine = any_inactive(_fsdp, unless("critic.optim.warmup_style", "cosine"))
_falling = any_inactive(
    _megatron, unless("critic.optim.lr_decay_style", "linear", "cosine", "inverse_square_root", "WSD")
)
_wsd = any_inactive(_megatron, unless("critic.optim.lr_decay_style", "WSD"))


def _no_path(foreign: ForeignValues) -> str | None:
    return "critic.model.path is null" if foreign["critic.model.path"] is None else None


def _no_ratio(foreign: ForeignValues) -> str | None:
    return "critic.optim.lr_warmup_steps takes precedence" if by_steps(foreign, _OPTIM) else None


_own_model = any_inactive(switches.gae, _no_path)


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
    values |= schedule_values(run, section.schedule, section.optimizer.lr, _OPTIM)
    if requires_megatron(run):
        values[f"{_OPTIM}.clip_grad"] = section.max_grad_norm or 0.0
    else:
        values["critic.grad_clip"] = section.max_grad_norm
        values[f"{_OPTIM}.betas"] = list(getattr(section.optimizer, "betas", (0.9, 0.999)))
    return values | ({} if section.model is None else _write_model(section.model))


def _write_model(model: ModelConfig) -> dict[str, Any]:
    values = {
        "path": model.path,
        "tokenizer_path": model.tokenizer,
        "external_lib": list(model.imports) or None,
        "enable_gradient_checkpointing": model.gradient_checkpointing,
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
    if (foreign["critic.strategy"] == "megatron") != (policys == "megatron"):
        raise foreign.error_for(
            "critic.strategy",
            f"critic.strategy is {foreign['critic.strategy']} and actor_rollout_ref.actor.strategy is "
            f"{policys}; one process trains both, so write the same strategy for both.",
        )
    settings = {
        "head": "normal",
        "value_clip": foreign["critic.cliprange_value"],
        "warmup_steps": foreign["trainer.critic_warmup"],
        "tasks_per_update": mini_batch_size(foreign, "critic.ppo_mini_batch_size"),
        "epochs_per_step": foreign["critic.ppo_epochs"],
        "microbatch": micro_batch_size(foreign, "critic"),
        "max_grad_norm": foreign["critic.grad_clip"],
        "optimizer.lr": foreign[f"{_OPTIM}.lr"],
        "optimizer.weight_decay": foreign[f"{_OPTIM}.weight_decay"],
    }
    if _fsdp(foreign) is None:
        settings["optimizer.betas"] = foreign[f"{_OPTIM}.betas"]
        schedule = fsdp_schedule(foreign, _OPTIM)
    else:
        settings["max_grad_norm"] = foreign[f"{_OPTIM}.clip_grad"] or None
        schedule = megatron_schedule(foreign, _OPTIM)
    settings |= {f"schedule.{name}": value for name, value in schedule.items()}
    settings |= {f"model.{name}": value for name, value in _model(foreign).items()}
    return {f"{_AT}.{name}": value for name, value in settings.items()}


def _model(foreign: ForeignValues) -> Mapping[str, Any]:
    if _no_path(foreign):
        return {}
    kind = foreign["critic.model.fsdp_config.model_dtype"]
    libraries = foreign["critic.model.external_lib"]
    settings = {
        "path": foreign["critic.model.path"],
        "tokenizer": foreign["critic.model.tokenizer_path"],
        "gradient_checkpointing": foreign["critic.model.enable_gradient_checkpointing"],
        "trust_remote_code": foreign["critic.model.trust_remote_code"],
        "imports": [libraries] if isinstance(libraries, str) else libraries or [],
        "dtype": {"fp32": "float32", "bf16": "bfloat16"}.get(kind, kind),
        "compute_dtype": "bfloat16",
    }
    return settings | {"override": overrides(foreign, "critic.model.override_config")}


_MODEL = (
    mapped(
        "critic.model.path",
        None,
        f"{_AT}.model",
        f"{_AT}.model.path",
        read=critic,
        value_type=nullable(STRING),
        inactive=switches.gae,
        note="null means the policy's model",
    ),
    mapped(
        "critic.model.tokenizer_path",
        None,
        f"{_AT}.model.tokenizer",
        read=critic,
        value_type=nullable(STRING),
        inactive=_own_model,
        note="must have the policy's tokens",
    ),
    mapped(
        "critic.model.external_lib",
        None,
        f"{_AT}.model.imports",
        read=critic,
        value_type=nullable(STRING_OR_LIST),
        inactive=_own_model,
    ),
    mapped(
        "critic.model.override_config.*", UNSET, f"{_AT}.model.override", read=critic, inactive=_own_model
    ),
    mapped(
        "critic.model.enable_gradient_checkpointing",
        False,
        f"{_AT}.model.gradient_checkpointing",
        read=critic,
        inactive=_own_model,
    ),
    mapped(
        "critic.model.trust_remote_code",
        False,
        f"{_AT}.model.trust_remote_code",
        read=critic,
        inactive=_own_model,
    ),
    mapped(
        "critic.model.fsdp_config.model_dtype",
        "fp32",
        f"{_AT}.model.dtype",
        read=critic,
        value_type=one_of("fp32", "float32", "bf16", "bfloat16"),
        inactive=_own_model,
    ),
    placement(
        "critic.model.use_remove_padding",
        False,
        ALWAYS_PACKED,
        supported=only(True),
        inactive=switches.gae,
    ),
    *(
        placement(f"critic.{name}", default, NO_SHARDS, supported=only(default, 1), inactive=switches.gae)
        for name, default in (
            ("model.enable_activation_offload", False),
            ("model.fsdp_config.param_offload", False),
            ("model.fsdp_config.optimizer_offload", False),
            ("model.fsdp_config.offload_policy", False),
            ("model.fsdp_config.fsdp_size", -1),
            ("model.fsdp_config.wrap_policy.min_num_params", 0),
            ("ulysses_sequence_parallel_size", 1),
        )
    ),
    placement(
        "critic.strategy",
        "${actor_rollout_ref.actor.strategy}",
        "a single process trains",
        value_type=STRING,
        supported=only("fsdp", "fsdp2"),
        inactive=switches.gae,
    ),
    *megatron_parallelism_rows("critic.megatron", _megatron),
)
_MEGATRON = schedule_rows(_OPTIM, _AT, critic, _megatron, _falling, _wsd)
_OPTIMIZER = (
    mapped(
        f"{_OPTIM}.lr",
        1e-5,
        f"{_AT}.optimizer.lr",
        read=critic,
        inactive=switches.gae,
        note="1e-5 on the page, which is used; 1e-6 in verl's ppo_megatron_trainer.yaml of its time",
    ),
    mapped(
        f"{_OPTIM}.weight_decay", 0.01, f"{_AT}.optimizer.weight_decay", read=critic, inactive=switches.gae
    ),
    mapped(
        f"{_OPTIM}.betas",
        [0.9, 0.999],
        f"{_AT}.optimizer.betas",
        read=critic,
        value_type=NUMBER_LIST,
        inactive=_fsdp,
    ),
    mapped(
        f"{_OPTIM}.lr_warmup_steps",
        -1,
        f"{_AT}.schedule.warmup",
        read=critic,
        value_type=nullable(INTEGER),
        inactive=switches.gae,
        note="a negative value means that the ratio applies",
    ),
    mapped(
        f"{_OPTIM}.lr_warmup_steps_ratio",
        0.0,
        f"{_AT}.schedule.warmup",
        read=critic,
        inactive=any_inactive(switches.gae, _no_ratio),
    ),
    mapped(
        f"{_OPTIM}.warmup_style",
        "constant",
        f"{_AT}.schedule.type",
        read=critic,
        value_type=one_of("constant", "cosine"),
        inactive=_fsdp,
    ),
    mapped(f"{_OPTIM}.min_lr_ratio", 0.0, f"{_AT}.schedule.min_ratio", read=critic, inactive=_cosine),
    mapped(f"{_OPTIM}.num_cycles", 0.5, f"{_AT}.schedule.cycles", read=critic, inactive=_cosine),
    mapped(
        f"{_OPTIM}.clip_grad",
        1.0,
        f"{_AT}.max_grad_norm",
        read=critic,
        inactive=_megatron,
        note="0 means no bound",
    ),
    *_MEGATRON.values(),
)
_UPDATES = (
    mapped(
        "critic.ppo_mini_batch_size",
        "${actor_rollout_ref.actor.ppo_mini_batch_size}",
        f"{_AT}.tasks_per_update",
        read=critic,
        value_type=INTEGER,
        inactive=switches.gae,
        note="counts prompts",
    ),
    mapped(
        "critic.ppo_micro_batch_size",
        None,
        f"{_AT}.microbatch",
        read=critic,
        value_type=nullable(INTEGER),
        inactive=_fixed,
        note="total number of sequences on all GPUs",
        deprecated="write ppo_micro_batch_size_per_gpu, the number per GPU",
    ),
    mapped(
        "critic.ppo_micro_batch_size_per_gpu",
        8,
        f"{_AT}.microbatch",
        read=critic,
        value_type=INTEGER,
        inactive=_fixed,
        note="counts sequences",
    ),
    *(
        placement(
            f"critic.{name}",
            None,
            "values are computed in the critic's training micro-batches",
            value_type=nullable(INTEGER),
            supported=only(None),
            inactive=_fixed,
        )
        for name in ("forward_micro_batch_size", "forward_micro_batch_size_per_gpu")
    ),
    mapped(
        "critic.use_dynamic_bsz",
        "${actor_rollout_ref.actor.use_dynamic_bsz}",
        f"{_AT}.microbatch",
        read=critic,
        inactive=switches.gae,
    ),
    mapped("critic.ppo_max_token_len_per_gpu", 32768, f"{_AT}.microbatch", read=critic, inactive=_dynamic),
    placement(
        "critic.forward_max_token_len_per_gpu",
        "${critic.ppo_max_token_len_per_gpu}",
        "values are computed in the critic's training micro-batches",
        supported=same_as("critic.ppo_max_token_len_per_gpu"),
        inactive=_dynamic,
    ),
    mapped(
        "critic.ppo_epochs",
        "${actor_rollout_ref.actor.ppo_epochs}",
        f"{_AT}.epochs_per_step",
        read=critic,
        value_type=INTEGER,
        inactive=switches.gae,
    ),
    refused(
        "critic.shuffle",
        "${actor_rollout_ref.actor.shuffle}",
        "policy and critic process a step in the same order; write actor_rollout_ref.actor.shuffle",
        supported=same_as("actor_rollout_ref.actor.shuffle"),
        inactive=switches.gae,
    ),
    refused(
        "critic.checkpoint.save_contents",
        "${actor_rollout_ref.actor.checkpoint.save_contents}",
        "policy and critic are saved together; write actor_rollout_ref.actor.checkpoint.save_contents",
        supported=same_as("actor_rollout_ref.actor.checkpoint.save_contents"),
        inactive=switches.gae,
    ),
    mapped(
        "critic.grad_clip",
        1.0,
        f"{_AT}.max_grad_norm",
        read=critic,
        value_type=nullable(NUMBER),
        inactive=_fsdp,
    ),
    mapped("critic.cliprange_value", 0.5, f"{_AT}.value_clip", read=critic, inactive=switches.gae),
)
ROWS = (
    refused(
        "critic.*",
        UNSET,
        "the run file's algorithm.critic has no equivalent of this key; remove it",
        supported=never,
        inactive=switches.gae,
    ),
    *not_on_page(*_MODEL, *_OPTIMIZER, *_UPDATES),
)
