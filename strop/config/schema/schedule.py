"""`trainer.schedule`: how the learning rate moves. One class for each, with its own options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.units import Amount, Part, Warmup


class ScheduleBase(Section):
    """What every schedule has."""

    warmup: Warmup = Amount(0, "steps")
    """The rate climbs linearly over this part of the run; `%` is of the whole."""
    start_ratio: float = Field(0.0, ge=0, le=1)
    """Where the warm-up begins, as a share of the highest rate."""
    counts: Literal["steps", "updates"] = "steps"
    """Whether the rate changes once a step or once an update."""


class FallingSchedule(ScheduleBase):
    """What every schedule has that comes down to an end."""

    min_ratio: float = Field(0.0, ge=0, le=1)
    """Where it ends, as a share of the highest rate."""
    length: Part | None = None
    """Its end, counted from the start of the run; the end of the run when left out."""


class ConstantSchedule(ScheduleBase):
    """The rate stays."""

    type: Literal["constant"] = "constant"


class LinearSchedule(FallingSchedule):
    """The rate falls linearly."""

    type: Literal["linear"] = "linear"


class CosineSchedule(FallingSchedule):
    """The rate falls along a cosine."""

    type: Literal["cosine"] = "cosine"
    cycles: float = Field(0.5, gt=0)
    """Waves of the cosine over the run: 0.5 falls once."""


class CosineWithRestartsSchedule(FallingSchedule):
    """The rate falls along half a cosine, jumps back to its highest value, and falls again."""

    type: Literal["cosine_with_restarts"] = "cosine_with_restarts"
    cycles: int = Field(1, gt=0)
    """How often it falls."""


class PolynomialSchedule(FallingSchedule):
    """The rate falls with a power of what is left of the run."""

    type: Literal["polynomial"] = "polynomial"
    power: float = Field(1.0, gt=0)
    """1 is a line; more falls faster at first."""


class InverseSqrtSchedule(FallingSchedule):
    """The rate falls with the root of the time since the warm-up."""

    type: Literal["inverse_sqrt"] = "inverse_sqrt"
    timescale: Part | None = None
    """After three times this, it is at half; the warm-up's length when left out (without one, 10,000)."""


class WsdSchedule(FallingSchedule):
    """Warm-up, stable, decay: the rate stays at its highest and falls in the last part alone."""

    type: Literal["wsd"] = "wsd"
    decay: Part = Amount(10, "%")
    """The last part; `%` is of what follows the warm-up."""
    style: Literal["cosine", "linear", "exponential", "minus_sqrt", "constant"] = "cosine"
    """The curve of the decay; `constant` stays up to the end."""


class ReduceOnPlateauSchedule(ScheduleBase):
    """The rate is cut when an evaluation's metric no longer gets better."""

    type: Literal["reduce_lr_on_plateau"] = "reduce_lr_on_plateau"
    metric: str | None = None
    """A metric of the evaluation, such as `eval/gsm8k/reward`; left out, the first eval taskset's reward."""
    mode: Literal["max", "min"] = "max"
    """Whether more of the metric is better, or less."""
    factor: float = Field(0.1, gt=0, lt=1)
    """What the rate is multiplied by."""
    patience: int = Field(10, ge=0)
    """Evaluations in a row that may be no better; the next one cuts the rate."""
    threshold: float = Field(1e-4, ge=0)
    """How much better counts as better."""
    threshold_mode: Literal["rel", "abs"] = "rel"
    """Whether the threshold is a share of the best value, or a difference from it."""
    cooldown: int = Field(0, ge=0)
    """Evaluations after a cut that are not counted."""
    min_ratio: float = Field(0.0, ge=0, le=1)
    """The rate is never cut below this share of its highest value."""


_PositionKinds = (
    ConstantSchedule
    | LinearSchedule
    | CosineSchedule
    | CosineWithRestartsSchedule
    | PolynomialSchedule
    | InverseSqrtSchedule
    | WsdSchedule
)
PositionSchedule = Annotated[_PositionKinds, Field(discriminator="type")]
"""The schedules that depend on the position in the run alone."""
Schedule = Annotated[_PositionKinds | ReduceOnPlateauSchedule, Field(discriminator="type")]
