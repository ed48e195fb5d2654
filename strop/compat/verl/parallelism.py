"""Ledger rows of Megatron's engine settings, shared by actor, reference model and critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    placement_section,
    refused,
)
from strop.compat.ledger.placement_notes import NO_QUANTIZED_TRAINING, NO_SHARDS

ROUTER_LOSSES = ("moe_aux_loss_coeff", "moe_z_loss_coeff")
"""Coefficients of the routers' losses, which Strop has for the actor."""
_LOSSES = ("dsa_indexer_loss_coeff", "mtp_loss_scaling_factor")
"""Coefficients of losses that Megatron adds to the training loss."""
_DROPOUTS = ("attention_dropout", "hidden_dropout")
_BIAS = "moe_router_bias_update_rate"


def megatron_parallelism_rows(
    section: str, inactive: InactiveCheck, unsupported_losses: Sequence[str] = ROUTER_LOSSES
) -> tuple[KeyMapping, ...]:
    """Rows of a `megatron` section: all of its keys are placement, except those that change the training.

    `unsupported_losses` are coefficients that the section may only have at 0, in addition to those that no section
    may have.
    """
    override = f"{section}.override_transformer_config"
    return (
        *(
            _off(f"{override}.{name}", "Strop adds no such loss to the algorithm's loss", inactive)
            for name in (*unsupported_losses, *_LOSSES)
        ),
        *(
            _off(
                f"{override}.{name}",
                "write +actor_rollout_ref.model.override_config.attention_dropout for a model that has it",
                inactive,
            )
            for name in _DROPOUTS
        ),
        _off(f"{override}.{_BIAS}", "Strop does not change a router's bias outside the optimizer", inactive),
        refused(
            f"{section}.qat.enable",
            UNSET,
            NO_QUANTIZED_TRAINING,
            supported=lambda foreign, value: not value,
            inactive=inactive,
        ),
        placement_section(section, NO_SHARDS, inactive=inactive),
    )


def _off(key: str, reason: str, inactive: InactiveCheck) -> KeyMapping:
    """A key that may only have a value that switches it off."""
    return refused(key, UNSET, f"{reason}; write 0", supported=_is_off, inactive=inactive)


def _is_off(foreign: ForeignValues, value: Any) -> bool:
    return not value
