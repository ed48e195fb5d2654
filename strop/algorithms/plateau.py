"""The one schedule with a memory: the rate is cut when an evaluation no longer gets better."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strop.config.schema.schedule import ReduceOnPlateauSchedule


@dataclass(frozen=True, slots=True)
class Plateau:
    """What `reduce_lr_on_plateau` remembers between evaluations."""

    ratio: float = 1.0
    """The rate is the schedule's times this."""
    best: float | None = None
    """The best value so far; None before the first."""
    bad: int = 0
    """Evaluations in a row that were no better."""
    cooldown: int = 0
    """Evaluations to come that are not counted."""


def after_evaluation(schedule: ReduceOnPlateauSchedule, plateau: Plateau, value: float) -> Plateau:
    """The memory after one more evaluation, as torch's `ReduceLROnPlateau` with its `eps` 0.

    (torch leaves cuts smaller than 1e-8 undone, which are whole ones at the rates of fine-tuning.)
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


def _better(schedule: ReduceOnPlateauSchedule, value: float, best: float) -> bool:
    sign = 1 if schedule.mode == "max" else -1
    margin = schedule.threshold * (best if schedule.threshold_mode == "rel" else 1)
    return sign * value > sign * best + margin
