"""Keys for fused kernels of other libraries, such as Liger's: Strop's own functions always take their place."""

from __future__ import annotations

from dataclasses import replace

from strop.compat.ledger.key_mapping import ForeignValues, InactiveCheck, KeyMapping, always, placement
from strop.compat.ledger.value_types import ValueType

_REPLACED = (
    "Strop's own functions take the place of these kernels, with the same results: RMS norm, gated MLP, and a head "
    "that stores no logits"
)


def fused_kernels(
    key: str, *, value_type: ValueType | None = None, inactive: InactiveCheck | None = None
) -> KeyMapping:
    """A switch for fused kernels, off by default; a notice says what computes instead."""

    def notice(foreign: ForeignValues) -> str | None:
        return _REPLACED if foreign[key] else None

    row = placement(key, False, _REPLACED, supported=always, value_type=value_type, inactive=inactive)
    return replace(row, warn=notice)
