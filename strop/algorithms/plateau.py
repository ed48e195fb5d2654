"""State of the `reduce_lr_on_plateau` schedule, which lowers the learning rate when evaluations stop improving."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strop.config.schema.optimizer import ReduceOnPlateauScheduleConfig


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
