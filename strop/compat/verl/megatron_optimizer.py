"""Ledger rows of the optimizer keys that verl's page lists for Megatron, for actor and critic.

Under FSDP they are inactive, except the weight decay; under Megatron they configure the optimizer and FSDP's
keys are inactive. The strategy is placement: `--here` overrides `strategy=megatron` and keeps its optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    ReadFunction,
    mapped,
    no_effect,
    written_by,
)
from strop.compat.ledger.value_types import INTEGER, NUMBER, STRING, nullable, one_of
from strop.compat.verl import switches
from strop.compat.verl.actor_converters import OPTIM, clipping, schedule
from strop.compat.verl.lr_schedule import DECAYS
from strop.config.schema import Run
from strop.config.schema.optimizer import SgdConfig

_WSD = ("constant", "exponential", "cosine", "linear", "minus_sqrt")
ADAMW = ("adam", "AdamW", "adamw", "_AdamW", "FusedAdam")
_MOMENTUM = 0.9
"""Momentum of Megatron's SGD; verl has no key for it."""


def write_optimizer(run: Run) -> Mapping[str, Any]:
    """Write the optimizer, unless it is FSDP's AdamW."""
    return {f"{OPTIM}.optimizer": "sgd"} if isinstance(run.trainer.optimizer, SgdConfig) else {}


@written_by(write_optimizer)
def optimizer(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the optimizer: AdamW under every strategy, or Megatron's sgd, which has momentum."""
    key = f"{OPTIM}.optimizer"
    name = foreign[key]
    if name in ADAMW:
        return {}
    if name == "sgd" and not switches.megatron(foreign):
        return {"trainer.optimizer.type": "sgd", "trainer.optimizer.momentum": _MOMENTUM}
    if not foreign.is_set(key):
        return {}
    raise foreign.error_for(
        key,
        f"{key} is {name}; Strop reads AdamW, and sgd under Megatron. Another optimizer needs a run file.",
    )


def write_weight_decay_schedule(run: Run) -> Mapping[str, Any]:
    """Write the style of the weight decay increase, if any; verl has no key for its start."""
    increase = run.trainer.weight_decay_increase
    return {} if increase is None else {f"{OPTIM}.weight_decay_incr_style": increase.style}


@written_by(write_weight_decay_schedule)
def weight_decay_schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the weight decay increase; verl passes Megatron the same weight decay as its start and its end."""
    style = foreign[f"{OPTIM}.weight_decay_incr_style"]
    if switches.megatron(foreign) or style == "constant":
        return {}
    return {
        "trainer.weight_decay_increase.style": style,
        "trainer.weight_decay_increase.start": foreign[f"{OPTIM}.weight_decay"],
    }


def schedule_rows(
    optim: str,
    at: str,
    read: ReadFunction,
    inactive: InactiveCheck,
    falling: InactiveCheck,
    wsd: InactiveCheck,
) -> dict[str, KeyMapping]:
    """Rows of Megatron's schedule keys in the section `optim`, by last name. `at` is the run-file section
    that has the schedule."""
    section = f"{at}.schedule"

    def row(name: str, default: Any, field: str, **more: Any) -> KeyMapping:
        return mapped(
            f"{optim}.{name}", default, f"{section}.{field}", read=read, **{"inactive": inactive, **more}
        )

    rows = (
        row("lr_warmup_init", 0.0, "start_ratio", note="a fraction of lr in the run file"),
        row("lr_decay_steps", None, "length", value_type=nullable(INTEGER), inactive=falling),
        row(
            "lr_decay_style",
            "linear",
            "type",
            value_type=one_of(*DECAYS),
            note="verl accepts WSD, which is not on the page; constant by default since 0.6",
        ),
        row("min_lr", 0.0, "min_ratio", inactive=falling, note="a fraction of lr in the run file"),
        row("lr_wsd_decay_style", "exponential", "style", value_type=one_of(*_WSD), inactive=wsd),
        row("lr_wsd_decay_steps", None, "decay", value_type=nullable(INTEGER), inactive=wsd),
    )
    return {found.key.rpartition(".")[2]: found for found in rows}


_ROWS = schedule_rows(OPTIM, "trainer", schedule, switches.megatron, switches.falling, switches.wsd)
ROWS = (
    mapped(
        f"{OPTIM}.optimizer",
        "adam",
        "trainer.optimizer.type",
        read=optimizer,
        value_type=STRING,
        note="sgd has Megatron's momentum of 0.9",
    ),
    mapped(
        f"{OPTIM}.clip_grad",
        1.0,
        "trainer.max_grad_norm",
        read=clipping,
        note="0 means no bound; since 0.8 it also counts under FSDP, instead of grad_clip",
    ),
    _ROWS["lr_warmup_init"],
    _ROWS["lr_decay_steps"],
    _ROWS["lr_decay_style"],
    _ROWS["min_lr"],
    mapped(f"{OPTIM}.weight_decay", 0.01, "trainer.optimizer.weight_decay", value_type=NUMBER),
    mapped(
        f"{OPTIM}.weight_decay_incr_style",
        "constant",
        "trainer.weight_decay_increase.style",
        "trainer.weight_decay_increase.start",
        read=weight_decay_schedule,
        value_type=one_of("constant", "linear", "cosine"),
        inactive=switches.megatron,
        note="verl starts and ends the increase at weight_decay",
    ),
    _ROWS["lr_wsd_decay_style"],
    _ROWS["lr_wsd_decay_steps"],
    no_effect(
        f"{OPTIM}.use_checkpoint_opt_param_scheduler",
        False,
        "a resumed run always keeps its schedule; a changed schedule is refused",
    ),
)
