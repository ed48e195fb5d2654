"""Converters of verl's learning-rate schedules under FSDP and Megatron, shared by actor and critic.

verl's schedules count trainer steps, not optimizer updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues
from strop.compat.verl import switches
from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.optimizer import SgdConfig
from strop.config.schema.schedule import (
    CosineScheduleConfig,
    DecayScheduleConfig,
    ScheduleConfig,
    WsdScheduleConfig,
)
from strop.config.step_arithmetic import to_steps

OVERWRITTEN = "verl overwrites it with the length of the run; write trainer.total_training_steps"
"""Note of `optim.total_training_steps`."""
DECAYS = {
    "constant": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "inverse_square_root": "inverse_sqrt",
    "WSD": "wsd",
}
"""Megatron's names of the decay styles, each with Strop's schedule type. The page has the first four."""


def fsdp_schedule(foreign: ForeignValues, optim: str) -> Mapping[str, Any]:
    """Read an FSDP schedule from the section `optim`; returns schedule fields by their last name."""
    if _strategy(foreign, optim) == "torchtitan":
        return _torchtitan_schedule(foreign, optim)
    kind = foreign[f"{optim}.warmup_style"]
    settings = {"type": kind, "interval": "steps", "warmup": _warmup(foreign, optim, None)}
    if kind == "cosine":
        settings["min_ratio"] = foreign[f"{optim}.min_lr_ratio"]
        settings["cycles"] = foreign[f"{optim}.num_cycles"]
    return settings | _veomni_ends(foreign, optim, kind)


def _strategy(foreign: ForeignValues, optim: str) -> Any:
    """The strategy of actor or critic; the SFT trainer has it as its engine's."""
    return foreign["engine.strategy" if optim == "optim" else f"{optim.removesuffix('.optim')}.strategy"]


def _torchtitan_schedule(foreign: ForeignValues, optim: str) -> Mapping[str, Any]:
    """Read torchtitan's schedule: after the warm-up the rate falls to `min_lr_factor` at the end of the run."""
    kind, last = foreign[f"{optim}.decay_type"], foreign[f"{optim}.min_lr_factor"]
    settings = {"interval": "steps", "warmup": _warmup(foreign, optim, None)}
    if last >= 1:
        return settings | {"type": "constant"}
    if kind == "sqrt":
        raise foreign.error_for(
            f"{optim}.decay_type",
            f"{optim}.decay_type is sqrt, which Strop has only as the last part of a schedule; write linear or "
            "cosine, or a run file with trainer.schedule.type: wsd and style: minus_sqrt.",
        )
    return settings | {"type": kind, "min_ratio": last}


def _veomni_ends(foreign: ForeignValues, optim: str, kind: str) -> dict[str, Any]:
    """First and last rate of VeOmni's schedule, which it has as rates; none under another strategy."""
    if not foreign.has_row(f"{optim}.lr_min") or not (
        foreign.is_set(f"{optim}.lr_min") or foreign.is_set(f"{optim}.lr_start")
    ):
        return {}
    ends = {"start_ratio": _fraction(foreign, optim, "lr_start")}
    return ends | ({"min_ratio": _fraction(foreign, optim, "lr_min")} if kind == "cosine" else {})


def megatron_schedule(foreign: ForeignValues, optim: str) -> Mapping[str, Any]:
    """Read a Megatron schedule from the section `optim`; returns schedule fields by their last name. Strop's
    rates are fractions of the peak rate. Megatron's warm-up ratio is a fraction of `lr_decay_steps`."""
    kind, length = DECAYS[decay_style(foreign, optim)], foreign[f"{optim}.lr_decay_steps"]
    settings = {
        "type": kind,
        "interval": "steps",
        "warmup": _warmup(foreign, optim, length),
        "start_ratio": _fraction(foreign, optim, "lr_warmup_init"),
    }
    if kind == "constant":
        return settings
    settings["min_ratio"] = _fraction(foreign, optim, "min_lr")
    if length is not None:
        settings["length"] = f"{length} steps"
    if kind == "inverse_sqrt" and settings["warmup"] in ("0 steps", "0.0 %", "0 %"):
        settings["timescale"] = "1 steps"
    if kind == "wsd":
        decay = foreign[f"{optim}.lr_wsd_decay_steps"]
        if decay is None:
            raise foreign.error_for(
                f"{optim}.lr_decay_style",
                f"{optim}.lr_decay_style is WSD; also write {optim}.lr_wsd_decay_steps, in steps.",
            )
        settings["decay"] = f"{decay} steps"
        settings["style"] = foreign[f"{optim}.lr_wsd_decay_style"]
    return settings


