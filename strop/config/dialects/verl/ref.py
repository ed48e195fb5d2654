"""verl's `actor_rollout_ref.ref`."""

from __future__ import annotations

from strop.config.dialects.row import WHOLE, beyond_the_page, either, only, or_null, placement, same_as
from strop.config.dialects.verl import switches
from strop.config.dialects.verl.engine import NO_SHARDS, engine

_AS_TRAINED = "log-probs go through the model in the trainer's micro-batches"

ROWS = (
    placement("actor_rollout_ref.ref.fsdp_config.param_offload", False, NO_SHARDS, can=only(False)),
    placement("actor_rollout_ref.ref.fsdp_config.wrap_policy.min_num_params", 0, NO_SHARDS, can=only(0)),
    placement(
        "actor_rollout_ref.ref.log_prob_micro_batch_size",
        None,
        _AS_TRAINED,
        kind=or_null(WHOLE),
        can=only(None),
        off=either(switches.reference, switches.ref_fixed),
    ),
    placement(
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        16,
        _AS_TRAINED,
        can=same_as("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
        off=either(switches.reference, switches.ref_fixed),
    ),
    placement(
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz",
        "${actor_rollout_ref.actor.use_dynamic_bsz}",
        _AS_TRAINED,
        can=same_as("actor_rollout_ref.actor.use_dynamic_bsz"),
        off=switches.reference,
    ),
    placement(
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
        "${actor_rollout_ref.actor.ppo_max_token_len_per_gpu}",
        _AS_TRAINED,
        can=same_as("actor_rollout_ref.actor.ppo_max_token_len_per_gpu"),
        off=either(switches.reference, switches.ref_dynamic),
    ),
    placement(
        "actor_rollout_ref.ref.ulysses_sequence_parallel_size",
        "${actor_rollout_ref.actor.ulysses_sequence_parallel_size}",
        NO_SHARDS,
        can=only(1),
    ),
    *beyond_the_page(
        placement(
            "actor_rollout_ref.ref.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",
            None,
            NO_SHARDS,
            can=only(None),
        ),
        *engine("actor_rollout_ref.ref.megatron", either(switches.reference, switches.megatron)),
    ),
)
