"""Ledger rows of Trinity's `trainer.trainer_config`: verl's keys with the defaults of Trinity's documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    INTEGER,
    MAPPING,
    NO_SHARDS,
    NUMBER,
    OWN_KERNELS,
    TRAINER_MICRO_BATCHES,
    UNSET,
    ForeignValues,
    KeyConverter,
    KeyMapping,
    also_inactive,
    always,
    mapped,
    no_effect,
    no_effects,
    not_on_page,
    nullable,
    only,
    placement,
    refused,
    same_as,
    versions,
    written_by,
)
from strop.compat.trinity.algorithm import algorithm
from strop.compat.trinity.embedded_verl import (
    PREFIX,
    embedded_converter,
    remaining_rows,
    verl_row,
    with_ranks,
)
from strop.compat.trinity.presets import is_offline, only_sampled, without_critic
from strop.compat.verl.critic import critic
from strop.compat.verl.model import override_config
from strop.compat.verl.rollout_correction import correction
from strop.config.schema import Run

_CORRECTION = "algorithm.rollout_correction"
_READ_ELSEWHERE = ("bypass_mode", "loss_type")
"""Keys that the converter of the algorithm reads and writes, and those that Trinity does not read."""


def write_corrections(run: Run) -> Mapping[str, Any]:
    """Write importance weights and rejection."""
    converter = embedded_converter(correction)
    assert isinstance(converter, KeyConverter)
    kept = {f"{PREFIX}{_CORRECTION}.{name}" for name in _READ_ELSEWHERE}
    return {key: value for key, value in converter.write(run).items() if key not in kept}


@written_by(write_corrections)
def corrections(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read importance weights and rejection; none without rollouts."""
    if is_offline(foreign):
        return {}
    found = embedded_converter(correction)(foreign)
    return {field: value for field, value in found.items() if field != "algorithm.old_policy"}


_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_REF = "actor_rollout_ref.ref"
_CHUNKS = "log-probs and entropy are always computed in chunks"
_CONTENTS = ["model", "optimizer", "extra"]
_TOTAL_STEPS = "Trinity overwrites it; write trainer.total_steps"
_UNREAD = "Trinity's trainer does not read it"


def _same(key: str) -> str:
    """A default that is the value of another key of verl."""
    return f"${{{PREFIX}{key}}}"


def _placed(key: str, default: Any, note: str, *wanted: Any) -> KeyMapping:
    supported = only(*wanted) if wanted else always
    return placement(PREFIX + key, default, note, supported=supported, value_type=ANY)


def _no_adapter(foreign: ForeignValues, value: Any) -> bool:
    return not foreign[f"{PREFIX}{_MODEL}.lora_rank"]


def _schedule_row(section: str) -> KeyMapping:
    """The row of a later name of `warmup_style`."""
    return verl_row(
        f"{section}.optim.warmup_style",
        None,
        key=f"{PREFIX}{section}.optim.lr_scheduler_type",
        default=UNSET,
        since="0.5",
        alias_of=f"{PREFIX}{section}.optim.warmup_style",
    )


