"""Ledger rows of verl's `critic`, the value model of `gae`. The documentation of verl 0.3.1 only says that its
keys are like the actor's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ALWAYS_PACKED,
    ANY,
    BETAS,
    INTEGER,
    NO_SHARDS,
    NUMBER,
    ONE_TRAINER,
    OWN_KERNELS,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    KeyMapping,
    SupportCheck,
    any_inactive,
    fused_kernels,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    number_list,
    one_of,
    only,
    placement,
    placement_section,
    refused,
    same_as,
    unless,
    unless_null,
    written_by,
)
from strop.compat.verl import switches
from strop.compat.verl.actor import micro_batch_size
from strop.compat.verl.data import mini_batch_size
from strop.compat.verl.engine import ONE_SEED, default_only, megatron_parallelism_rows, worker_rows
from strop.compat.verl.model import RecomputedModel, overrides
from strop.compat.verl.optim import ADAMW, MIXED_STATE, OptimizerKeys, requires_megatron, schedule_values
from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.model import ModelConfig

AT = "algorithm.critic"
OPTIM = "critic.optim"
dynamic_batch = any_inactive(switches.gae, unless("critic.use_dynamic_bsz", True))
fixed_batch = any_inactive(switches.gae, unless("critic.use_dynamic_bsz", False))
_KEYS = OptimizerKeys(OPTIM, "critic.strategy", switches.gae)


_no_path = unless_null("critic.model.path")
own_model = any_inactive(switches.gae, _no_path)
RECOMPUTED = RecomputedModel("critic.model", "critic", any_inactive(own_model, _KEYS.megatron))
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
        "warmup_steps": foreign["trainer.critic_warmup"] * switches.v1_steps_per_version(foreign),
        "tasks_per_update": mini_batch_size(foreign, "critic.ppo_mini_batch_size"),
        "epochs_per_step": foreign["critic.ppo_epochs"],
        "microbatch": micro_batch_size(foreign, "critic"),
        "max_grad_norm": foreign["critic.grad_clip"],
        "optimizer.lr": foreign[f"{OPTIM}.lr"],
        "optimizer.weight_decay": foreign[f"{OPTIM}.weight_decay"],
    }
    if _KEYS.fsdp(foreign) is None:
        settings["optimizer.betas"] = number_list(foreign[f"{OPTIM}.betas"])
    else:
        settings["max_grad_norm"] = foreign[f"{OPTIM}.clip_grad"] or None
    settings |= {f"schedule.{name}": value for name, value in _KEYS.schedule(foreign).items()}
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


_RECOMPUTED_FIELD = f"{AT}.model.gradient_checkpointing"


def _as_the_estimator_needs(foreign: ForeignValues, value: Any) -> bool:
    """Whether a critic is trained where the estimator reads one."""
    return value is None or bool(value) == (switches.gae(foreign) is None)


_SWITCH = refused(
    "critic.enable",
    None,
    "a critic is trained for algorithm.adv_estimator=gae, and for no other estimator; leave it null",
    supported=_as_the_estimator_needs,
)
_ACTOR = "actor_rollout_ref.actor"
_CONTENTS = f"{_ACTOR}.checkpoint"


def _fixed(key: str, default: Any, reason: str, supported: SupportCheck | None = None) -> KeyMapping:
    """A refused key that is inactive without a critic."""
    return refused(f"critic.{key}", default, reason, supported=supported, inactive=switches.gae)


_NO_LORA = "critic.model.lora_rank is 0, so that the whole critic is trained"
_LISTED = (
    refused(
        "critic.*",
        UNSET,
        "the run file's algorithm.critic has no equivalent of this key; remove it",
        inactive=switches.gae,
    ),
)
_row = partial(mapped, read=critic, inactive=switches.gae)
_UNLISTED = not_on_page(
    _row(
        "critic.model.path",
        None,
        f"{AT}.model",
        f"{AT}.model.path",
        value_type=nullable(STRING),
        note="null means the policy's model",
    ),
    _row(
        "critic.model.tokenizer_path",
        None,
        f"{AT}.model.tokenizer",
        value_type=nullable(STRING),
        inactive=own_model,
        note="must have the policy's tokens",
    ),
    _row(
        "critic.model.external_lib",
        None,
        f"{AT}.model.imports",
        value_type=nullable(STRING_OR_LIST),
        inactive=own_model,
    ),
    _row("critic.model.override_config.*", UNSET, f"{AT}.model.override", inactive=own_model),
    _row("critic.model.enable_gradient_checkpointing", False, _RECOMPUTED_FIELD, inactive=own_model),
    _row("critic.model.trust_remote_code", False, f"{AT}.model.trust_remote_code", inactive=own_model),
    _row(
        "critic.model.fsdp_config.model_dtype",
        "fp32",
        f"{AT}.model.dtype",
        value_type=one_of("fp32", "float32", "bf16", "bfloat16"),
        inactive=own_model,
    ),
    placement(
        "critic.model.use_remove_padding", False, ALWAYS_PACKED, supported=only(True), inactive=switches.gae
    ),
    *(
        no_effect(f"critic.model.{name}", UNSET, why)
        for name, why in (
            ("lora_alpha", _NO_LORA),
            ("target_modules", _NO_LORA),
            ("exclude_modules", _NO_LORA),
            ("lora.*", _NO_LORA),
            ("mtp.*", "the critic has no heads but that of the value"),
            ("custom_chat_template", "the critic reads the policy's tokens"),
            ("hf_config_path", "the model folder's config.json is read"),
        )
    ),
    placement(
        "critic.model.tiled_mlp.enabled",
        False,
        "Strop's own kernels",
        supported=only(False),
        inactive=switches.gae,
    ),
    no_effect("critic.model.tiled_mlp.*", UNSET, "Strop's own kernels are used"),
    *worker_rows("critic", switches.gae),
    *(
        placement_section(f"critic.model.{name}", NO_SHARDS, inactive=switches.gae)
        for name in ("fsdp_config", "fused_kernel_options", "gradient_checkpointing_kwargs")
    ),
    *(
        fused_kernels(f"critic.model.{name}", value_type=ANY, inactive=switches.gae)
        for name in ("use_liger", "use_fused_kernels")
    ),
    default_only("critic.model.use_shm", False, OWN_KERNELS, switches.gae),
    placement("critic.model.lora_rank", 0, OWN_KERNELS, supported=only(0)),
    RECOMPUTED.offload_row(f"{AT}.model.activation_offload", critic, own_model),
    *(
        placement(f"critic.{name}", default, NO_SHARDS, supported=only(default, 1), inactive=switches.gae)
        for name, default in (
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
        ONE_TRAINER,
        value_type=STRING,
        supported=only("fsdp", "fsdp2"),
        inactive=switches.gae,
    ),
    *RECOMPUTED.earlier_rows(_RECOMPUTED_FIELD, critic),
    *RECOMPUTED.megatron_rows(_RECOMPUTED_FIELD, critic),
    *megatron_parallelism_rows("critic.megatron", _KEYS.megatron),
    _row(
        "critic.ppo_mini_batch_size",
        "${actor_rollout_ref.actor.ppo_mini_batch_size}",
        f"{AT}.tasks_per_update",
        value_type=INTEGER,
        note="counts prompts",
    ),
    _row(
        "critic.ppo_micro_batch_size",
        None,
        f"{AT}.microbatch",
        value_type=nullable(INTEGER),
        inactive=fixed_batch,
        note="total number of sequences on all GPUs",
        deprecated="write ppo_micro_batch_size_per_gpu, the number per GPU",
    ),
    _row(
        "critic.ppo_micro_batch_size_per_gpu",
        8,
        f"{AT}.microbatch",
        inactive=fixed_batch,
        note="counts sequences",
    ),
    *(
        placement(
            f"critic.{name}",
            None,
            "values are computed in the critic's training micro-batches",
            value_type=nullable(INTEGER),
            supported=only(None),
            inactive=fixed_batch,
        )
        for name in ("forward_micro_batch_size", "forward_micro_batch_size_per_gpu")
    ),
    _row("critic.use_dynamic_bsz", "${actor_rollout_ref.actor.use_dynamic_bsz}", f"{AT}.microbatch"),
    _row("critic.ppo_max_token_len_per_gpu", 32768, f"{AT}.microbatch", inactive=dynamic_batch),
    placement(
        "critic.forward_max_token_len_per_gpu",
        "${critic.ppo_max_token_len_per_gpu}",
        "values are computed in the critic's training micro-batches",
        supported=same_as("critic.ppo_max_token_len_per_gpu"),
        inactive=dynamic_batch,
    ),
    _row(
        "critic.ppo_epochs",
        "${actor_rollout_ref.actor.ppo_epochs}",
        f"{AT}.epochs_per_step",
        value_type=INTEGER,
    ),
    refused(
        "critic.shuffle",
        "${actor_rollout_ref.actor.shuffle}",
        "policy and critic process a step in the same order; write actor_rollout_ref.actor.shuffle",
        supported=same_as("actor_rollout_ref.actor.shuffle"),
        inactive=switches.gae,
    ),
    _row("critic.grad_clip", 1.0, f"{AT}.max_grad_norm", value_type=nullable(NUMBER), inactive=_KEYS.fsdp),
    _row("critic.cliprange_value", 0.5, f"{AT}.value_clip"),
    _row(
        "critic.loss_agg_mode",
        "${actor_rollout_ref.actor.loss_agg_mode}",
        f"{AT}.aggregation",
        value_type=one_of(
            "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
        ),
        note="aggregation of the value loss",
    ),
    refused(
        "critic.loss_scale_factor",
        f"${{{_ACTOR}.loss_scale_factor}}",
        "the sum over tokens is divided by data.max_response_length; leave it null",
        supported=lambda foreign, value: value in (None, foreign["data.max_response_length"]),
        inactive=any_inactive(switches.gae, unless("critic.loss_agg_mode", "seq-mean-token-sum-norm")),
    ),
    no_effect("critic.data_loader_seed", UNSET, ONE_SEED),
    _row(
        f"{OPTIM}.lr",
        1e-5,
        f"{AT}.optimizer.lr",
        note="verl's ppo_megatron_trainer.yaml has 1e-6 up to 0.5, and 1e-5 since 0.6, which is used",
    ),
    _row(f"{OPTIM}.weight_decay", 0.01, f"{AT}.optimizer.weight_decay"),
    _row(f"{OPTIM}.betas", [0.9, 0.999], f"{AT}.optimizer.betas", value_type=BETAS, inactive=_KEYS.fsdp),
    _row(f"{OPTIM}.clip_grad", 1.0, f"{AT}.max_grad_norm", inactive=_KEYS.megatron, note="0 means no bound"),
    *_KEYS.warmup_rows(AT, critic),
    *_KEYS.megatron_rows(AT, critic),
    *_KEYS.later_rows(AT, critic, MIXED_STATE),
    refused(
        "critic.checkpoint.save_contents",
        "${actor_rollout_ref.actor.checkpoint.save_contents}",
        "policy and critic are saved together; write actor_rollout_ref.actor.checkpoint.save_contents",
        supported=same_as("actor_rollout_ref.actor.checkpoint.save_contents"),
        inactive=switches.gae,
    ),
    refused(
        "critic.checkpoint.load_contents",
        f"${{{_CONTENTS}.load_contents}}",
        f"policy and critic are loaded together; write {_CONTENTS}.load_contents",
        supported=same_as(f"{_CONTENTS}.load_contents"),
        value_type=STRING_OR_LIST,
        inactive=switches.gae,
    ),
    no_effect("critic.checkpoint.mbridge_config.*", UNSET, "critic and policy are saved together"),
    no_effect("critic.checkpoint.async_save", False, "checkpoints are complete before the next step"),
    _SWITCH,
    no_effect("critic.kl_ctrl.*", UNSET, "no part of verl reads it"),
    _fixed(
        "optim.optimizer", "adam", "the critic is trained with AdamW; leave it at its default", only(*ADAMW)
    ),
    _fixed("optim.name", "AdamW", "the critic is trained with AdamW; leave it at its default", only(*ADAMW)),
    _fixed(
        "optim.weight_decay_incr_style",
        "constant",
        "the critic's weight decay is constant; leave it constant",
    ),
    _fixed("model.lora.rank", 0, "the whole critic is trained; write 0"),
    _fixed("model.lora_adapter_path", None, "the whole critic is trained; leave it null"),
)
ROWS = (*_LISTED, *_UNLISTED)
