"""The losses of TRL's DPOConfig and their options, and `algorithm` of type dpo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError

from strop.compat.ledger.key_mapping import ForeignValues, mapped, refused, unless, written_by
from strop.compat.ledger.value_types import NUMBER, NUMBER_LIST, STRING_OR_LIST, ValueType, nullable, one_of
from strop.config.schema import Run
from strop.config.schema.preference import DpoConfig, DpoLossName
from strop.errors import ConfigError

_DIVERGENCES = {
    "reverse_kl": "reverse_kl",
    "forward_kl": "forward_kl",
    "js_divergence": "jsd",
    "alpha_divergence": "alpha",
}
_ALPHA, _TAU = "ref_model_mixup_alpha", "ref_model_sync_steps"
_UNSMOOTHED = ("sigmoid", "sigmoid_norm")
"""Losses that TRL computes without label_smoothing, and Strop with it."""
_WEIGHTS = ValueType(
    "a number or a list of numbers", lambda value: NUMBER.accepts(value) or NUMBER_LIST.accepts(value)
)


def write_loss(run: Run) -> Mapping[str, Any]:
    """Write the losses with their weights and options. Raises ConfigError where TRL smooths no labels."""
    section = run.algorithm
    assert isinstance(section, DpoConfig)  # as `write_pairs` requires
    smoothed = set(section.losses) & set(_UNSMOOTHED)
    if section.label_smoothing and smoothed:
        raise ConfigError(f"TRL's loss {smoothed.pop()} ignores label_smoothing; write label_smoothing 0.")
    names = {ours: theirs for theirs, ours in _DIVERGENCES.items()}
    weights = list(section.losses.values())
    sync = section.reference_sync
    changes = {} if sync is None else {_ALPHA: sync.policy_weight, _TAU: sync.every_updates}
    return {
        "sync_ref_model": sync is not None,
        **changes,
        "beta": section.beta,
        "label_smoothing": section.label_smoothing,
        "loss_type": list(section.losses),
        "loss_weights": None if set(weights) == {1.0} else weights,
        "f_divergence_type": names[section.divergence],
        "f_alpha_divergence_coef": section.divergence_alpha,
        "discopop_tau": section.discopop_temperature,
        "ld_alpha": None if section.excess_token_weight == 1 else section.excess_token_weight,
    }


@written_by(write_loss)
def loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the losses. Raises ConfigError for options that TRL refuses, or that it reads otherwise than Strop."""
    names: list[str] = (
        [foreign["loss_type"]] if isinstance(foreign["loss_type"], str) else foreign["loss_type"]
    )
    if unknown := [name for name in names if name not in get_args(DpoLossName)]:
        raise foreign.error_for(
            "loss_type",
            f"loss_type {', '.join(unknown)} is a loss that Strop does not have; write some of "
            f"{', '.join(get_args(DpoLossName))}.",
        )
    weights = foreign["loss_weights"] or [1.0] * len(names)
    weights = weights if isinstance(weights, list) else [weights]  # of a command line with one value
    if len(weights) != len(names):
        raise foreign.error_for(
            "loss_weights",
            f"there are {len(weights)} loss_weights for {len(names)} losses; write one for each.",
        )
    unsmoothed = [name for name in names if name in _UNSMOOTHED]
    if foreign["label_smoothing"] and unsmoothed:
        raise foreign.error_for(
            "label_smoothing",
            f"label_smoothing is {foreign['label_smoothing']}, which TRL's loss {unsmoothed[0]} ignores (the losses "
            "robust and exo_pair have it) and that of earlier versions does not; write 0, or the run file's "
            "algorithm.label_smoothing, which smooths it.",
        )
    divergence = _DIVERGENCES[foreign["f_divergence_type"]]
    values = {
        "beta": foreign["beta"],
        "loss": names[0] if names[1:] == [] and weights == [1.0] else dict(zip(names, weights, strict=True)),
        "label_smoothing": foreign["label_smoothing"],
        "divergence": divergence,
        "divergence_alpha": foreign["f_alpha_divergence_coef"] if divergence == "alpha" else 0.5,
        "discopop_temperature": foreign["discopop_tau"] if "discopop" in names else 0.05,
        "excess_token_weight": 1.0 if foreign["ld_alpha"] is None else foreign["ld_alpha"],
    }
    if foreign["sync_ref_model"]:
        if foreign["precompute_ref_log_probs"]:
            raise foreign.error_for(
                "precompute_ref_log_probs",
                "sync_ref_model and precompute_ref_log_probs are both True, which TRL refuses; write one of them.",
            )
        values["reference_sync"] = {"every_updates": foreign[_TAU], "policy_weight": foreign[_ALPHA]}
    try:
        DpoConfig.model_validate(values)
    except ValidationError as error:
        faults = error.errors()
        said = "; ".join(fault["msg"].removeprefix("Value error, ") for fault in faults)
        if any("reference_sync" in fault["loc"] for fault in faults):
            raise foreign.error_for("sync_ref_model", f"{_TAU} and {_ALPHA}: {said}.") from error
        raise foreign.error_for("loss_type", f"{said}.") from error
    return {f"algorithm.{field}": value for field, value in values.items()}


def _discopop_is_absent(foreign: ForeignValues) -> str | None:
    return None if "discopop" in foreign["loss_type"] else f"loss_type is {foreign['loss_type']}"


LOSS_ROWS = (
    mapped("beta", 0.1, "algorithm.beta", read=loss),
    mapped("loss_type", ["sigmoid"], "algorithm.loss", read=loss, value_type=STRING_OR_LIST),
    mapped("loss_weights", None, "algorithm.loss", read=loss, value_type=nullable(_WEIGHTS)),
    mapped("label_smoothing", 0.0, "algorithm.label_smoothing", read=loss),
    mapped(
        "f_divergence_type", "reverse_kl", "algorithm.divergence", read=loss, value_type=one_of(*_DIVERGENCES)
    ),
    mapped(
        "f_alpha_divergence_coef",
        0.5,
        "algorithm.divergence_alpha",
        read=loss,
        inactive=unless("f_divergence_type", "alpha_divergence"),
    ),
    mapped("discopop_tau", 0.05, "algorithm.discopop_temperature", read=loss, inactive=_discopop_is_absent),
    mapped("ld_alpha", None, "algorithm.excess_token_weight", read=loss, value_type=nullable(NUMBER)),
    mapped("sync_ref_model", False, "algorithm.reference_sync", read=loss),
    mapped(
        _ALPHA,
        0.6,
        "algorithm.reference_sync.policy_weight",
        read=loss,
        inactive=unless("sync_ref_model", True),
    ),
    mapped(
        _TAU,
        512,
        "algorithm.reference_sync.every_updates",
        read=loss,
        inactive=unless("sync_ref_model", True),
    ),
    refused(
        "use_weighting", False, "Strop weighs no pairs by the policy's probabilities (WPO); leave it False"
    ),
)
