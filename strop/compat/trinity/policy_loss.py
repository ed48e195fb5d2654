"""Ledger rows of Trinity's `policy_loss_fn`: the policy loss, its clip bounds and the loss aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    NUMBER,
    UNSET,
    ForeignValues,
    mapped,
    named,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    refused,
    written_by,
)
from strop.compat.trinity import presets
from strop.compat.trinity.presets import PRESETS, algorithm_type_of, only_losses, only_sampled
from strop.config.schema import Run
from strop.config.schema.algorithm import SftConfig
from strop.config.schema.policy_loss import CispoLossConfig, ClippedLossConfig, GpgLossConfig, GspoLossConfig
from strop.config.schema.preference import PreferenceConfig, RewardModelingConfig, UnpairedConfig

LOSS_ARGS = "algorithm.policy_loss_fn_args"
_SELECTABLE = ("ppo", "gspo", "opmd", "cispo", "topr", "sppo", "rec", "sapo", "importance_sampling", "m2po")
"""Losses that are compatible with all advantage functions."""
_TOKEN_WEIGHTS = {"sft": "none", "sft_is": "p", "sft_phi": "p_one_minus_p"}
"""Weight of a demonstration's tokens under each loss of `algorithm_type: sft`."""
_ARGUMENTS: Mapping[str, tuple[tuple[str, Any, str], ...]] = {
    "opmd": (("tau", 1.0, "tau"),),
    "topr": (("advantage_threshold", 0.0, "threshold"),),
    "sppo": (("epsilon", 0.3, "clip"),),
    "rec": (
        ("epsilon_low", 0.2, "clip_low"),
        ("epsilon_high", 0.2, "clip_high"),
        ("epsilon_low_prime", 0.6, "ring_low"),
        ("epsilon_high_prime", 2.0, "ring_high"),
        ("clip_mode", "none", "clipping"),
        ("weight", "none", "weight"),
        ("temp", 1.0, "temperature"),
        ("regularizer", "none", "regularizer"),
        ("regularizer_coef", 0.0, "regularizer_coef"),
    ),
    "sapo": (("tau_pos", 1.0, "tau_pos"), ("tau_neg", 1.05, "tau_neg")),
    "importance_sampling": (),
    "m2po": (("m2_threshold", 0.04, "max_second_moment"),),
}
"""Losses that have Strop's name: Trinity's name and default of each argument, and the field that it decides."""
_NAMES = {
    "clip_mode": {"none": "none", "one-side": "one_side", "two-side": "two_sides", "ring": "ring"},
    "weight": {"none": "none", "importance_sampling": "ratio", "advantage": "advantage"},
    "regularizer": {"none": "none", "k2": "k2", "forward-kl": "forward_kl"},
}
"""Values of the arguments that choose, each with the field's value."""
_CONVERSIONS = {name: named(values) for name, values in _NAMES.items()}
_GSPO_CLIP = {"low": 3e-4, "high": 4e-4}


def write_policy_loss(run: Run) -> Mapping[str, Any]:
    """Write the policy loss where it differs from the type's own, its clip bounds, and the aggregation."""
    if isinstance(run.algorithm, SftConfig):
        name = next(name for name, weight in _TOKEN_WEIGHTS.items() if weight == run.algorithm.token_weight)
        return {} if name == "sft" else {"algorithm.policy_loss_fn": name}
    if isinstance(run.algorithm, PreferenceConfig | UnpairedConfig | RewardModelingConfig):
        return {}
    loss, own = run.algorithm.policy_loss, PRESETS[algorithm_type_of(run.algorithm)].loss
    name, args = _written(loss)
    if own == "sft" and isinstance(loss, GpgLossConfig):
        name = own
    by_default = name != "gspo" and run.algorithm.aggregation == "token-mean"
    args["loss_agg_mode"] = None if by_default else run.algorithm.aggregation
    chosen = {} if own in presets.MIXED else {"algorithm.policy_loss_fn": None if name == own else name}
    return {f"{LOSS_ARGS}.{name}": value for name, value in args.items()} | chosen


