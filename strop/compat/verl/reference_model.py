"""Ledger rows of verl's `actor_rollout_ref.ref`."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import any_inactive, not_on_page, only, placement, same_as
from strop.compat.ledger.placement_notes import NO_SHARDS, TRAINER_MICRO_BATCHES
from strop.compat.ledger.value_types import INTEGER, nullable
from strop.compat.verl import layout, switches
from strop.compat.verl.parallelism import megatron_parallelism_rows
from strop.compat.verl.recomputation import REFERENCE_ROWS

ROWS = (
    layout.REF_OFFLOAD,
    placement(
        "actor_rollout_ref.ref.fsdp_config.wrap_policy.min_num_params", 0, NO_SHARDS, supported=only(0)
    ),
    placement(
        "actor_rollout_ref.ref.log_prob_micro_batch_size",
        None,
        TRAINER_MICRO_BATCHES,
        value_type=nullable(INTEGER),
        supported=only(None),
        inactive=any_inactive(switches.reference, switches.ref_fixed),
    ),
    placement(
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        16,
        TRAINER_MICRO_BATCHES,
        supported=same_as("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
        inactive=any_inactive(switches.reference, switches.ref_fixed),
    ),
    placement(
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz",
        "${actor_rollout_ref.actor.use_dynamic_bsz}",
        TRAINER_MICRO_BATCHES,
        supported=same_as("actor_rollout_ref.actor.use_dynamic_bsz"),
        inactive=switches.reference,
    ),
    placement(
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
        "${actor_rollout_ref.actor.ppo_max_token_len_per_gpu}",
        TRAINER_MICRO_BATCHES,
        supported=same_as("actor_rollout_ref.actor.ppo_max_token_len_per_gpu"),
        inactive=any_inactive(switches.reference, switches.ref_dynamic),
    ),
    placement(
        "actor_rollout_ref.ref.ulysses_sequence_parallel_size",
        "${actor_rollout_ref.actor.ulysses_sequence_parallel_size}",
        "the reference model is divided as the actor is",
        supported=same_as("actor_rollout_ref.actor.ulysses_sequence_parallel_size"),
    ),
    *not_on_page(
        placement(
            "actor_rollout_ref.ref.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",
            None,
            NO_SHARDS,
            supported=only(None),
        ),
        *REFERENCE_ROWS,
        *megatron_parallelism_rows(
            "actor_rollout_ref.ref.megatron", any_inactive(switches.reference, switches.megatron)
        ),
    ),
)
