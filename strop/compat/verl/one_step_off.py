"""Ledger rows of verl's one-step-off-policy trainer, which samples a step while it trains on the step before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    always,
    mapped,
    not_on_page,
    placement,
    written_by,
)
from strop.compat.ledger.placement_notes import ONE_MACHINE
from strop.compat.ledger.value_types import ANY
from strop.compat.verl import async_units, trainer_v1
from strop.config.schema import Run
from strop.config.schema.synchronizer import CollectiveSyncConfig, FixedStyleConfig

_HYBRID = "actor_rollout_ref.hybrid_engine"


def write_one_step_off(run: Run) -> Mapping[str, Any]:
    """Write an explorer that is one step ahead; verl has no key for other leads."""
    synchronizer = run.synchronizer
    if not isinstance(synchronizer, CollectiveSyncConfig):
        return {}
    one_ahead = FixedStyleConfig().model_copy(update={"max_lead": FixedStyleConfig().every})
    return {_HYBRID: False} if synchronizer.style == one_ahead else {}


@written_by(write_one_step_off)
def explorer(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the explorer: in turns with the trainer, or a process of its own, one step ahead or asynchronous."""
    if async_units.is_fully_async(foreign):
        return async_units.synchronizer(foreign)
    if mode := trainer_v1.async_mode(foreign):
        return trainer_v1.synchronizer(foreign, mode)
    if foreign[_HYBRID]:
        return {}
    return {"synchronizer.type": "collective", "synchronizer.style.max_lead": "1 steps"}


ROWS = (
    mapped(
        _HYBRID,
        True,
        "synchronizer.type",
        "synchronizer.style.max_lead",
        read=explorer,
        note="False: a separate explorer samples a step while the trainer trains on the step before, as in verl's "
        "one_step_off_policy",
    ),
    *not_on_page(
        *(
            placement(
                f"rollout.{name}",
                UNSET,
                f"explorer and trainer share {ONE_MACHINE.removeprefix('a single process on ')}",
                supported=always,
                value_type=ANY,
            )
            for name in ("nnodes", "n_gpus_per_node")
        ),
    ),
)
