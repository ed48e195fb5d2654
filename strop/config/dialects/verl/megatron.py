"""The optimizer keys that the page gives for Megatron: of the actor, and the same of the critic.

Under FSDP they mean nothing, but for the weight decay; under Megatron they are the optimizer, and FSDP's
own mean nothing. Who trains is placement: `--here` sets `strategy=megatron` aside, and its optimizer stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    NUMBER,
    WHOLE,
    Off,
    Read,
    Row,
    mapped,
    no_effect,
    one_of,
    or_null,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches
from strop.config.dialects.verl.actor import OPTIM, clipping, schedule
from strop.config.dialects.verl.schedule import DECAYS
from strop.config.schema import Run
from strop.config.schema.optimizer import Sgd

_WSD = ("constant", "exponential", "cosine", "linear", "minus_sqrt")
_MOMENTUM = 0.9
"""Megatron's own, which verl has no key for."""


def write_optimizer(run: Run) -> Mapping[str, Any]:
    """Where it is not FSDP's AdamW."""
    return {f"{OPTIM}.optimizer": "sgd"} if isinstance(run.trainer.optimizer, Sgd) else {}


@written_by(write_optimizer)
def optimizer(theirs: Theirs) -> Mapping[str, Any]:
    """Megatron's Adam is AdamW; its sgd has momentum."""
    if switches.megatron(theirs) or theirs[f"{OPTIM}.optimizer"] == "adam":
        return {}
    return {"trainer.optimizer.type": "sgd", "trainer.optimizer.momentum": _MOMENTUM}


def write_decay_increase(run: Run) -> Mapping[str, Any]:
    """Where there is one; verl has no key for its start."""
    said = run.trainer.weight_decay_increase
    return {} if said is None else {f"{OPTIM}.weight_decay_incr_style": said.style}


@written_by(write_decay_increase)
def decay_increase(theirs: Theirs) -> Mapping[str, Any]:
    """verl gives Megatron the same weight decay for the start and for the end of its climb."""
    style = theirs[f"{OPTIM}.weight_decay_incr_style"]
    if switches.megatron(theirs) or style == "constant":
        return {}
    return {
        "trainer.weight_decay_increase.style": style,
        "trainer.weight_decay_increase.start": theirs[f"{OPTIM}.weight_decay"],
    }


def scheduled(optim: str, at: str, read: Read, off: Off, falling: Off, wsd: Off) -> dict[str, Row]:
    """The rows of Megatron's schedule, for whose optimizer `optim` is."""
    section = f"{at}.schedule"

    def row(name: str, default: Any, field: str, **more: Any) -> Row:
        return mapped(f"{optim}.{name}", default, f"{section}.{field}", read=read, **{"off": off, **more})

    rows = (
        row("lr_warmup_init", 0.0, "start_ratio", note="as a share of lr"),
        row("lr_decay_steps", None, "length", kind=or_null(WHOLE), off=falling),
        row("lr_decay_style", "linear", "type", kind=one_of(*DECAYS), note="WSD is upstream's"),
        row("min_lr", 0.0, "min_ratio", off=falling, note="as a share of lr"),
        row("lr_wsd_decay_style", "exponential", "style", kind=one_of(*_WSD), off=wsd),
        row("lr_wsd_decay_steps", None, "decay", kind=or_null(WHOLE), off=wsd),
    )
    return {found.theirs.rpartition(".")[2]: found for found in rows}


_ROWS = scheduled(OPTIM, "trainer", schedule, switches.megatron, switches.falling, switches.wsd)
ROWS = (
    mapped(
        f"{OPTIM}.optimizer",
        "adam",
        "trainer.optimizer.type",
        read=optimizer,
        kind=one_of("adam", "sgd"),
        off=switches.megatron,
        note="sgd with Megatron's momentum of 0.9",
    ),
    mapped(
        f"{OPTIM}.clip_grad",
        1.0,
        "trainer.max_grad_norm",
        read=clipping,
        off=switches.megatron,
        note="0 is no bound",
    ),
    _ROWS["lr_warmup_init"],
    _ROWS["lr_decay_steps"],
    _ROWS["lr_decay_style"],
    _ROWS["min_lr"],
    mapped(f"{OPTIM}.weight_decay", 0.01, "trainer.optimizer.weight_decay", kind=NUMBER),
    mapped(
        f"{OPTIM}.weight_decay_incr_style",
        "constant",
        "trainer.weight_decay_increase.style",
        "trainer.weight_decay_increase.start",
        read=decay_increase,
        kind=one_of("constant", "linear", "cosine"),
        off=switches.megatron,
        note="verl lets it climb from weight_decay to weight_decay",
    ),
    _ROWS["lr_wsd_decay_style"],
    _ROWS["lr_wsd_decay_steps"],
    no_effect(
        f"{OPTIM}.use_checkpoint_opt_param_scheduler",
        False,
        "a run goes on with the schedule that it began with, or is refused",
    ),
)
