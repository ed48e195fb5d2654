"""Ledger rows of Trinity's `policy_loss_fn`: the policy loss, its clip bounds and the loss aggregation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
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
from strop.compat.ledger.value_types import ANY, NUMBER, nullable, one_of
from strop.compat.trinity import presets
from strop.compat.trinity.presets import PRESETS, algorithm_type_of
from strop.config.schema import Run
from strop.config.schema.algorithm import SftConfig
from strop.config.schema.policy_loss import (
    CispoLossConfig,
    ClippedLossConfig,
    GpgLossConfig,
    GspoLossConfig,
    ImportanceSamplingLossConfig,
    M2poLossConfig,
    OpmdLossConfig,
    RecLossConfig,
    SapoLossConfig,
    SppoLossConfig,
    ToprLossConfig,
)
from strop.config.schema.preference import PreferenceConfig, UnpairedConfig
from strop.config.schema.reward_modeling import RewardModelingConfig

LOSS_ARGS = "algorithm.policy_loss_fn_args"
_SELECTABLE = ("ppo", "gspo", "opmd", "cispo", "topr", "sppo", "rec", "sapo", "importance_sampling", "m2po")
"""Losses that are compatible with all advantage functions."""
TOKEN_WEIGHTS = {"sft": "none", "sft_is": "p", "sft_phi": "p_one_minus_p"}
"""Weight of a demonstration's tokens under each loss of `algorithm_type: sft`."""
_BOUND = 20.0
"""Bound of log-ratios, which is Strop's."""
_CLIPPED = ("ppo", "gspo", "mix", "mix_chord", "cispo")
_GSPO_CLIP = {"low": 3e-4, "high": 4e-4}
_AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
_clipped = presets.only_losses(*_CLIPPED)


def _cispo(foreign: ForeignValues) -> dict[str, Any]:
    low, high = foreign[f"{LOSS_ARGS}.clip_range_low"], foreign[f"{LOSS_ARGS}.clip_range_high"]
    return {
        "type": "cispo",
        "clip_low": None if low is None or low >= 1 else low,
        "clip_high": 0.28 if high is None else high,
        "mask_clipped": True,
    }


def _rec(foreign: ForeignValues) -> dict[str, Any]:
    return {
        "type": "rec",
        "clipping": {"one-side": "one_side", "two-side": "two_sides"}.get(
            foreign[f"{LOSS_ARGS}.clip_mode"], foreign[f"{LOSS_ARGS}.clip_mode"]
        ),
        "clip_low": foreign[f"{LOSS_ARGS}.epsilon_low"],
        "clip_high": foreign[f"{LOSS_ARGS}.epsilon_high"],
        "ring_low": foreign[f"{LOSS_ARGS}.epsilon_low_prime"],
        "ring_high": foreign[f"{LOSS_ARGS}.epsilon_high_prime"],
        "weight": {"importance_sampling": "ratio"}.get(
            foreign[f"{LOSS_ARGS}.weight"], foreign[f"{LOSS_ARGS}.weight"]
        ),
        "temperature": foreign[f"{LOSS_ARGS}.temp"],
        "regularizer": foreign[f"{LOSS_ARGS}.regularizer"].replace("-", "_"),
        "regularizer_coef": foreign[f"{LOSS_ARGS}.regularizer_coef"],
    }


def _sapo(foreign: ForeignValues) -> dict[str, Any]:
    taus = {name: foreign[f"{LOSS_ARGS}.{name}"] for name in ("tau_pos", "tau_neg")}
    return {"type": "sapo", "gate": "weight", **taus}


_UNCLIPPED: Mapping[str, Callable[[ForeignValues], dict[str, Any]]] = {
    "opmd": lambda foreign: {"type": "opmd", "tau": foreign[f"{LOSS_ARGS}.tau"]},
    "sft": lambda foreign: {"type": "gpg"},
    "cispo": _cispo,
    "topr": lambda foreign: {"type": "topr", "threshold": foreign[f"{LOSS_ARGS}.advantage_threshold"]},
    "sppo": lambda foreign: {"type": "sppo", "clip": foreign[f"{LOSS_ARGS}.epsilon"]},
    "rec": _rec,
    "sapo": _sapo,
    "importance_sampling": lambda foreign: {"type": "importance_sampling"},
    "m2po": lambda foreign: {"type": "m2po", "max_second_moment": foreign[f"{LOSS_ARGS}.m2_threshold"]},
}
"""Fields of the losses without PPO's clipped ratio."""