_MODEL_ROWS = (
    verl_row(f"{_MODEL}.external_lib", None),
    mapped(
        f"{PREFIX}{_MODEL}.override_config",
        {},
        "model.override",
        read=embedded_converter(override_config),
        value_type=MAPPING,
        note="values of the model's config.json",
    ),
    verl_row(f"{_MODEL}.enable_gradient_checkpointing", True),
    verl_row(f"{_MODEL}.use_remove_padding", True),
    _placed(f"{_MODEL}.use_fused_kernels", False, OWN_KERNELS, False),
    _placed(f"{_MODEL}.fused_kernel_options.impl_backend", None, OWN_KERNELS, None, "None"),
    *not_on_page(
        *(
            refused(
                f"{PREFIX}{_MODEL}.{name}", default, "write Trinity's key model.lora_configs", supported=check
            )
            for name, default, check in (
                ("lora_rank", 0, only(0, None)),
                ("lora_alpha", UNSET, _no_adapter),
                ("target_modules", UNSET, _no_adapter),
                ("exclude_modules", UNSET, _no_adapter),
                ("lora_adapter_path", None, only(None)),
            )
        ),
        *no_effects(f"{PREFIX}{_MODEL}", ("rope_scaling", "rope_theta"), "Trinity's keys are in model"),
    ),
)
_ACTOR_ROWS = (
    verl_row(f"{_ACTOR}.strategy", "fsdp"),
    verl_row(f"{_ACTOR}.ppo_micro_batch_size", None),
    verl_row(f"{_ACTOR}.ppo_micro_batch_size_per_gpu", 4),
    verl_row(f"{_ACTOR}.use_dynamic_bsz", True),
    verl_row(f"{_ACTOR}.ppo_max_token_len_per_gpu", 16384),
    verl_row(f"{_ACTOR}.grad_clip", 1.0),
    verl_row(f"{_ACTOR}.ppo_epochs", 1),
    verl_row(f"{_ACTOR}.shuffle", False),
    verl_row(f"{_ACTOR}.ulysses_sequence_parallel_size", 1),
    _placed(f"{_ACTOR}.entropy_from_logits_with_chunking", False, _CHUNKS),
    _placed(f"{_ACTOR}.entropy_checkpointing", False, _CHUNKS),
    verl_row(f"{_ACTOR}.checkpoint.load_contents", _CONTENTS),
    verl_row(f"{_ACTOR}.checkpoint.save_contents", _CONTENTS),
    verl_row(f"{_ACTOR}.optim.lr", 1e-6),
    verl_row(f"{_ACTOR}.optim.lr_warmup_steps_ratio", 0.0),
    verl_row(f"{_ACTOR}.optim.min_lr_ratio", None, value_type=nullable(NUMBER)),
    verl_row(f"{_ACTOR}.optim.warmup_style", "constant"),
    no_effect(f"{PREFIX}{_ACTOR}.optim.total_training_steps", -1, _TOTAL_STEPS, value_type=ANY),
    verl_row(f"{_ACTOR}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap", None),
    verl_row(f"{_ACTOR}.fsdp_config.wrap_policy.min_num_params", 0),
    verl_row(f"{_ACTOR}.fsdp_config.param_offload", False),
    verl_row(f"{_ACTOR}.fsdp_config.optimizer_offload", False),
    verl_row(f"{_ACTOR}.fsdp_config.fsdp_size", -1),
    verl_row(f"{_ACTOR}.fsdp_config.forward_prefetch", False),
    *not_on_page(
        _schedule_row(_ACTOR),
        verl_row(f"{_ACTOR}.optim.lr_decay_style", "constant", note="Trinity's default is constant"),
        no_effect(
            f"{PREFIX}{_ACTOR}.loss_agg_mode",
            "token-mean",
            "Trinity's key is algorithm.policy_loss_fn_args.loss_agg_mode",
            value_type=ANY,
        ),
        *(
            no_effect(
                f"{PREFIX}{_ACTOR}.policy_loss.{name}",
                default,
                "Trinity's policy losses do not read it",
                value_type=ANY,
            )
            for name, default in (
                ("clip_cov_ratio", 0.0002),
                ("clip_cov_lb", 1.0),
                ("clip_cov_ub", 5.0),
                ("kl_cov_ratio", 0.0002),
                ("ppo_kl_coef", 0.1),
            )
        ),
    ),
)
_REF_ROWS = (
    verl_row(f"{_REF}.fsdp_config.param_offload", False),
    verl_row(f"{_REF}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap", None),
    verl_row(f"{_REF}.fsdp_config.wrap_policy.min_num_params", 0),
    _placed(f"{_REF}.fsdp_config.fsdp_size", -1, NO_SHARDS, -1, 1),
    _placed(f"{_REF}.fsdp_config.forward_prefetch", False, NO_SHARDS, False),
    _placed(f"{_REF}.log_prob_micro_batch_size", None, TRAINER_MICRO_BATCHES),
    _placed(f"{_REF}.log_prob_micro_batch_size_per_gpu", 4, TRAINER_MICRO_BATCHES),
    _placed(f"{_REF}.log_prob_use_dynamic_bsz", _same(f"{_ACTOR}.use_dynamic_bsz"), TRAINER_MICRO_BATCHES),
    _placed(
        f"{_REF}.log_prob_max_token_len_per_gpu",
        _same(f"{_ACTOR}.ppo_max_token_len_per_gpu"),
        TRAINER_MICRO_BATCHES,
    ),
    placement(
        f"{PREFIX}{_REF}.ulysses_sequence_parallel_size",
        _same(f"{_ACTOR}.ulysses_sequence_parallel_size"),
        "the reference model is divided as the actor is",
        supported=same_as(f"{PREFIX}{_ACTOR}.ulysses_sequence_parallel_size"),
        value_type=INTEGER,
    ),
    _placed(
        f"{_REF}.entropy_from_logits_with_chunking",
        _same(f"{_ACTOR}.entropy_from_logits_with_chunking"),
        _CHUNKS,
    ),
    _placed(f"{_REF}.entropy_checkpointing", _same(f"{_ACTOR}.entropy_checkpointing"), _CHUNKS),
)
_CRITIC_ROWS = (
    verl_row("critic.strategy", _same(f"{_ACTOR}.strategy")),
    verl_row("critic.optim.lr", 1e-5),
    verl_row("critic.optim.lr_warmup_steps_ratio", 0.0),
    verl_row("critic.optim.min_lr_ratio", None, value_type=nullable(NUMBER)),
    verl_row("critic.optim.warmup_style", "constant"),
    no_effect(f"{PREFIX}critic.optim.total_training_steps", -1, _TOTAL_STEPS, value_type=ANY),
    mapped(
        f"{PREFIX}critic.model.override_config",
        {},
        "algorithm.critic.model.override",
        read=embedded_converter(critic),
        value_type=MAPPING,
        inactive=without_critic,
    ),
    verl_row("critic.model.external_lib", _same(f"{_MODEL}.external_lib")),
    verl_row("critic.model.enable_gradient_checkpointing", True),
    verl_row("critic.model.use_remove_padding", False),
    verl_row("critic.model.fsdp_config.param_offload", False),
    verl_row("critic.model.fsdp_config.optimizer_offload", False),
    verl_row("critic.model.fsdp_config.wrap_policy.min_num_params", 0),
    verl_row("critic.model.fsdp_config.fsdp_size", -1),
    verl_row(
        f"{_ACTOR}.fsdp_config.forward_prefetch",
        False,
        key=f"{PREFIX}critic.model.fsdp_config.forward_prefetch",
        inactive=without_critic,
    ),
    verl_row("critic.ppo_micro_batch_size_per_gpu", 8),
    verl_row("critic.forward_micro_batch_size_per_gpu", _same("critic.ppo_micro_batch_size_per_gpu")),
    verl_row("critic.use_dynamic_bsz", _same(f"{_ACTOR}.use_dynamic_bsz")),
    verl_row("critic.ppo_max_token_len_per_gpu", 32768),
    verl_row("critic.forward_max_token_len_per_gpu", _same("critic.ppo_max_token_len_per_gpu")),
    verl_row("critic.ulysses_sequence_parallel_size", 1),
    verl_row("critic.ppo_epochs", _same(f"{_ACTOR}.ppo_epochs")),
    verl_row("critic.shuffle", _same(f"{_ACTOR}.shuffle")),
    verl_row("critic.grad_clip", 1.0),
    verl_row("critic.cliprange_value", 0.5),
    *not_on_page(
        _schedule_row("critic"),
        verl_row("critic.optim.lr_decay_style", "constant", note="Trinity's default is constant"),
    ),
)
_TRAINER_ROWS = (
    refused(
        f"{PREFIX}actor_rollout_ref.hybrid_engine",
        True,
        "mode and synchronizer name the processes; leave it True",
    ),
    verl_row("trainer.balance_batch", True),
    no_effect(f"{PREFIX}trainer.total_training_steps", None, _TOTAL_STEPS, value_type=nullable(INTEGER)),
    no_effect(
        f"{PREFIX}trainer.resume_mode",
        "auto",
        "Trinity overwrites it; write continue_from_checkpoint",
        value_type=ANY,
    ),
    refused(f"{PREFIX}trainer.resume_from_path", "", "write Trinity's key continue_from_checkpoint"),
    verl_row("trainer.critic_warmup", 0),
    verl_row("trainer.default_hdfs_dir", None),
    verl_row("trainer.remove_previous_ckpt_in_save", False),
    verl_row("trainer.del_local_ckpt_after_load", False),
    verl_row("trainer.max_actor_ckpt_to_keep", 5),
    refused(
        f"{PREFIX}trainer.max_critic_ckpt_to_keep",
        5,
        "a checkpoint has both models; write max_actor_ckpt_to_keep, and the same number for this key",
        supported=same_as(f"{PREFIX}trainer.max_actor_ckpt_to_keep"),
        inactive=without_critic,
        value_type=nullable(INTEGER),
    ),
)
_CORRECTIONS = not_on_page(
    mapped(
        f"{PREFIX}{_CORRECTION}.bypass_mode",
        True,
        "algorithm.old_policy",
        read=algorithm,
        inactive=only_sampled,
        note="true takes the sampler's log-probs as those of the old policy",
    ),
    *versions(
        *(
            also_inactive(verl_row(f"{_CORRECTION}.{name}", default, read=corrections), only_sampled)
            for name, default in (
                ("rollout_is", None),
                ("rollout_is_threshold", 2.0),
                ("rollout_is_batch_normalize", False),
                ("rollout_rs", None),
                ("rollout_rs_threshold", None),
                ("rollout_rs_threshold_lower", None),
                ("rollout_token_veto_threshold", None),
            )
        ),
        no_effect(
            f"{PREFIX}{_CORRECTION}.loss_type", "ppo_clip", "Trinity's key is algorithm.policy_loss_fn"
        ),
        since="0.5",
    ),
)
_ELSEWHERE = {
    f"{_ACTOR}.ppo_mini_batch_size": "buffer.train_batch_size",
    "critic.ppo_mini_batch_size": "buffer.train_batch_size",
    f"{_MODEL}.path": "model.model_path",
    "critic.model.path": "model.critic_model_path",
    f"{_ACTOR}.clip_ratio": "algorithm.policy_loss_fn_args.clip_range",
    f"{_ACTOR}.clip_ratio_low": "algorithm.policy_loss_fn_args.clip_range_low",
    f"{_ACTOR}.clip_ratio_high": "algorithm.policy_loss_fn_args.clip_range_high",
    f"{_ACTOR}.clip_ratio_c": "algorithm.policy_loss_fn_args.clip_ratio_c",
    f"{_ACTOR}.policy_loss.loss_mode": "algorithm.policy_loss_fn",
    f"{_ACTOR}.entropy_coeff": "algorithm.entropy_loss_fn_args.entropy_coef",
    f"{_ACTOR}.use_kl_loss": "algorithm.kl_loss_fn",
    f"{_ACTOR}.kl_loss_type": "algorithm.kl_loss_fn",
    f"{_ACTOR}.kl_loss_coef": "algorithm.kl_loss_fn_args.kl_coef",
    "algorithm.adv_estimator": "algorithm.advantage_fn",
    "algorithm.norm_adv_by_std_in_grpo": "algorithm.advantage_fn_args",
    "algorithm.use_kl_in_reward": "algorithm.kl_penalty_fn",
    "algorithm.gamma": "algorithm.advantage_fn_args.gamma",
    "algorithm.lam": "algorithm.advantage_fn_args.lam",
    "algorithm.kl_penalty": "algorithm.kl_penalty_fn",
    "algorithm.kl_ctrl.*": "algorithm.kl_penalty_fn_args",
    "trainer.project_name": "project",
    "trainer.group_name": "group",
    "trainer.experiment_name": "name",
    "trainer.logger": "monitor.monitor_type",
    "trainer.nnodes": "cluster.node_num",
    "trainer.n_gpus_per_node": "cluster.gpu_per_node",
    "trainer.save_freq": "trainer.save_interval",
    "trainer.test_freq": "explorer.eval_interval",
    "trainer.sync_freq": "synchronizer.sync_interval",
    "trainer.total_epochs": "buffer.total_epochs",
    "trainer.default_local_dir": "checkpoint_root_dir",
    "trainer.val_before_train": "explorer.eval_on_startup",
    "trainer.sft_warmup_steps": "buffer.trainer_input.sft_warmup_steps",
}
"""Keys of verl, each with Trinity's key that takes its place."""
_UNUSED = not_on_page(
    *(no_effect(PREFIX + key, UNSET, f"Trinity's key is {instead}") for key, instead in _ELSEWHERE.items()),
    *no_effects(
        f"{PREFIX}actor_rollout_ref",
        ("actor.fix_actor_microbatch_loss_scale", "ref.use_prefix_grouper"),
        "the loss is normalized over the whole update, and a group's prompt is always computed once",
    ),
    *no_effects(
        f"{PREFIX}actor_rollout_ref",
        ("rollout.*", "synchronizer.*", "explorer_name", "nccl_timeout", "ref.checkpoint.*"),
        _UNREAD,
    ),
    *no_effects(
        f"{PREFIX}trainer",
        ("val_generations_to_log_to_wandb", "training_rollout_mode", "enable_exp_buffer", "device"),
        _UNREAD,
    ),
    *no_effects(
        PREFIX.rstrip("."),
        (
            *("data.*", "buffer.*", "synchronizer.*", "global_profiler.*", "enable_preview"),
            *("custom_reward_function.*", "reward_model.*", "reward.*"),
        ),
        _UNREAD,
    ),
)
_WRITTEN = (*_MODEL_ROWS, *_ACTOR_ROWS, *_REF_ROWS, *_CRITIC_ROWS, *_TRAINER_ROWS)
_NOT_IN_TRINITY = {f"{PREFIX}{_ACTOR}.{name}" for name in ("tis_imp_ratio_cap", "use_rollout_log_probs")}
_OTHERS = remaining_rows(
    (f"{_ACTOR}.", f"{_MODEL}.", f"{_REF}.", "critic."),
    {row.key for row in (*_WRITTEN, *_UNUSED)} | _NOT_IN_TRINITY,
)
ROWS = (*map(with_ranks, (*_WRITTEN, *_OTHERS, *_CORRECTIONS)), *_UNUSED)
