"""Ledger rows of the corrections for the difference between sampler and trainer, which are verl's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    KeyConverter,
    KeyMapping,
    also_inactive,
    no_effect,
    not_on_page,
    versions,
    written_by,
)
from strop.compat.trinity.embedded_verl import PREFIX, embedded_converter, verl_row
from strop.compat.trinity.presets import is_offline, only_sampled
from strop.compat.verl.rollout_correction import correction
from strop.config.schema import Run

_AT = "algorithm.rollout_correction"
_ELSEWHERE = ("bypass_mode", "loss_type")
"""Keys that the converter of the algorithm reads and writes, and those that Trinity does not read."""


def write_corrections(run: Run) -> Mapping[str, Any]:
    """Write importance weights and rejection."""
    converter = embedded_converter(correction)
    assert isinstance(converter, KeyConverter)
    kept = {f"{PREFIX}{_AT}.{name}" for name in _ELSEWHERE}
    return {key: value for key, value in converter.write(run).items() if key not in kept}


@written_by(write_corrections)
def corrections(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read importance weights and rejection; none without rollouts."""
    if is_offline(foreign):
        return {}
    found = embedded_converter(correction)(foreign)
    return {field: value for field, value in found.items() if field != "algorithm.old_policy"}


def _row(name: str, default: Any) -> KeyMapping:
    return also_inactive(replace(verl_row(f"{_AT}.{name}", default), read=corrections), only_sampled)


ROWS: tuple[KeyMapping, ...] = not_on_page(
    *versions(
        _row("rollout_is", None),
        _row("rollout_is_threshold", 2.0),
        _row("rollout_is_batch_normalize", False),
        _row("rollout_rs", None),
        _row("rollout_rs_threshold", None),
        _row("rollout_rs_threshold_lower", None),
        _row("rollout_token_veto_threshold", None),
        no_effect(f"{PREFIX}{_AT}.loss_type", "ppo_clip", "Trinity's key is algorithm.policy_loss_fn"),
        since="0.5",
    )
)
