"""Ledger rows of keys of verl's `critic` that Strop's critic has only at their defaults in verl's own files."""

from __future__ import annotations

from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    SupportCheck,
    any_inactive,
    mapped,
    no_effect,
    only,
    placement,
    refused,
    same_as,
    unless,
)
from strop.compat.ledger.value_types import ANY, INTEGER, STRING_OR_LIST, nullable, one_of
from strop.compat.verl import switches
from strop.compat.verl.critic_converters import AT, OPTIM, critic
from strop.compat.verl.empty_values import is_empty
from strop.compat.verl.lr_schedule import OVERWRITTEN
from strop.compat.verl.megatron_optimizer import ADAMW

_ACTOR = "actor_rollout_ref.actor"
_CONTENTS = f"{_ACTOR}.checkpoint"
_NO_LORA = "critic.model.lora_rank is 0, so that the whole critic is trained"


def _fixed(key: str, default: Any, reason: str, supported: SupportCheck | None = None) -> KeyMapping:
    """A refused key that is inactive without a critic."""
    return refused(f"critic.{key}", default, reason, supported=supported, inactive=switches.gae)


def _as_the_estimator_needs(foreign: ForeignValues, value: Any) -> bool:
    """Whether a critic is trained where the estimator reads one."""
    return value is None or bool(value) == (switches.gae(foreign) is None)


_SWITCH = refused(
    "critic.enable",
    None,
    "a critic is trained for algorithm.adv_estimator=gae, and for no other estimator; leave it null",
    supported=_as_the_estimator_needs,
)
_LOSS = (
    mapped(
        "critic.loss_agg_mode",
        "${actor_rollout_ref.actor.loss_agg_mode}",
        f"{AT}.aggregation",
        read=critic,
        value_type=one_of(
            "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
        ),
        inactive=switches.gae,
        note="aggregation of the value loss",
    ),
    refused(
        "critic.loss_scale_factor",
        f"${{{_ACTOR}.loss_scale_factor}}",
        "the sum over tokens is divided by data.max_response_length; leave it null",
        supported=lambda foreign, value: value in (None, foreign["data.max_response_length"]),
        inactive=any_inactive(switches.gae, unless("critic.loss_agg_mode", "seq-mean-token-sum-norm")),
    ),
    no_effect("critic.kl_ctrl.*", UNSET, "no part of verl reads it", value_type=ANY),
    refused(
        "critic.checkpoint.load_contents",
        f"${{{_CONTENTS}.load_contents}}",
        f"policy and critic are loaded together; write {_CONTENTS}.load_contents",
        supported=same_as(f"{_CONTENTS}.load_contents"),
        value_type=STRING_OR_LIST,
        inactive=switches.gae,
    ),
)
_OPTIMIZER = (
    _fixed(
        "optim.optimizer", "adam", "the critic is trained with AdamW; leave it at its default", only(*ADAMW)
    ),
    _fixed("optim.name", "AdamW", "the critic is trained with AdamW; leave it at its default", only(*ADAMW)),
    no_effect("critic.optim.total_training_steps", -1, OVERWRITTEN, value_type=nullable(INTEGER)),
    _fixed(
        "optim.weight_decay_incr_style",
        "constant",
        "the critic's weight decay is constant; leave it constant",
    ),
    _fixed("optim.zero_indexed_step", True, "the schedule counts steps from 0; leave it True"),
    _fixed("optim.lr_decay_ratio", 1.0, "the rate decays until the end of the run; write 1.0"),
    *(
        mapped(
            f"{OPTIM}.{name}",
            0.0,
            f"{AT}.schedule.{field}",
            read=critic,
            inactive=switches.gae,
            note="a rate, of VeOmni's schedule; a fraction of lr in the run file",
        )
        for name, field in (("lr_min", "min_ratio"), ("lr_start", "start_ratio"))
    ),
    _fixed(
        "optim.override_optimizer_config.*",
        UNSET,
        "Strop does not know this option of the critic's optimizer; remove it",
        is_empty,
    ),
    no_effect(
        "critic.optim.use_checkpoint_opt_param_scheduler", False, "a resumed run always keeps its schedule"
    ),
    *(
        placement(
            f"critic.optim.{name}",
            default,
            "the optimizer's state is in float32",
            supported=only(default),
            value_type=ANY,
            inactive=switches.gae,
        )
        for name, default in (
            ("optimizer_impl", "torch.optim"),
            ("use_precision_aware_optimizer", False),
            ("main_grads_dtype", "fp32"),
            ("exp_avg_dtype", "fp32"),
            ("exp_avg_sq_dtype", "fp32"),
            ("use_layer_wise_distributed_optimizer", False),
        )
    ),
)
_MODEL = (
    *(
        no_effect(f"critic.model.{name}", UNSET, why, value_type=ANY)
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
    _fixed("model.lora.rank", 0, "the whole critic is trained; write 0"),
    _fixed("model.lora_adapter_path", None, "the whole critic is trained; leave it null"),
    placement(
        "critic.model.tiled_mlp.enabled",
        False,
        "Strop's own kernels",
        supported=only(False),
        inactive=switches.gae,
    ),
    no_effect("critic.model.tiled_mlp.*", UNSET, "Strop's own kernels are used", value_type=ANY),
)
ROWS = (_SWITCH, *_LOSS, *_OPTIMIZER, *_MODEL)
"""Rows of the keys, which the seed page does not list."""
