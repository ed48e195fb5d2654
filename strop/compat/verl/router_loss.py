"""Ledger rows of the routers' losses of a mixture of experts, which Megatron adds to the actor's loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, any_inactive, mapped, unless, written_by
from strop.compat.ledger.value_types import NUMBER, one_of
from strop.compat.verl import switches
from strop.config.schema import Run

_OVERRIDE = "actor_rollout_ref.actor.megatron.override_transformer_config"
_AUX, _Z, _TYPE = (
    f"{_OVERRIDE}.{name}"
    for name in ("moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_router_load_balancing_type")
)
_BALANCED = ("aux_loss", "global_aux_loss")
_SEQUENCE = "seq_aux_loss"


def _write(run: Run) -> Mapping[str, Any]:
    section = run.trainer.router_loss
    if section is None or section.balance_over != "layer":
        return {}
    balanced = {_AUX: section.balance_coef, _TYPE: "global_aux_loss"} if section.balance_coef else {}
    return balanced | ({_Z: section.z_coef} if section.z_coef else {})


@written_by(_write)
def _read(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the coefficients that are not 0; Megatron sums both losses over layers."""
    if switches.megatron(foreign):
        return {}
    if foreign[_TYPE] == _SEQUENCE:
        raise foreign.error_for(
            _TYPE,
            f"{_TYPE} is {_SEQUENCE}, which balances each sequence on its own; Strop balances an update. Write "
            "global_aux_loss, or none.",
        )
    balance = foreign[_AUX] if foreign[_TYPE] in _BALANCED else 0
    found = {"balance_coef": balance, "z_coef": foreign[_Z]}
    return {f"trainer.router_loss.{name}": value for name, value in found.items() if value}


ROWS = (
    mapped(
        _AUX,
        0,
        "trainer.router_loss.balance_coef",
        read=_read,
        value_type=NUMBER,
        inactive=any_inactive(switches.megatron, unless(_TYPE, *_BALANCED, _SEQUENCE)),
        note="verl switches the loss off (type none) for every family but DeepSeek-V3's, unless the type is written",
    ),
    mapped(
        _Z,
        0,
        "trainer.router_loss.z_coef",
        read=_read,
        value_type=NUMBER,
        inactive=switches.megatron,
    ),
    mapped(
        _TYPE,
        "none",
        "trainer.router_loss.balance_coef",
        read=_read,
        value_type=one_of("none", *_BALANCED, _SEQUENCE),
        inactive=switches.megatron,
        note="aux_loss balances each micro-batch in Megatron, and the update here, as global_aux_loss does",
    ),
)
