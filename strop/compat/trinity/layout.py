"""Ledger rows of verl's keys inside Trinity's `trainer_config` that divide the model over the trainer's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, KeyConverter, KeyMapping, written_by
from strop.compat.trinity.cluster import cluster_ranks, uses_cluster
from strop.compat.trinity.embedded_verl import NEWER_KEYS, PREFIX, embedded_converter, for_embedded
from strop.compat.verl import layout as verl
from strop.config.schema import Run


def write_layout(run: Run) -> Mapping[str, Any]:
    """Write the layout of the trainer's ranks."""
    converter = embedded_converter(verl.layout)
    assert isinstance(converter, KeyConverter)
    return converter.write(run)


@written_by(write_layout)
def layout(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the layout of the trainer's ranks on a cluster; nothing where a single process trains."""
    if not uses_cluster(foreign):
        return {}
    ranks = cluster_ranks(foreign)
    found: Mapping[str, Any] = for_embedded(verl.layout_of_ranks)(foreign, ranks)
    return found


STRATEGIES = ("actor_rollout_ref.actor.strategy", "critic.strategy", "trainer.trainer_strategy")
"""Keys that select the trainer's engine."""


def with_ranks(row: KeyMapping) -> KeyMapping:
    """The row of a key that the trainer's ranks on a cluster honor; any other row itself."""
    inside = row.key.removeprefix(PREFIX)
    key = NEWER_KEYS.get(row.key, inside)
    if inside in STRATEGIES or inside.endswith(".megatron.*"):
        return _with_fsdp2(row)
    if not row.fields or not row.fields[0].startswith("trainer.engine.") or row.supported is None:
        return row
    native = row.supported

    def warn(foreign: ForeignValues) -> str | None:
        return verl.STANDS_IN[key] if uses_cluster(foreign) and foreign[row.key] != row.default else None

    return replace(
        row,
        read=layout,
        supported=lambda foreign, value: uses_cluster(foreign) or native(foreign, value),
        warn=warn if key in verl.STANDS_IN else None,
    )


def _with_fsdp2(row: KeyMapping) -> KeyMapping:
    """The row of a trainer's engine or of its own settings, in whose place FSDP2 trains on a cluster."""
    native = row.supported
    if native is None:
        return row

    def warn(foreign: ForeignValues) -> str | None:
        value = foreign[row.key]
        if not uses_cluster(foreign) or (native(foreign, value) and value == row.default):
            return None
        return "without effect: FSDP2 trains on the trainer's ranks"

    return replace(
        row,
        supported=lambda foreign, value: uses_cluster(foreign) or native(foreign, value),
        warn=warn,
    )
