"""Ledger rows of verl's `critic`, the value model of `gae`. The page only says that its keys are like the
actor's."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import (
    UNSET,
    any_inactive,
    mapped,
    never,
    not_on_page,
    only,
    placement,
    refused,
    same_as,
)
from strop.compat.ledger.placement_notes import ALWAYS_PACKED, NO_SHARDS, ONE_TRAINER
from strop.compat.ledger.value_types import (
    BETAS,
    INTEGER,
    NUMBER,
    STRING,
    STRING_OR_LIST,
    nullable,
    one_of,
)
from strop.compat.verl import switches
from strop.compat.verl.critic_converters import (
    AT,
    OPTIM,
    RECOMPUTED,
    cosine,
    critic,
    dynamic_batch,
    falling,
    fixed_batch,
    fsdp,
    megatron,
    no_ratio,
    own_model,
    wsd,
)
from strop.compat.verl.fixed_critic_keys import ROWS as FIXED
from strop.compat.verl.megatron_optimizer import schedule_rows
from strop.compat.verl.parallelism import megatron_parallelism_rows

_RECOMPUTED_FIELD = f"{AT}.model.gradient_checkpointing"
_MODEL = (
    mapped(
        "critic.model.path",
        None,
        f"{AT}.model",
        f"{AT}.model.path",
        read=critic,
        value_type=nullable(STRING),
        inactive=switches.gae,
        note="null means the policy's model",
    ),
    mapped(
        "critic.model.tokenizer_path",
        None,
        f"{AT}.model.tokenizer",
        read=critic,
        value_type=nullable(STRING),
        inactive=own_model,
        note="must have the policy's tokens",
    ),
    mapped(
        "critic.model.external_lib",
        None,
        f"{AT}.model.imports",
        read=critic,
        value_type=nullable(STRING_OR_LIST),
        inactive=own_model,
    ),
    mapped("critic.model.override_config.*", UNSET, f"{AT}.model.override", read=critic, inactive=own_model),
    mapped(
        "critic.model.enable_gradient_checkpointing",
        False,
        _RECOMPUTED_FIELD,
        read=critic,
        inactive=own_model,
    ),
    RECOMPUTED.offload_row(f"{AT}.model.activation_offload", critic, own_model),
    mapped(
        "critic.model.trust_remote_code",
        False,
        f"{AT}.model.trust_remote_code",
        read=critic,
        inactive=own_model,
    ),
    mapped(
        "critic.model.fsdp_config.model_dtype",
        "fp32",
        f"{AT}.model.dtype",
        read=critic,
        value_type=one_of("fp32", "float32", "bf16", "bfloat16"),
        inactive=own_model,
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
    *megatron_parallelism_rows("critic.megatron", megatron),
)
_MEGATRON = schedule_rows(OPTIM, AT, critic, megatron, falling, wsd)
_OPTIMIZER = (
    mapped(
        f"{OPTIM}.lr",
        1e-5,
        f"{AT}.optimizer.lr",
        read=critic,
        inactive=switches.gae,
        note="verl's ppo_megatron_trainer.yaml has 1e-6 up to 0.5, and 1e-5 since 0.6, which is used",
    ),
    mapped(f"{OPTIM}.weight_decay", 0.01, f"{AT}.optimizer.weight_decay", read=critic, inactive=switches.gae),
    mapped(
        f"{OPTIM}.betas",
        [0.9, 0.999],
        f"{AT}.optimizer.betas",
        read=critic,
        value_type=BETAS,
        inactive=fsdp,
    ),
    mapped(
        f"{OPTIM}.lr_warmup_steps",
        -1,
        f"{AT}.schedule.warmup",
        read=critic,
        value_type=nullable(INTEGER),
        inactive=switches.gae,
        note="a negative value means that the ratio applies",
    ),
    mapped(
        f"{OPTIM}.lr_warmup_steps_ratio",
        0.0,
        f"{AT}.schedule.warmup",
        read=critic,
        inactive=any_inactive(switches.gae, no_ratio),
    ),
    mapped(
        f"{OPTIM}.warmup_style",
        "constant",
        f"{AT}.schedule.type",
        read=critic,
        value_type=one_of("constant", "cosine"),
        inactive=fsdp,
    ),
    mapped(f"{OPTIM}.min_lr_ratio", 0.0, f"{AT}.schedule.min_ratio", read=critic, inactive=cosine),
    mapped(f"{OPTIM}.num_cycles", 0.5, f"{AT}.schedule.cycles", read=critic, inactive=cosine),
    mapped(
        f"{OPTIM}.clip_grad",
        1.0,
        f"{AT}.max_grad_norm",
        read=critic,
        inactive=megatron,
        note="0 means no bound",
    ),
    *_MEGATRON.values(),
)
_UPDATES = (
    mapped(
        "critic.ppo_mini_batch_size",
        "${actor_rollout_ref.actor.ppo_mini_batch_size}",
        f"{AT}.tasks_per_update",
        read=critic,
        value_type=INTEGER,
        inactive=switches.gae,
        note="counts prompts",
    ),
    mapped(
        "critic.ppo_micro_batch_size",
        None,
        f"{AT}.microbatch",
        read=critic,
        value_type=nullable(INTEGER),
        inactive=fixed_batch,
        note="total number of sequences on all GPUs",
        deprecated="write ppo_micro_batch_size_per_gpu, the number per GPU",
    ),
    mapped(
        "critic.ppo_micro_batch_size_per_gpu",
        8,
        f"{AT}.microbatch",
        read=critic,
        value_type=INTEGER,
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
    mapped(
        "critic.use_dynamic_bsz",
        "${actor_rollout_ref.actor.use_dynamic_bsz}",
        f"{AT}.microbatch",
        read=critic,
        inactive=switches.gae,
    ),
    mapped(
        "critic.ppo_max_token_len_per_gpu", 32768, f"{AT}.microbatch", read=critic, inactive=dynamic_batch
    ),
    placement(
        "critic.forward_max_token_len_per_gpu",
        "${critic.ppo_max_token_len_per_gpu}",
        "values are computed in the critic's training micro-batches",
        supported=same_as("critic.ppo_max_token_len_per_gpu"),
        inactive=dynamic_batch,
    ),
    mapped(
        "critic.ppo_epochs",
        "${actor_rollout_ref.actor.ppo_epochs}",
        f"{AT}.epochs_per_step",
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
        f"{AT}.max_grad_norm",
        read=critic,
        value_type=nullable(NUMBER),
        inactive=fsdp,
    ),
    mapped("critic.cliprange_value", 0.5, f"{AT}.value_clip", read=critic, inactive=switches.gae),
)
ROWS = (
    refused(
        "critic.*",
        UNSET,
        "the run file's algorithm.critic has no equivalent of this key; remove it",
        supported=never,
        inactive=switches.gae,
    ),
    *not_on_page(*_MODEL, *_OPTIMIZER, *_UPDATES, *FIXED),
)
