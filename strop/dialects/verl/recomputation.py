"""Ledger rows of verl's keys that decide which layers are recomputed: of all engines, and Megatron's, which earlier
versions have in `gradient_checkpointing_kwargs`.

Recomputation changes memory and time only. Strop recomputes every layer, or all but its products; where Megatron
recomputes other parts, a notice says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema import Run
from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    any_inactive,
    mapped,
    not_on_page,
    placement,
    written_by,
)
from strop.dialects.ledger.recomputation import FIELD
from strop.dialects.ledger.value_types import ANY, INTEGER, nullable, one_of
from strop.dialects.verl import switches

SWITCH = "actor_rollout_ref.model.enable_gradient_checkpointing"
_LATER = "actor_rollout_ref.actor.megatron.override_transformer_config.recompute"
_EARLIER = "actor_rollout_ref.model.gradient_checkpointing_kwargs.activations_checkpoint"
_OFFLOAD = "actor_rollout_ref.model.enable_activation_offload"
_FULL = "Strop recomputes every layer, each from its own input; the results are the same"
_SELECTIVE = (
    "Strop keeps the results of matrix products and attention kernels and recomputes the rest of each layer; the "
    "results are the same"
)


def _granularity(foreign: ForeignValues) -> str | None:
    """Megatron's granularity: `full`, `selective` or None."""
    if switches.megatron(foreign):
        return None
    found: str | None = foreign[f"{_LATER}_granularity"]
    return found or (foreign[f"{_EARLIER}_granularity"] if foreign[SWITCH] else None)


def write_recomputation(run: Run) -> Mapping[str, Any]:
    """Write whether layers are recomputed, and their inputs offloaded."""
    return {SWITCH: bool(run.model.gradient_checkpointing), _OFFLOAD: run.model.activation_offload}


@written_by(write_recomputation)
def recomputation(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read what is recomputed and offloaded."""
    granularity = _granularity(foreign)
    return {
        FIELD: "selective" if granularity == "selective" else bool(granularity or foreign[SWITCH]),
        "model.activation_offload": bool(foreign[_OFFLOAD] and (granularity or foreign[SWITCH])),
    }


def _is_offloaded(foreign: ForeignValues, value: Any) -> bool:
    return not value or bool(_granularity(foreign) or foreign[SWITCH])


def _unless(granularity: str) -> Any:
    def inactive(foreign: ForeignValues) -> str | None:
        found = _granularity(foreign)
        return None if found == granularity else f"the granularity of recomputation is {found}"

    return inactive


def _rows(prefix: str) -> tuple[KeyMapping, ...]:
    def stands_in(foreign: ForeignValues) -> str | None:
        return {"full": _FULL, "selective": _SELECTIVE}.get(foreign[f"{prefix}_granularity"])

    def megatron_row(name: str, kind: Any, **more: Any) -> KeyMapping:
        return mapped(f"{prefix}_{name}", None, FIELD, read=recomputation, value_type=nullable(kind), **more)

    full = any_inactive(switches.megatron, _unless("full"))
    return (
        megatron_row("granularity", one_of("full", "selective"), inactive=switches.megatron, warn=stands_in),
        megatron_row("method", one_of("uniform", "block"), inactive=full, note=_FULL),
        megatron_row("num_layers", INTEGER, inactive=full, note=_FULL),
    )


SWITCH_ROWS = (
    mapped(SWITCH, False, FIELD, read=recomputation),
    placement(
        _OFFLOAD,
        False,
        "the inputs of recomputed layers are offloaded; write enable_gradient_checkpointing=True",
        supported=_is_offloaded,
        fields=("model.activation_offload",),
        read=recomputation,
    ),
)
EARLIER_ROWS = not_on_page(*_rows(_EARLIER))
MEGATRON_ROWS = (
    *_rows(_LATER),
    mapped(
        f"{_LATER}_modules",
        UNSET,
        FIELD,
        read=recomputation,
        value_type=ANY,
        inactive=any_inactive(switches.megatron, _unless("selective")),
        note=_SELECTIVE,
    ),
)
"""Rows of Megatron's own options."""
