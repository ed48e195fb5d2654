"""Schedules of learning rate and weight decay, as pure functions of the position, and the state of the plateau's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from strop.config.schema.algorithm import ImitationScheduleConfig
from strop.config.schema.optimizer import (
    CosineScheduleConfig,
    CosineWithRestartsScheduleConfig,
    DecayScheduleConfig,
    InverseSqrtScheduleConfig,
    PolynomialScheduleConfig,
    ReduceOnPlateauScheduleConfig,
    ScheduleConfig,
    WeightDecayIncreaseConfig,
    WsdScheduleConfig,
)
from strop.config.units import Amount, Rounding

NO_WARMUP_TIMESCALE = 10_000
"""Timescale of `inverse_sqrt` without a warm-up, as in transformers."""


def lr_at(
    schedule: ScheduleConfig,
    lr: float,
    position: int,
    total: int,
    count: Callable[[Amount, Rounding], int],
) -> float:
    """The learning rate of the update at `position`, counted from 0 as transformers counts.

    Over the warm-up the rate rises linearly to `lr`. After it, the schedule lowers the rate until its own
    length, or `total`, and the rate stays there. With start and end 0, these are transformers' schedules of
    the same names; `cosine` with a minimum and `wsd` are verl's; schedules with a start, a length and a
    minimum are Megatron's. (transformers' and verl's cosines rise again after `total`.)
    `reduce_lr_on_plateau` is computed here as before its first reduction.

    Args:
        lr: highest rate.
        position: number of steps or updates done, in the unit `schedule.interval`.
        total: length of the run, in the same unit.
        count: converts an amount of the run file into that unit, with the rounding of a percentage.
    """
    warmup = count(schedule.warmup, schedule.warmup_rounding)
    if position < warmup:
        return lr * _between(schedule.start_ratio, position / warmup)
    if not isinstance(schedule, DecayScheduleConfig):
        return lr
    end = total if schedule.length is None else count(schedule.length, "down")
    if isinstance(schedule, InverseSqrtScheduleConfig):
        scale = count(schedule.timescale, "down") if schedule.timescale else warmup or NO_WARMUP_TIMESCALE
        height = math.sqrt(scale / (position - warmup + scale))
        return lr * (schedule.min_ratio if position > end else max(schedule.min_ratio, height))
    if isinstance(schedule, WsdScheduleConfig):
        warmup = _decay_start(schedule.decay, warmup, end, count)
    progress = min(1.0, max(0, position - warmup) / max(1, end - warmup))
    return lr * _between(schedule.min_ratio, _height(schedule, progress))


def imitation_weight(step: int, *, peak: float, schedule: ImitationScheduleConfig) -> float:
    """The weight `mu` of an expert's demonstrations in a step, counted from 1 (CHORD, arXiv 2508.11408)."""
    warmup, decay = schedule.warmup_steps, schedule.decay_steps
    if step < warmup:
        return peak * step / warmup
    if step >= warmup + decay:
        return schedule.final
    return schedule.final + (peak - schedule.final) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / decay))


def weight_decay_at(
    increase: WeightDecayIncreaseConfig, weight_decay: float, position: int, total: int
) -> float:
    """Megatron's: from `increase.start` at position 0 to `weight_decay` at `total`."""
    progress = min(1.0, position / total)
    if increase.style == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return increase.start + (weight_decay - increase.start) * progress


def _decay_start(decay: Amount, warmup: int, end: int, count: Callable[[Amount, Rounding], int]) -> int:
    """Position at which the stable phase of `wsd` ends."""
    if decay.unit == "%":
        return warmup + int((end - warmup) * (100 - decay.count) / 100)
    return max(warmup, end - count(decay, "down"))


def _height(schedule: DecayScheduleConfig, progress: float) -> float:
    """Height of the curve at `progress` (0 to 1) of the decay: 1 is the highest rate, 0 the minimum."""
    match schedule:
        case CosineScheduleConfig():
            return _cosine(2 * schedule.cycles * progress)
        case CosineWithRestartsScheduleConfig():
            return 0.0 if progress == 1 else _cosine(schedule.cycles * progress % 1)
        case PolynomialScheduleConfig():
            return (1 - progress) ** schedule.power
        case WsdScheduleConfig():
            return _WSD[schedule.style](progress)
        case _:
            return 1 - progress


def _cosine(halves: float) -> float:
    """1 at 0, 0 at 1, 1 again at 2."""
    return (1 + math.cos(math.pi * halves)) / 2


_WSD: Mapping[str, Callable[[float], float]] = {
    "cosine": _cosine,
    "linear": lambda progress: 1 - progress,
    "exponential": lambda progress: 2 * 0.5**progress - 1,
    "minus_sqrt": lambda progress: 1 - math.sqrt(progress),
    "constant": lambda _: 1.0,
}
"""verl's curve is the cosine; the others are Megatron's."""


def _between(lowest: float, fraction: float) -> float:
    """Linear interpolation from `lowest` to 1."""
    return lowest + (1 - lowest) * fraction


@dataclass(frozen=True, slots=True)
class PlateauState:
    """State of `reduce_lr_on_plateau` between evaluations."""

    ratio: float = 1.0
    """Factor on the schedule's learning rate."""
    best: float | None = None
    """Best value so far; None before the first evaluation."""
    bad: int = 0
    """Number of consecutive evaluations without improvement."""
    cooldown: int = 0
    """Number of following evaluations that do not count as bad."""


def update_plateau(
    schedule: ReduceOnPlateauScheduleConfig, plateau: PlateauState, value: float
) -> PlateauState:
    """The state after one more evaluation, like torch's `ReduceLROnPlateau` with `eps` 0.

    (torch skips reductions smaller than 1e-8, which matter at the learning rates of fine-tuning.)
    """
    if plateau.best is None or _better(schedule, value, plateau.best):
        plateau = replace(plateau, best=value, bad=0)
    else:
        plateau = replace(plateau, bad=plateau.bad + 1)
    if plateau.cooldown:
        plateau = replace(plateau, cooldown=plateau.cooldown - 1, bad=0)
    if plateau.bad > schedule.patience:
        ratio = max(plateau.ratio * schedule.factor, schedule.min_ratio)
        plateau = replace(plateau, ratio=ratio, cooldown=schedule.cooldown, bad=0)
    return plateau


def _better(schedule: ReduceOnPlateauScheduleConfig, value: float, best: float) -> bool:
    sign = 1 if schedule.mode == "max" else -1
    margin = schedule.threshold * (best if schedule.threshold_mode == "rel" else 1)
    return sign * value > sign * best + margin