def _write_off_policy(loss: ToprLossConfig | SppoLossConfig | RecLossConfig) -> dict[str, Any]:
    match loss:
        case ToprLossConfig():
            return {f"{LOSS_ARGS}.advantage_threshold": loss.threshold}
        case SppoLossConfig():
            return {f"{LOSS_ARGS}.epsilon": loss.clip}
    names = {
        "one_side": "one-side",
        "two_sides": "two-side",
        "ratio": "importance_sampling",
        "forward_kl": "forward-kl",
    }
    values = {
        "epsilon_low": loss.clip_low,
        "epsilon_high": loss.clip_high,
        "epsilon_low_prime": loss.ring_low,
        "epsilon_high_prime": loss.ring_high,
        "clip_mode": names.get(loss.clipping, loss.clipping),
        "weight": names.get(loss.weight, loss.weight),
        "temp": loss.temperature,
        "regularizer": names.get(loss.regularizer, loss.regularizer),
        "regularizer_coef": loss.regularizer_coef,
    }
    return {f"{LOSS_ARGS}.{name}": value for name, value in values.items()}


def _write_token_weight(section: SftConfig) -> dict[str, Any]:
    return {"algorithm.policy_loss_fn": {"p": "sft_is", "p_one_minus_p": "sft_phi"}[section.token_weight]}


def write_policy_loss(run: Run) -> Mapping[str, Any]:
    """Write the policy loss where it differs from the type's own, its clip bounds, and the aggregation."""
    if isinstance(run.algorithm, SftConfig):
        return {} if run.algorithm.token_weight == "none" else _write_token_weight(run.algorithm)
    if isinstance(run.algorithm, PreferenceConfig | UnpairedConfig | RewardModelingConfig):
        return {}
    kind, loss = algorithm_type_of(run.algorithm), run.algorithm.policy_loss
    values: dict[str, Any] = {f"{LOSS_ARGS}.loss_agg_mode": run.algorithm.aggregation}
    match loss:
        case OpmdLossConfig():
            name = "opmd"
            values[f"{LOSS_ARGS}.tau"] = loss.tau
        case CispoLossConfig():
            name = "cispo"
            low = 1.0 if loss.clip_low is None else loss.clip_low
            values |= {f"{LOSS_ARGS}.clip_range_low": low, f"{LOSS_ARGS}.clip_range_high": loss.clip_high}
        case ToprLossConfig() | SppoLossConfig() | RecLossConfig():
            name = loss.type
            values |= _write_off_policy(loss)
        case SapoLossConfig():
            name = "sapo"
            values |= {f"{LOSS_ARGS}.tau_pos": loss.tau_pos, f"{LOSS_ARGS}.tau_neg": loss.tau_neg}
        case ImportanceSamplingLossConfig():
            name = "importance_sampling"
        case M2poLossConfig():
            name = "m2po"
            values[f"{LOSS_ARGS}.m2_threshold"] = loss.max_second_moment
        case GspoLossConfig() | ClippedLossConfig():
            name = "gspo" if isinstance(loss, GspoLossConfig) else "ppo"
            both = loss.clip_low == loss.clip_high and name == "ppo"
            bounds = {"": loss.clip_low} if both else {"_low": loss.clip_low, "_high": loss.clip_high}
            values |= {f"{LOSS_ARGS}.clip_range{side}": bound for side, bound in bounds.items()}
        case _:
            name = "ppo"
    if isinstance(loss, ClippedLossConfig):
        values[f"{LOSS_ARGS}.clip_ratio_c"] = loss.dual_clip
    own = PRESETS[kind].loss
    if own == "sft" and isinstance(loss, GpgLossConfig):
        name = own
    if own not in ("mix", "mix_chord"):
        values["algorithm.policy_loss_fn"] = None if name == own else name
    if name != "gspo" and run.algorithm.aggregation == "token-mean":
        values[f"{LOSS_ARGS}.loss_agg_mode"] = None
    return values


