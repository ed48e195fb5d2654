"""Ledger rows of Trinity's `policy_loss_fn`: the policy loss, its clip bounds and the loss aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    always,
    mapped,
    never,
    not_on_page,
    placement,
    refused,
    written_by,
)
from strop.dialects.ledger.value_types import ANY, NUMBER, nullable, one_of
from strop.dialects.trinity import presets
from strop.dialects.trinity.algorithm_writer import write_policy_loss

_ARGS = "algorithm.policy_loss_fn_args"
_SELECTABLE = ("ppo", "gspo", "opmd")
"""Losses that are compatible with all advantage functions."""
_CLIPPED = ("ppo", "gspo", "mix")
_GSPO_CLIP = {"low": 3e-4, "high": 4e-4}
_AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
_clipped = presets.only_losses(*_CLIPPED)


@written_by(write_policy_loss)
def policy_loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the policy loss; sft, dpo and mix accept only their own loss."""
    check_loss(foreign)
    if presets.is_offline(foreign):
        return {}
    loss = presets.loss(foreign)
    settings: dict[str, Any] = {"algorithm.aggregation": _aggregation(foreign, loss)}
    at = "algorithm.policy_loss"
    if loss == "opmd":
        return {**settings, f"{at}.type": "opmd", f"{at}.tau": foreign[f"{_ARGS}.tau"]}
    settings |= {
        f"{at}.clip_low": _clip_range(foreign, loss, "low"),
        f"{at}.clip_high": _clip_range(foreign, loss, "high"),
    }
    if loss == "gspo":
        return {**settings, f"{at}.type": "gspo"}
    return {**settings, f"{at}.type": "clip", f"{at}.dual_clip": foreign[f"{_ARGS}.clip_ratio_c"]}


def check_loss(foreign: ForeignValues) -> None:
    """Raise ConfigError for a loss that is incompatible with `algorithm_type`."""
    loss, own = presets.loss(foreign), presets.preset(foreign).loss
    if loss != own and not (loss in _SELECTABLE and own in _SELECTABLE):
        instead = f"policy_loss_fn {own}" if own not in _SELECTABLE else f"one of {', '.join(_SELECTABLE)}"
        raise foreign.error_for(
            "algorithm.policy_loss_fn",
            f"algorithm.policy_loss_fn {loss} is incompatible with algorithm_type "
            f"{presets.algorithm_type(foreign)}; write {instead}, or remove it.",
        )


def _clip_range(foreign: ForeignValues, loss: str, side: str) -> float:
    bound, default = foreign[f"{_ARGS}.clip_range_{side}"], foreign[f"{_ARGS}.clip_range"]
    if bound is None and loss == "gspo" and not foreign.is_set(f"{_ARGS}.clip_range"):
        return _GSPO_CLIP[side]
    return float(default if bound is None else bound)


def _aggregation(foreign: ForeignValues, loss: str) -> str:
    aggregation = foreign[f"{_ARGS}.loss_agg_mode"]
    default = "seq-mean-token-mean" if loss == "gspo" else "token-mean"
    return default if aggregation is None else str(aggregation)


def _token_mean(foreign: ForeignValues, value: Any) -> bool:
    return value in (None, "token-mean", True)


ROWS: tuple[KeyMapping, ...] = not_on_page(
    mapped(
        "algorithm.policy_loss_fn",
        None,
        "algorithm.policy_loss.type",
        read=policy_loss,
        value_type=nullable(one_of(*_SELECTABLE, "dpo", "sft", "mix")),
        note="default by algorithm_type; ppo, gspo and opmd work with all advantages, the others only with their own "
        "type",
    ),
    mapped(
        f"{_ARGS}.clip_range",
        0.2,
        "algorithm.policy_loss.clip_low",
        "algorithm.policy_loss.clip_high",
        read=policy_loss,
        inactive=_clipped,
        note="if not set, gspo clips at 3e-4 below and 4e-4 above",
    ),
    *(
        mapped(
            f"{_ARGS}.clip_range_{side}",
            None,
            f"algorithm.policy_loss.clip_{side}",
            read=policy_loss,
            value_type=nullable(NUMBER),
            inactive=_clipped,
            note="null means clip_range",
        )
        for side in ("low", "high")
    ),
    mapped(
        f"{_ARGS}.clip_ratio_c",
        None,
        "algorithm.policy_loss.dual_clip",
        read=policy_loss,
        value_type=nullable(NUMBER),
        inactive=presets.only_losses("ppo", "mix"),
        note="null means no dual clipping",
    ),
    mapped(
        f"{_ARGS}.tau",
        1.0,
        "algorithm.policy_loss.tau",
        read=policy_loss,
        inactive=presets.only_losses("opmd"),
    ),
    mapped(
        f"{_ARGS}.loss_agg_mode",
        None,
        "algorithm.aggregation",
        read=policy_loss,
        value_type=nullable(one_of(*_AGGREGATIONS)),
        inactive=presets.only_sampled,
        note="token-mean; gspo: seq-mean-token-mean",
    ),
    *(
        refused(
            f"{_ARGS}.{name}",
            default,
            "the loss of demonstrations is always averaged over tokens",
            supported=_token_mean,
        )
        for name, default in (
            ("use_token_level_loss", True),
            ("use_token_level_loss_in_sft", True),
            ("sft_loss_agg_mode", "token-mean"),
            ("grpo_loss_agg_mode", "token-mean"),
        )
    ),
    *(
        placement(
            f"{_ARGS}.{name}",
            UNSET,
            "each part of the loss is normalized by its own count",
            supported=always,
            value_type=ANY,
        )
        for name in (
            "use_dynamic_bsz",
            "ppo_mini_batch_size",
            "ppo_micro_batch_size_per_gpu",
            "ngpus_trainer",
            "train_batch_size_usual",
            "train_batch_size_expert",
        )
    ),
    refused(f"{_ARGS}.*", UNSET, "unknown argument of the policy loss; remove it", supported=never),
)
