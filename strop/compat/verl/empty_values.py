"""Check of values that leave a section of verl's configuration empty."""

from __future__ import annotations

from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues


def is_empty(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports null and what is empty, also a section of nulls."""
    if isinstance(value, dict):
        return all(is_empty(foreign, inner) for inner in value.values())
    return value in (None, [])
