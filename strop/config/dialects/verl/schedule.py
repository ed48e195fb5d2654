"""How verl's learning rates move, under FSDP and under Megatron: the same for actor and critic.

verl's schedules count trainer steps, whatever the number of updates in each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.theirs import Theirs
from strop.config.same import in_steps
from strop.config.schema import Run
from strop.config.schema.algorithm import Ppo
from strop.config.schema.optimizer import Sgd
from strop.config.schema.schedule import CosineSchedule, FallingSchedule, Schedule, WsdSchedule

DECAYS = {
    "constant": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "inverse_square_root": "inverse_sqrt",
    "WSD": "wsd",
}
"""Megatron's names of the falls after the warm-up, and ours. The page has the first four."""


def of_fsdp(theirs: Theirs, optim: str) -> Mapping[str, Any]:
    """`optim` is the section's dotted name; the settings are those of a schedule, by their last names."""
    kind = theirs[f"{optim}.warmup_style"]
    settings = {"type": kind, "counts": "steps", "warmup": _warmup(theirs, optim, None)}
    if kind == "cosine":
        settings["min_ratio"] = theirs[f"{optim}.min_lr_ratio"]
        settings["cycles"] = theirs[f"{optim}.num_cycles"]
    return settings


def of_megatron(theirs: Theirs, optim: str) -> Mapping[str, Any]:
    """Rates are shares of the highest one here; Megatron's ratio of a warm-up is one of `lr_decay_steps`."""
    kind, length = DECAYS[theirs[f"{optim}.lr_decay_style"]], theirs[f"{optim}.lr_decay_steps"]
    settings = {
        "type": kind,
        "counts": "steps",
        "warmup": _warmup(theirs, optim, length),
        "start_ratio": _share(theirs, optim, "lr_warmup_init"),
    }
    if kind == "constant":
        return settings
    settings["min_ratio"] = _share(theirs, optim, "min_lr")
    if length is not None:
        settings["length"] = f"{length} steps"
    if kind == "inverse_sqrt" and settings["warmup"] in ("0 steps", "0.0 %", "0 %"):
        settings["timescale"] = "1 steps"
    if kind == "wsd":
        decay = theirs[f"{optim}.lr_wsd_decay_steps"]
        if decay is None:
            raise theirs.fault(
                f"{optim}.lr_decay_style",
                f"{optim}.lr_decay_style is WSD; write {optim}.lr_wsd_decay_steps too, in steps.",
            )
        settings["decay"] = f"{decay} steps"
        settings["style"] = theirs[f"{optim}.lr_wsd_decay_style"]
    return settings


def wants_megatron(run: Run) -> bool:
    """Whether only Megatron's keys can say how the run's rates move, or what its optimizer is."""
    schedules = [run.trainer.schedule]
    if isinstance(run.algorithm, Ppo):
        schedules.append(run.algorithm.critic.schedule)
    return (
        isinstance(run.trainer.optimizer, Sgd)
        or run.trainer.weight_decay_increase is not None
        or any(
            said.type not in ("constant", "cosine") or said.start_ratio or getattr(said, "length", None)
            for said in schedules
        )
    )


def write(run: Run, said: Schedule, lr: float, optim: str) -> dict[str, Any]:
    """The keys of a schedule whose highest rate is `lr`, by `optim`, the section's dotted name."""
    names = {ours: theirs for theirs, ours in DECAYS.items()}
    values: dict[str, Any] = {}
    warmup = in_steps(run, said.warmup)
    if warmup is not None and warmup.unit == "%":
        values["lr_warmup_steps_ratio"] = round(warmup.count / 100, 12)
    elif warmup is not None and warmup.unit == "steps" and warmup.count > 0:
        values["lr_warmup_steps"] = int(warmup.count)
    if not wants_megatron(run):
        values["warmup_style"] = said.type
        if isinstance(said, CosineSchedule):
            values |= {"min_lr_ratio": said.min_ratio, "num_cycles": said.cycles}
    else:
        values |= {"lr_decay_style": names.get(said.type), "lr_warmup_init": said.start_ratio * lr}
        if isinstance(said, FallingSchedule):
            length = None if said.length is None else in_steps(run, said.length)
            if length is not None and length.unit == "steps":
                values["lr_decay_steps"] = int(length.count)
            values["min_lr"] = said.min_ratio * lr
        if isinstance(said, WsdSchedule):
            decay = in_steps(run, said.decay)
            if decay is None or decay.unit != "steps":
                values["lr_decay_style"] = None
            else:
                values |= {"lr_wsd_decay_steps": int(decay.count), "lr_wsd_decay_style": said.style}
    return {f"{optim}.{name}": value for name, value in values.items()}


def by_steps(theirs: Theirs, optim: str) -> bool:
    """Whether the warm-up is given in steps; a negative number of them, or none, leaves it to the ratio."""
    steps = theirs[f"{optim}.lr_warmup_steps"]
    return steps is not None and bool(steps >= 0)


def _warmup(theirs: Theirs, optim: str, length: int | None) -> str:
    if by_steps(theirs, optim):
        return f"{theirs[f'{optim}.lr_warmup_steps']} steps"
    ratio = theirs[f"{optim}.lr_warmup_steps_ratio"]
    return f"{round(100 * ratio, 10)} %" if length is None else f"{int(ratio * length)} steps"


def _share(theirs: Theirs, optim: str, key: str) -> float:
    """A rate as a share of the highest one."""
    rate, highest = theirs[f"{optim}.{key}"], theirs[f"{optim}.lr"]
    if not 0 <= rate <= highest:
        raise theirs.fault(
            f"{optim}.{key}", f"{optim}.{key} ({rate}) must be between 0 and {optim}.lr ({highest})."
        )
    return float(f"{rate / highest:.12g}") if highest else 0.0
