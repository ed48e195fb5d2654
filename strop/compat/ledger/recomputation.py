"""Converter of keys that say whether layers are recomputed in the backward pass."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import KeyConverter

FIELD = "model.gradient_checkpointing"


def recomputation(key: str) -> KeyConverter:
    """Reads `key` as `model.gradient_checkpointing`; selective checkpointing is written as true."""
    return KeyConverter(
        lambda foreign: {FIELD: foreign[key]},
        lambda run: {key: bool(run.model.gradient_checkpointing)},
    )