def decay_style(foreign: ForeignValues, optim: str) -> str:
    """Megatron's decay style: where it is not set, linear as on the seed page, and constant since verl 0.6."""
    key = f"{optim}.lr_decay_style"
    return str(foreign[key]) if foreign.is_set(key) or not switches.is_later(foreign) else "constant"


def requires_megatron(run: Run) -> bool:
    """Whether only Megatron's keys can express the run's schedules, optimizer or weight decay."""
    schedules = [run.trainer.schedule]
    if isinstance(run.algorithm, PpoConfig):
        schedules.append(run.algorithm.critic.schedule)
    return (
        isinstance(run.trainer.optimizer, SgdConfig)
        or run.trainer.weight_decay_increase is not None
        or any(
            schedule.type not in ("constant", "cosine")
            or schedule.start_ratio
            or getattr(schedule, "length", None)
            for schedule in schedules
        )
    )


def schedule_values(run: Run, schedule: ScheduleConfig, lr: float, optim: str) -> dict[str, Any]:
    """The keys of the section `optim` for a schedule whose peak rate is `lr`."""
    names = {name: foreign_name for foreign_name, name in DECAYS.items()}
    values: dict[str, Any] = {}
    warmup = to_steps(run, schedule.warmup)
    if warmup is not None and warmup.unit == "%":
        values["lr_warmup_steps_ratio"] = round(warmup.count / 100, 12)
    elif warmup is not None and warmup.unit == "steps" and warmup.count > 0:
        values["lr_warmup_steps"] = int(warmup.count)
    if not requires_megatron(run):
        values["warmup_style"] = schedule.type
        if isinstance(schedule, CosineScheduleConfig):
            values |= {"min_lr_ratio": schedule.min_ratio, "num_cycles": schedule.cycles}
    else:
        values |= {"lr_decay_style": names.get(schedule.type), "lr_warmup_init": schedule.start_ratio * lr}
        if isinstance(schedule, DecayScheduleConfig):
            length = None if schedule.length is None else to_steps(run, schedule.length)
            if length is not None and length.unit == "steps":
                values["lr_decay_steps"] = int(length.count)
            values["min_lr"] = schedule.min_ratio * lr
        if isinstance(schedule, WsdScheduleConfig):
            decay = to_steps(run, schedule.decay)
            if decay is None or decay.unit != "steps":
                values["lr_decay_style"] = None
            else:
                values |= {"lr_wsd_decay_steps": int(decay.count), "lr_wsd_decay_style": schedule.style}
    return {f"{optim}.{name}": value for name, value in values.items()}


def by_steps(foreign: ForeignValues, optim: str) -> bool:
    """Whether the warm-up is set in steps; with null or a negative number of steps, the ratio applies."""
    steps = foreign[f"{optim}.lr_warmup_steps"]
    return steps is not None and bool(steps >= 0)


def _warmup(foreign: ForeignValues, optim: str, length: int | None) -> str:
    if by_steps(foreign, optim):
        return f"{foreign[f'{optim}.lr_warmup_steps']} steps"
    ratio = foreign[f"{optim}.lr_warmup_steps_ratio"]
    return f"{round(100 * ratio, 10)} %" if length is None else f"{int(ratio * length)} steps"


def _fraction(foreign: ForeignValues, optim: str, key: str) -> float:
    """A rate as a fraction of the peak rate."""
    rate, highest = foreign[f"{optim}.{key}"], foreign[f"{optim}.lr"]
    if not 0 <= rate <= highest:
        raise foreign.error_for(
            f"{optim}.{key}", f"{optim}.{key} ({rate}) must be between 0 and {optim}.lr ({highest})."
        )
    return float(f"{rate / highest:.12g}") if highest else 0.0
