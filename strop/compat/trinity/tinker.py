"""Ledger rows of Trinity's `model.tinker`: an adapter that a service trains, or with `--here` this machine."""

from __future__ import annotations

from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    ReadFunction,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
    unless,
)
from strop.compat.ledger.value_types import ANY, INTEGER, STRING, nullable

_AT = "model.tinker"
_ALPHA = 32
"""Alpha of the service's adapters, whatever their rank."""
_MODULES = {
    "train_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "train_mlp": ("gate_proj", "up_proj", "down_proj"),
}
_off = unless(f"{_AT}.enable", True)


def adapter(foreign: ForeignValues) -> dict[str, Any]:
    """The adapter that the service would train."""
    targets = [name for key, names in _MODULES.items() if foreign[f"{_AT}.{key}"] for name in names]
    everything = all(foreign[f"{_AT}.{key}"] for key in _MODULES)
    return {
        "model.lora.rank": foreign[f"{_AT}.rank"],
        "model.lora.alpha": _ALPHA,
        "model.lora.targets": "all-linear" if everything else targets,
    }


def rows(read: ReadFunction) -> tuple[KeyMapping, ...]:
    """The section's rows; `read` is the converter of the adapter."""
    return not_on_page(
        placement(
            f"{_AT}.enable",
            False,
            "Tinker is a service that trains and samples on its own machines; --here trains the same adapter on this "
            "machine, without one of the output layer",
            supported=only(False),
        ),
        *(
            mapped(f"{_AT}.{name}", default, field, read=read, inactive=_off)
            for name, default, field in (
                ("rank", 16, "model.lora.rank"),
                ("train_mlp", True, "model.lora.targets"),
                ("train_attn", True, "model.lora.targets"),
            )
        ),
        no_effect(f"{_AT}.train_unembed", True, "Strop's adapter leaves the output layer as it is"),
        no_effect(f"{_AT}.seed", None, "the run has one seed", value_type=nullable(INTEGER)),
        no_effect(f"{_AT}.forward_backward_chunk_bytes", UNSET, "the service is not used", value_type=ANY),
        no_effect(f"{_AT}.base_url", None, "the service is not used", value_type=nullable(STRING)),
    )