@written_by(write_policy_loss)
def policy_loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the policy loss; sft, dpo and mix accept only their own loss."""
    check_loss(foreign)
    loss = presets.loss(foreign)
    if presets.is_offline(foreign):
        return {"algorithm.token_weight": TOKEN_WEIGHTS[loss]} if loss in TOKEN_WEIGHTS else {}
    settings: dict[str, Any] = {"algorithm.aggregation": _aggregation(foreign, loss)}
    at = "algorithm.policy_loss"
    if loss in _UNCLIPPED:
        return settings | {f"{at}.{name}": value for name, value in _UNCLIPPED[loss](foreign).items()}
    settings |= {
        f"{at}.clip_low": _clip_range(foreign, loss, "low"),
        f"{at}.clip_high": _clip_range(foreign, loss, "high"),
    }
    if loss == "gspo":
        return {**settings, f"{at}.type": "gspo"}
    return {**settings, f"{at}.type": "clip", f"{at}.dual_clip": foreign[f"{LOSS_ARGS}.clip_ratio_c"]}


def check_loss(foreign: ForeignValues) -> None:
    """Raise ConfigError for a loss that is incompatible with `algorithm_type`."""
    loss, own = presets.loss(foreign), presets.preset(foreign).loss
    if presets.algorithm_type(foreign) in presets.SUPERVISED and loss in TOKEN_WEIGHTS:
        return
    if loss != own and not (loss in _SELECTABLE and own in _SELECTABLE):
        instead = f"policy_loss_fn {own}" if own not in _SELECTABLE else f"one of {', '.join(_SELECTABLE)}"
        raise foreign.error_for(
            "algorithm.policy_loss_fn",
            f"algorithm.policy_loss_fn {loss} is incompatible with algorithm_type "
            f"{presets.algorithm_type(foreign)}; write {instead}, or remove it.",
        )


def _clip_range(foreign: ForeignValues, loss: str, side: str) -> float:
    bound, default = foreign[f"{LOSS_ARGS}.clip_range_{side}"], foreign[f"{LOSS_ARGS}.clip_range"]
    if bound is None and loss == "gspo" and not foreign.is_set(f"{LOSS_ARGS}.clip_range"):
        return _GSPO_CLIP[side]
    return float(default if bound is None else bound)


def _aggregation(foreign: ForeignValues, loss: str) -> str:
    aggregation = foreign["algorithm.loss_agg_mode"] or foreign[f"{LOSS_ARGS}.loss_agg_mode"]
    default = "seq-mean-token-mean" if loss == "gspo" else "token-mean"
    return default if aggregation is None else str(aggregation)


def _token_mean(foreign: ForeignValues, value: Any) -> bool:
    return value in (None, "token-mean", True)


ROWS: tuple[KeyMapping, ...] = not_on_page(
    mapped(
        "algorithm.policy_loss_fn",
        None,
        "algorithm.policy_loss.type",
        "algorithm.token_weight",
        read=policy_loss,
        value_type=nullable(one_of(*_SELECTABLE, "dpo", *TOKEN_WEIGHTS, "mix", "mix_chord")),
        note="default by algorithm_type; mix, mix_chord, sft and dpo work only with their own type, sft_is and sft_phi "
        "with sft",
    ),
    mapped(
        f"{LOSS_ARGS}.clip_range",
        0.2,
        "algorithm.policy_loss.clip_low",
        "algorithm.policy_loss.clip_high",
        read=policy_loss,
        inactive=_clipped,
        note="if not set, gspo clips at 3e-4 below and 4e-4 above",
    ),
    *(
        mapped(
            f"{LOSS_ARGS}.clip_range_{side}",
            None,
            f"algorithm.policy_loss.clip_{side}",
            read=policy_loss,
            value_type=nullable(NUMBER),
            inactive=_clipped,
            note="null means clip_range; cispo: no lower bound, and 0.28 above",
        )
        for side in ("low", "high")
    ),
    mapped(
        f"{LOSS_ARGS}.clip_ratio_c",
        None,
        "algorithm.policy_loss.dual_clip",
        read=policy_loss,
        value_type=nullable(NUMBER),
        inactive=presets.only_losses("ppo", "mix", "mix_chord"),
        note="null means no dual clipping",
    ),
    mapped(
        f"{LOSS_ARGS}.tau",
        1.0,
        "algorithm.policy_loss.tau",
        read=policy_loss,
        inactive=presets.only_losses("opmd"),
    ),
    mapped(
        f"{LOSS_ARGS}.loss_agg_mode",
        None,
        "algorithm.aggregation",
        read=policy_loss,
        value_type=nullable(one_of(*_AGGREGATIONS)),
        inactive=presets.only_sampled,
        note="token-mean; gspo: seq-mean-token-mean",
    ),
    *(
        refused(
            f"{LOSS_ARGS}.{name}",
            default,
            "the loss of demonstrations is always averaged over tokens; leave it at its default",
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
            f"{LOSS_ARGS}.{name}",
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
    mapped(
        f"{LOSS_ARGS}.m2_threshold",
        0.04,
        "algorithm.policy_loss.max_second_moment",
        read=policy_loss,
        inactive=presets.only_losses("m2po"),
    ),
    refused(
        f"{LOSS_ARGS}.log_ratio_clip",
        _BOUND,
        "log-ratios are bounded to 20 in every loss; write 20, or remove it",
        inactive=presets.only_losses("m2po"),
    ),
    refused(
        f"{LOSS_ARGS}.cutoff_prob",
        1.0,
        "the probability of demonstrations is not bounded; write 1, or remove it",
        inactive=presets.only_losses("sft_phi"),
    ),
    mapped(
        f"{LOSS_ARGS}.advantage_threshold",
        0.0,
        "algorithm.policy_loss.threshold",
        read=policy_loss,
        inactive=presets.only_losses("topr"),
    ),
    mapped(
        f"{LOSS_ARGS}.epsilon",
        0.3,
        "algorithm.policy_loss.clip",
        read=policy_loss,
        inactive=presets.only_losses("sppo"),
    ),
    *(
        mapped(
            f"{LOSS_ARGS}.{name}",
            default,
            f"algorithm.policy_loss.{name}",
            read=policy_loss,
            inactive=presets.only_losses("sapo"),
            note="the gate is a weight of the log-prob without a gradient",
        )
        for name, default in (("tau_pos", 1.0), ("tau_neg", 1.05))
    ),
    *(
        mapped(
            f"{LOSS_ARGS}.{name}",
            default,
            f"algorithm.policy_loss.{field}",
            read=policy_loss,
            value_type=one_of(*choices) if choices else None,
            inactive=presets.only_losses("rec"),
        )
        for name, default, field, choices in (
            ("epsilon_low", 0.2, "clip_low", ()),
            ("epsilon_high", 0.2, "clip_high", ()),
            ("epsilon_low_prime", 0.6, "ring_low", ()),
            ("epsilon_high_prime", 2.0, "ring_high", ()),
            ("clip_mode", "none", "clipping", ("none", "one-side", "two-side", "ring")),
            ("weight", "none", "weight", ("none", "importance_sampling", "advantage")),
            ("temp", 1.0, "temperature", ()),
            ("regularizer", "none", "regularizer", ("none", "k2", "forward-kl")),
            ("regularizer_coef", 0.0, "regularizer_coef", ()),
        )
    ),
    mapped(
        "algorithm.loss_agg_mode",
        None,
        "algorithm.aggregation",
        read=policy_loss,
        value_type=nullable(one_of(*_AGGREGATIONS)),
        inactive=presets.only_sampled,
        note="takes precedence over policy_loss_fn_args.loss_agg_mode",
    ),
    refused(
        "algorithm.use_token_level_loss",
        True,
        "the loss of demonstrations is always averaged over tokens; leave it at its default",
    ),
    refused(f"{LOSS_ARGS}.*", UNSET, "unknown argument of the policy loss; remove it", supported=never),
)
