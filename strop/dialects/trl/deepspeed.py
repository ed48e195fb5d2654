"""Ledger row of TRL's DeepSpeed configuration, which becomes the training engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema import Run
from strop.config.schema.deepspeed_engine import DeepSpeedEngineConfig
from strop.dialects.ledger.key_mapping import ForeignValues, KeyMapping, placement, written_by
from strop.dialects.ledger.placement_notes import NO_DEEPSPEED
from strop.dialects.ledger.value_types import ANY


def write_engine(run: Run) -> Mapping[str, Any]:
    """Write the run's DeepSpeed configuration, if it has one."""
    section = run.trainer.engine
    return {"deepspeed": section.config if isinstance(section, DeepSpeedEngineConfig) else None}


@written_by(write_engine)
def engine(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the configuration, a file or its sections, as the training engine of accelerate's processes."""
    config = foreign["deepspeed"]
    if config is None or foreign.here:
        return {}
    if not isinstance(config, str | dict):
        raise foreign.error_for("deepspeed", f"deepspeed is {config!r}; write a JSON file, or its sections.")
    return {
        "trainer.engine.type": "deepspeed",
        "trainer.engine.ranks": foreign["num_processes"],
        "trainer.engine.config": config,
    }


def _unless_here(foreign: ForeignValues, value: Any) -> bool:
    return value is None or not foreign.here


def deepspeed_row() -> KeyMapping:
    """The row of `deepspeed`."""
    return placement(
        "deepspeed",
        None,
        NO_DEEPSPEED,
        supported=_unless_here,
        value_type=ANY,
        fields=("trainer.engine.type", "trainer.engine.ranks", "trainer.engine.config"),
        read=engine,
    )