def _written(loss: Any) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a loss; `ppo` for one that Trinity does not have."""
    match loss:
        case CispoLossConfig():
            low = 1.0 if loss.clip_low is None else loss.clip_low
            return "cispo", {"clip_range_low": low, "clip_range_high": loss.clip_high}
        case GspoLossConfig():
            return "gspo", {"clip_range_low": loss.clip_low, "clip_range_high": loss.clip_high}
        case ClippedLossConfig(clip_low=low, clip_high=high):
            bounds = {"clip_range": low} if low == high else {"clip_range_low": low, "clip_range_high": high}
            return "ppo", {**bounds, "clip_ratio_c": loss.dual_clip}
    if loss.type not in _ARGUMENTS:
        return "ppo", {}
    values = {name: getattr(loss, field) for name, _, field in _ARGUMENTS[loss.type]}
    return loss.type, values | {
        name: _CONVERSIONS[name].write(values[name]) for name in values.keys() & _NAMES
    }


@written_by(write_policy_loss)
def policy_loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the policy loss; sft, dpo and mix accept only their own loss."""
    _check_loss(foreign)
    loss = presets.loss(foreign)
    if presets.is_offline(foreign):
        return {"algorithm.token_weight": _TOKEN_WEIGHTS[loss]} if loss in _TOKEN_WEIGHTS else {}
    aggregation = foreign["algorithm.loss_agg_mode"] or foreign[f"{LOSS_ARGS}.loss_agg_mode"]
    default = "seq-mean-token-mean" if loss == "gspo" else "token-mean"
    fields = {f"algorithm.policy_loss.{name}": value for name, value in _fields(foreign, loss).items()}
    return {"algorithm.aggregation": aggregation or default, **fields}


def _fields(foreign: ForeignValues, loss: str) -> dict[str, Any]:
    if loss in _ARGUMENTS:
        values = {field: foreign[f"{LOSS_ARGS}.{name}"] for name, _, field in _ARGUMENTS[loss]}
        for name, _, field in _ARGUMENTS[loss]:
            if name in _NAMES:
                values[field] = _CONVERSIONS[name].read(values[field])
        return {"type": loss, **({"gate": "weight"} if loss == "sapo" else {}), **values}
    if loss == "sft":
        return {"type": "gpg"}
    if loss == "cispo":
        low, high = foreign[f"{LOSS_ARGS}.clip_range_low"], foreign[f"{LOSS_ARGS}.clip_range_high"]
        clip_low = None if low is None or low >= 1 else low
        clip_high = 0.28 if high is None else high
        return {"type": "cispo", "clip_low": clip_low, "clip_high": clip_high, "mask_clipped": True}
    bounds = {f"clip_{side}": _clip_range(foreign, loss, side) for side in ("low", "high")}
    if loss == "gspo":
        return {"type": "gspo", **bounds}
    return {"type": "clip", **bounds, "dual_clip": foreign[f"{LOSS_ARGS}.clip_ratio_c"]}


def _clip_range(foreign: ForeignValues, loss: str, side: str) -> float:
    bound, default = foreign[f"{LOSS_ARGS}.clip_range_{side}"], foreign[f"{LOSS_ARGS}.clip_range"]
    if bound is None and loss == "gspo" and not foreign.is_set(f"{LOSS_ARGS}.clip_range"):
        return _GSPO_CLIP[side]
    return float(default if bound is None else bound)


def _check_loss(foreign: ForeignValues) -> None:
    """Raise ConfigError for a loss that is incompatible with `algorithm_type`."""
    loss, own = presets.loss(foreign), presets.preset(foreign).loss
    if presets.algorithm_type(foreign) in presets.SUPERVISED and loss in _TOKEN_WEIGHTS:
        return
    if loss != own and not (loss in _SELECTABLE and own in _SELECTABLE):
        instead = f"policy_loss_fn {own}" if own not in _SELECTABLE else f"one of {', '.join(_SELECTABLE)}"
        raise foreign.error_for(
            "algorithm.policy_loss_fn",
            f"algorithm.policy_loss_fn {loss} is incompatible with algorithm_type "
            f"{presets.algorithm_type(foreign)}; write {instead}, or remove it.",
        )


