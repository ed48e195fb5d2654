"""Ledger rows of TRL's keys for several processes, which become the training engine: `fsdp`, `fsdp_config` and
`deepspeed`; and of `gradient_checkpointing`, which FSDP has an option for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, KeyMapping, mapped, placement, written_by
from strop.compat.ledger.placement_notes import NO_DEEPSPEED, NO_SHARDS
from strop.compat.ledger.value_types import ANY
from strop.compat.trl import fsdp
from strop.config.schema import Run
from strop.config.schema.deepspeed_engine import DeepSpeedEngineConfig
from strop.config.schema.training_engine import Fsdp2EngineConfig

FIELD = "model.gradient_checkpointing"
_ENGINE = ("trainer.engine.type", "trainer.engine.ranks")


def write_engine(run: Run) -> Mapping[str, Any]:
    """Write the engine, and whether layers are recomputed; selective recomputation is written as true."""
    section = run.trainer.engine
    layout = section if isinstance(section, Fsdp2EngineConfig) else None
    return {
        "deepspeed": section.config if isinstance(section, DeepSpeedEngineConfig) else None,
        "fsdp": True if layout else None,
        "fsdp_config": (fsdp.written_config(layout) or None) if layout else None,
        "gradient_checkpointing": bool(run.model.gradient_checkpointing),
    }


@written_by(write_engine)
def engine(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the engine of accelerate's processes, and whether layers are recomputed."""
    recomputed: dict[str, Any] = {
        FIELD: bool(foreign["gradient_checkpointing"]) or fsdp.checkpoints_activations(foreign)
    }
    config = foreign["deepspeed"]
    if foreign.here:
        return recomputed
    if config is not None and foreign["fsdp"]:
        raise foreign.error_for("fsdp", "fsdp and deepspeed both divide the model; write one of them.")
    if config is not None:
        return {**recomputed, **_deepspeed(foreign, config)}
    if not foreign["fsdp"]:
        return recomputed
    settings = {f"trainer.engine.{name}": value for name, value in fsdp.layout(foreign).items()}
    return {
        **recomputed,
        "trainer.engine.type": "fsdp2",
        "trainer.engine.ranks": foreign["num_processes"],
        **settings,
    }


def _deepspeed(foreign: ForeignValues, config: Any) -> Mapping[str, Any]:
    if not isinstance(config, str | dict):
        raise foreign.error_for("deepspeed", f"deepspeed is {config!r}; write a JSON file, or its sections.")
    return {
        "trainer.engine.type": "deepspeed",
        "trainer.engine.ranks": foreign["num_processes"],
        "trainer.engine.config": config,
    }


def _unless_here(foreign: ForeignValues, value: Any) -> bool:
    return not value or not foreign.here


def _engine_row(key: str, instead: str, *fields: str) -> KeyMapping:
    return placement(
        key, None, instead, supported=_unless_here, value_type=ANY, fields=(*_ENGINE, *fields), read=engine
    )


_LAYOUT = ("replicate", "reshard_after_forward", "cpu_offload", "forward_prefetch")
ROWS = (
    _engine_row("fsdp", NO_SHARDS),
    replace(
        _engine_row(
            "fsdp_config",
            NO_SHARDS,
            *(f"trainer.engine.{name}" for name in (*_LAYOUT, "wrap.layers", "wrap.min_parameters")),
            FIELD,
        ),
        inactive=fsdp.is_off,
        warn=fsdp.notice,
    ),
    _engine_row("deepspeed", NO_DEEPSPEED, "trainer.engine.config"),
    mapped("gradient_checkpointing", True, FIELD, read=engine),
)
