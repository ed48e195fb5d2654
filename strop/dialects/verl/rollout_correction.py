"""Ledger rows of verl's `algorithm.rollout_correction`: weights for the difference between sampler and trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema import Run
from strop.dialects.ledger.key_mapping import (
    ForeignValues,
    mapped,
    no_effect,
    refused,
    unless,
    written_by,
)
from strop.dialects.ledger.value_types import ANY, NUMBER, nullable, one_of

_AT = "algorithm.rollout_correction"
_weights = unless(f"{_AT}.rollout_is", "token", "sequence")
_rejection = "Strop has truncated weights only, and rejects no responses; leave it null"


def write_importance_correction(run: Run) -> Mapping[str, Any]:
    """Write the level of the weights and the threshold at which they are truncated."""
    correction = getattr(run.algorithm, "importance_correction", None)
    if correction is None:
        return {}
    return {f"{_AT}.rollout_is": correction.level, f"{_AT}.rollout_is_threshold": correction.cap}


@written_by(write_importance_correction)
def importance_correction(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read truncated importance weights: per token, or the product over a response."""
    if _weights(foreign):
        return {}
    return {
        "algorithm.importance_correction.level": foreign[f"{_AT}.rollout_is"],
        "algorithm.importance_correction.cap": foreign[f"{_AT}.rollout_is_threshold"],
    }


ROWS = (
    mapped(
        f"{_AT}.rollout_is",
        None,
        "algorithm.importance_correction.level",
        read=importance_correction,
        value_type=nullable(one_of("token", "sequence", "null", "None")),
    ),
    mapped(
        f"{_AT}.rollout_is_threshold",
        2.0,
        "algorithm.importance_correction.cap",
        read=importance_correction,
        value_type=NUMBER,
        inactive=_weights,
    ),
    refused(f"{_AT}.rollout_rs", None, _rejection, supported=lambda foreign, value: value in (None, "None")),
    *(
        no_effect(f"{_AT}.{name}", None, "rollout_rs is null", value_type=ANY)
        for name in ("rollout_rs_threshold", "rollout_rs_threshold_lower")
    ),
    refused(
        f"{_AT}.rollout_token_veto_threshold",
        None,
        _rejection,
        supported=lambda foreign, value: value in (None, "None"),
    ),
    refused(
        f"{_AT}.bypass_mode",
        False,
        "the trainer always computes the old log-probs; leave it False",
    ),
    no_effect(f"{_AT}.loss_type", "ppo_clip", "bypass_mode is False", value_type=ANY),
    refused(
        f"{_AT}.rollout_is_batch_normalize",
        False,
        "Strop does not divide the weights by their mean; leave it False",
        inactive=_weights,
    ),
)
