"""Ledger rows of keys that verl's own YAML files have and launch scripts seldom set, and keys that are null in them."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import (
    UNSET,
    InactiveCheck,
    KeyMapping,
    ReadFunction,
    any_inactive,
    mapped,
    no_effect,
    not_on_page,
    placement_section,
    refused,
    unless,
)
from strop.compat.ledger.value_types import ANY, one_of
from strop.compat.verl import switches
from strop.compat.verl.actor_converters import schedule
from strop.compat.verl.critic_converters import critic

_ACTOR, _REF, _ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout"))
_NO_PROFILER = "Strop does not profile a run; the metrics have the time of every part of a step"
NO_REPLAY = (
    "it trains on the rollouts of an earlier run, which other weights sampled, as if they were new, to measure the "
    "trainer's speed; Strop does not replay rollouts from a folder; leave it False, or train on given responses "
    "with strop verl sft"
)
"""Reason and replacement of verl's replay of rollouts."""
_NOT_SKIPPED = "rollouts are never skipped"
_CONTINUES = "every turn of a conversation continues the sampled tokens"
_MEMORY = "it changes only memory use"
_MUON_NAMES = (
    *("muon_momentum", "muon_nesterov", "muon_split_qkv", "muon_scale_mode", "muon_coefficient_type"),
    *("muon_num_ns_steps", "muon_tp_mode", "muon_fp32_matmul_prec", "muon_extra_scale_factor"),
    *("muon_scalar_optimizer", "muon_match_adamw_update_rms"),
)
MUON = tuple(f"{at}.optim.{name}" for at in (_ACTOR, "critic") for name in _MUON_NAMES)
"""Options of Megatron's Muon."""
NULL_IS_UNSET = (
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{_REF}.log_prob_micro_batch_size_per_gpu",
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
    "reward_model.micro_batch_size_per_gpu",
    "reward_model.model.path",
    "reward_model.model.trust_remote_code",
    "reward_model.reward_manager",
    "data.seed",
    *(f"{at}.optim.{name}" for at in (_ACTOR, "critic") for name in ("warmup_style", "min_lr_ratio")),
)
"""Keys that are null in verl's files, where verl takes a default or does not read them."""


def _torchtitan_rows(
    section: str, at: str, read: ReadFunction, *more: InactiveCheck
) -> tuple[KeyMapping, ...]:
    """Rows of torchtitan's schedule: linear by default, from the end of the warm-up to the end of the run."""
    inactive = any_inactive(*more, unless(f"{section}.strategy", "torchtitan"))
    return (
        refused(f"{section}.optim.eps", 1e-8, "AdamW's epsilon is 1e-8; leave it 1e-8"),
        mapped(
            f"{section}.optim.decay_type",
            "linear",
            f"{at}.schedule.type",
            read=read,
            value_type=one_of("linear", "cosine", "sqrt"),
            inactive=inactive,
            note="torchtitan's decay, from the end of the warm-up to the end of the run",
        ),
        mapped(
            f"{section}.optim.min_lr_factor",
            0.0,
            f"{at}.schedule.min_ratio",
            read=read,
            inactive=inactive,
            note="torchtitan's last rate, as a fraction of lr; 1 is a constant rate",
        ),
    )


ROWS = not_on_page(
    refused(f"{_ROLLOUT}.skip_rollout", False, NO_REPLAY),
    refused(f"{_ROLLOUT}.skip.enable", False, NO_REPLAY),
    no_effect(f"{_ROLLOUT}.skip_dump_dir", UNSET, _NOT_SKIPPED, value_type=ANY),
    no_effect(f"{_ROLLOUT}.skip.*", UNSET, _NOT_SKIPPED, value_type=ANY),
    refused(
        f"{_ROLLOUT}.use_fire_sampling",
        False,
        "Strop samples the first token like all others; leave it False",
    ),
    no_effect(
        f"{_ROLLOUT}.trust_remote_code",
        UNSET,
        "verl reads data.trust_remote_code and actor_rollout_ref.model.trust_remote_code",
        value_type=ANY,
    ),
    *_torchtitan_rows(_ACTOR, "trainer", schedule),
    *_torchtitan_rows("critic", "algorithm.critic", critic, switches.gae),
    no_effect(f"{_REF}.optim.*", UNSET, "the reference model is not trained", value_type=ANY),
    no_effect(f"{_REF}.param_offload", UNSET, _MEMORY, value_type=ANY),
    placement_section(f"{_REF}.model", "the reference model is the initial policy"),
    no_effect("actor_rollout_ref.profiler.*", UNSET, _NO_PROFILER, value_type=ANY),
    no_effect(f"{_ACTOR}.sum_pi_squared_checkpointing", UNSET, _MEMORY, value_type=ANY),
    *(
        no_effect(key, UNSET, "it is an option of Muon, which Strop does not have", value_type=ANY)
        for key in MUON
    ),
    no_effect("data.continuous_token.*", UNSET, _CONTINUES, value_type=ANY),
)
"""Rows of the keys; `muon` itself is refused as `optim.optimizer`."""
