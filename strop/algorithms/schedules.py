"""How the learning rate moves: pure functions of a position in the run."""

from __future__ import annotations

import math
from typing import assert_never

from strop.config.schema.trainer import ConstantSchedule, CosineSchedule, LinearSchedule, Schedule


def lr_at(schedule: Schedule, lr: float, position: int, total: int, warmup: int) -> float:
    """The learning rate of the update at `position`, counted from 0 as transformers counts.

    Over the first `warmup` positions the rate climbs linearly from 0, which position 0 has; at
    `warmup` it is `lr`. From there the schedule brings it down until `total`, and it stays there.
    With `min_ratio` 0 these are transformers' `get_constant_schedule_with_warmup`,
    `get_linear_schedule_with_warmup` and `get_cosine_schedule_with_warmup`; with more, they are
    transformers' polynomial decay of power 1 and verl's cosine. (Both of their cosines go on
    after `total`, and rise again.)

    Args:
        lr: the highest rate.
        position: steps or updates done, as `schedule.counts` says; the same for the next two.
        total: the whole run.
        warmup: the part of it that climbs.
    """
    if position < warmup:
        return lr * position / warmup
    progress = min(1.0, (position - warmup) / max(1, total - warmup))
    match schedule:
        case ConstantSchedule():
            return lr
        case LinearSchedule():
            return lr * _between(schedule.min_ratio, 1 - progress)
        case CosineSchedule():
            wave = math.cos(2 * math.pi * schedule.cycles * progress)
            return lr * _between(schedule.min_ratio, (1 + wave) / 2)
        case _:
            assert_never(schedule)


def _between(lowest: float, share: float) -> float:
    """From `lowest` at 0 to 1 at 1."""
    return lowest + (1 - lowest) * share