_AGGREGATIONS = nullable(
    one_of("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
)
_DEMONSTRATIONS = "the loss of demonstrations is always averaged over tokens; leave it at its default"
_clipped = only_losses("ppo", "gspo", "mix", "mix_chord", "cispo")
_row = partial(mapped, read=policy_loss)
ROWS = not_on_page(
    _row(
        "algorithm.policy_loss_fn",
        None,
        "algorithm.policy_loss.type",
        "algorithm.token_weight",
        value_type=nullable(one_of(*_SELECTABLE, "dpo", *_TOKEN_WEIGHTS, *presets.MIXED)),
        note="default by algorithm_type; mix, mix_chord, sft and dpo work only with their own type, sft_is and sft_phi "
        "with sft",
    ),
    _row(
        f"{LOSS_ARGS}.clip_range",
        0.2,
        "algorithm.policy_loss.clip_low",
        "algorithm.policy_loss.clip_high",
        inactive=_clipped,
        note="if not set, gspo clips at 3e-4 below and 4e-4 above",
    ),
    *(
        _row(
            f"{LOSS_ARGS}.clip_range_{side}",
            None,
            f"algorithm.policy_loss.clip_{side}",
            value_type=nullable(NUMBER),
            inactive=_clipped,
            note="null means clip_range; cispo: no lower bound, and 0.28 above",
        )
        for side in ("low", "high")
    ),
    _row(
        f"{LOSS_ARGS}.clip_ratio_c",
        None,
        "algorithm.policy_loss.dual_clip",
        value_type=nullable(NUMBER),
        inactive=only_losses("ppo", *presets.MIXED),
        note="null means no dual clipping",
    ),
    *(
        _row(
            f"{LOSS_ARGS}.{name}",
            default,
            f"algorithm.policy_loss.{field}",
            value_type=one_of(*_NAMES[name]) if name in _NAMES else None,
            inactive=only_losses(loss),
            note="the gate is a weight of the log-prob without a gradient" if loss == "sapo" else "",
        )
        for loss, arguments in _ARGUMENTS.items()
        for name, default, field in arguments
    ),
    refused(
        f"{LOSS_ARGS}.log_ratio_clip",
        20.0,
        "log-ratios are bounded to 20 in every loss; write 20, or remove it",
        inactive=only_losses("m2po"),
    ),
    refused(
        f"{LOSS_ARGS}.cutoff_prob",
        1.0,
        "the probability of demonstrations is not bounded; write 1, or remove it",
        inactive=only_losses("sft_phi"),
    ),
    _row(
        f"{LOSS_ARGS}.loss_agg_mode",
        None,
        "algorithm.aggregation",
        value_type=_AGGREGATIONS,
        inactive=only_sampled,
        note="token-mean; gspo: seq-mean-token-mean",
    ),
    _row(
        "algorithm.loss_agg_mode",
        None,
        "algorithm.aggregation",
        value_type=_AGGREGATIONS,
        inactive=only_sampled,
        note="takes precedence over policy_loss_fn_args.loss_agg_mode",
    ),
    *(
        refused(f"{LOSS_ARGS}.{name}", default, _DEMONSTRATIONS, supported=only(None, "token-mean", True))
        for name, default in (
            ("use_token_level_loss", True),
            ("use_token_level_loss_in_sft", True),
            ("sft_loss_agg_mode", "token-mean"),
            ("grpo_loss_agg_mode", "token-mean"),
        )
    ),
    refused("algorithm.use_token_level_loss", True, _DEMONSTRATIONS),
    *(
        placement(f"{LOSS_ARGS}.{name}", UNSET, "each part of the loss is normalized by its own count")
        for name in (
            *("use_dynamic_bsz", "ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu", "ngpus_trainer"),
            *("train_batch_size_usual", "train_batch_size_expert"),
        )
    ),
    refused(f"{LOSS_ARGS}.*", UNSET, "unknown argument of the policy loss; remove it"),
)
