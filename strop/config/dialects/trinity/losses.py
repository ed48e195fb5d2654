"""Trinity's `policy_loss_fn`: what is made of ratios and advantages, and how tokens are averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    ANY,
    NUMBER,
    UNSET,
    Row,
    always,
    beyond_the_page,
    mapped,
    never,
    one_of,
    or_null,
    placement,
    refused,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity import presets
from strop.config.dialects.trinity.write_algorithm import write_policy_loss

_ARGS = "algorithm.policy_loss_fn_args"
_FREE = ("ppo", "gspo", "opmd")
"""Losses that go with any advantages."""
_CLIPPED = ("ppo", "gspo", "mix")
_GSPO_CLIP = {"low": 3e-4, "high": 4e-4}
_AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
_clipped = presets.only_losses(*_CLIPPED)


@written_by(write_policy_loss)
def policy_loss(theirs: Theirs) -> Mapping[str, Any]:
    """The loss of rollouts. sft, dpo and mix have a loss of their own, and no other."""
    check_loss(theirs)
    if presets.is_offline(theirs):
        return {}
    loss = presets.loss(theirs)
    settings: dict[str, Any] = {"algorithm.aggregation": _aggregation(theirs, loss)}
    at = "algorithm.policy_loss"
    if loss == "opmd":
        return {**settings, f"{at}.type": "opmd", f"{at}.tau": theirs[f"{_ARGS}.tau"]}
    settings |= {
        f"{at}.clip_low": _bound(theirs, loss, "low"),
        f"{at}.clip_high": _bound(theirs, loss, "high"),
    }
    if loss == "gspo":
        return {**settings, f"{at}.type": "gspo"}
    return {**settings, f"{at}.type": "clip", f"{at}.dual_clip": theirs[f"{_ARGS}.clip_ratio_c"]}


def check_loss(theirs: Theirs) -> None:
    """Raises ConfigError for a loss that does not go with `algorithm_type`."""
    loss, own = presets.loss(theirs), presets.preset(theirs).loss
    if loss != own and not (loss in _FREE and own in _FREE):
        instead = f"policy_loss_fn {own}" if own not in _FREE else f"one of {', '.join(_FREE)}"
        raise theirs.fault(
            "algorithm.policy_loss_fn",
            f"algorithm.policy_loss_fn {loss} does not go with algorithm_type {presets.kind(theirs)}; write "
            f"{instead}, or leave it out.",
        )


def _bound(theirs: Theirs, loss: str, side: str) -> float:
    one, both = theirs[f"{_ARGS}.clip_range_{side}"], theirs[f"{_ARGS}.clip_range"]
    if one is None and loss == "gspo" and not theirs.wrote(f"{_ARGS}.clip_range"):
        return _GSPO_CLIP[side]
    return float(both if one is None else one)


def _aggregation(theirs: Theirs, loss: str) -> str:
    said = theirs[f"{_ARGS}.loss_agg_mode"]
    default = "seq-mean-token-mean" if loss == "gspo" else "token-mean"
    return default if said is None else str(said)


def _token_mean(theirs: Theirs, value: Any) -> bool:
    return value in (None, "token-mean", True)


ROWS: tuple[Row, ...] = beyond_the_page(
    mapped(
        "algorithm.policy_loss_fn",
        None,
        "algorithm.policy_loss.type",
        read=policy_loss,
        kind=or_null(one_of(*_FREE, "dpo", "sft", "mix")),
        note="by algorithm_type; ppo, gspo and opmd go with any advantages, the others with their own type",
    ),
    mapped(
        f"{_ARGS}.clip_range",
        0.2,
        "algorithm.policy_loss.clip_low",
        "algorithm.policy_loss.clip_high",
        read=policy_loss,
        off=_clipped,
        note="gspo: 3e-4 below and 4e-4 above where it is left out",
    ),
    *(
        mapped(
            f"{_ARGS}.clip_range_{side}",
            None,
            f"algorithm.policy_loss.clip_{side}",
            read=policy_loss,
            kind=or_null(NUMBER),
            off=_clipped,
            note="clip_range where it is left out",
        )
        for side in ("low", "high")
    ),
    mapped(
        f"{_ARGS}.clip_ratio_c",
        None,
        "algorithm.policy_loss.dual_clip",
        read=policy_loss,
        kind=or_null(NUMBER),
        off=presets.only_losses("ppo", "mix"),
        note="none where it is left out",
    ),
    mapped(
        f"{_ARGS}.tau", 1.0, "algorithm.policy_loss.tau", read=policy_loss, off=presets.only_losses("opmd")
    ),
    mapped(
        f"{_ARGS}.loss_agg_mode",
        None,
        "algorithm.aggregation",
        read=policy_loss,
        kind=or_null(one_of(*_AGGREGATIONS)),
        off=presets.only_sampled,
        note="token-mean; gspo: seq-mean-token-mean",
    ),
    *(
        refused(f"{_ARGS}.{name}", default, "given answers are averaged over their tokens", can=_token_mean)
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
            "each part of the loss is divided by its own count",
            can=always,
            kind=ANY,
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
    refused(f"{_ARGS}.*", UNSET, "this argument of the loss is not known; leave it out", can=never),
)
