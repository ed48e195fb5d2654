"""How the learning rate and the weight decay move: pure functions of a position in the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from strop.config.schema.optimizer import WeightDecayIncrease
from strop.config.schema.schedule import (
    CosineSchedule,
    CosineWithRestartsSchedule,
    FallingSchedule,
    InverseSqrtSchedule,
    PolynomialSchedule,
    Schedule,
    WsdSchedule,
)
from strop.config.units import Amount

NO_WARMUP_TIMESCALE = 10_000
"""transformers' timescale of `inverse_sqrt` where there is no warm-up."""


def lr_at(schedule: Schedule, lr: float, position: int, total: int, count: Callable[[Amount], int]) -> float:
    """The learning rate of the update at `position`, counted from 0 as transformers counts.

    Over the warm-up the rate climbs linearly; at its end it is `lr`. From there the schedule brings it
    down until its own length, or `total`, and it stays there. Where it starts at 0 and ends at 0, these
    are transformers' schedules of the same names; `cosine` with a floor and `wsd` are verl's; and those
    with a start, a length and a floor are Megatron's. (transformers' and verl's cosines go on after
    `total`, and rise again.) `reduce_lr_on_plateau` is here what it is before the first cut.

    Args:
        lr: the highest rate.
        position: steps or updates done, as `schedule.counts` says; the same for the next.
        total: the whole run.
        count: how many of them an amount of the run file is.
    """
    warmup = count(schedule.warmup)
    if position < warmup:
        return lr * _between(schedule.start_ratio, position / warmup)
    if not isinstance(schedule, FallingSchedule):
        return lr
    end = total if schedule.length is None else count(schedule.length)
    if isinstance(schedule, InverseSqrtSchedule):
        scale = count(schedule.timescale) if schedule.timescale else warmup or NO_WARMUP_TIMESCALE
        share = math.sqrt(scale / (position - warmup + scale))
        return lr * (schedule.min_ratio if position > end else max(schedule.min_ratio, share))
    if isinstance(schedule, WsdSchedule):
        warmup = _decay_start(schedule.decay, warmup, end, count)
    progress = min(1.0, max(0, position - warmup) / max(1, end - warmup))
    return lr * _between(schedule.min_ratio, _height(schedule, progress))


def weight_decay_at(increase: WeightDecayIncrease, weight_decay: float, position: int, total: int) -> float:
    """Megatron's: from `increase.start` at position 0 to `weight_decay` at `total`."""
    progress = min(1.0, position / total)
    if increase.style == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return increase.start + (weight_decay - increase.start) * progress


def _decay_start(decay: Amount, warmup: int, end: int, count: Callable[[Amount], int]) -> int:
    """Where the stable part of `wsd` ends."""
    if decay.unit == "%":
        return warmup + int((end - warmup) * (100 - decay.count) / 100)
    return max(warmup, end - count(decay))


def _height(schedule: FallingSchedule, progress: float) -> float:
    """Where the rate stands at `progress` (0 to 1) of the fall: 1 is its highest value, 0 its floor."""
    match schedule:
        case CosineSchedule():
            return _cosine(2 * schedule.cycles * progress)
        case CosineWithRestartsSchedule():
            return 0.0 if progress == 1 else _cosine(schedule.cycles * progress % 1)
        case PolynomialSchedule():
            return (1 - progress) ** schedule.power
        case WsdSchedule():
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


def _between(lowest: float, share: float) -> float:
    """From `lowest` at 0 to 1 at 1."""
    return lowest + (1 - lowest) * share
