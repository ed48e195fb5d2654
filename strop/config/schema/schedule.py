"""`trainer.schedule`: learning rate schedules, one class each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.units import Amount, Rounding, ScheduleLength, WarmupLength


class BaseScheduleConfig(Section):
    """Fields of every schedule."""

    warmup: WarmupLength = Amount(0, "steps")
    """Length of the linear warm-up; `%` is of the whole run, 0 is no warm-up."""
    warmup_rounding: Rounding = "down"
    """Rounding of a warm-up in `%` to whole steps or updates: `down`, as verl, or `up`, as transformers' trainer."""
    start_ratio: float = Field(0.0, ge=0, le=1)
    """Learning rate at the start of the warm-up, as a fraction of the peak rate."""
    interval: Literal["steps", "updates"] = "steps"
    """Interval at which the rate changes: each step or each update."""


class DecayScheduleConfig(BaseScheduleConfig):
    """Fields of every schedule that decays to a final rate."""

    min_ratio: float = Field(0.0, ge=0, le=1)
    """Final learning rate, as a fraction of the peak rate."""
    length: ScheduleLength | None = None
    """Position at which the decay ends, from the start of the run; the end of the run if omitted."""


class ConstantScheduleConfig(BaseScheduleConfig):
    """Constant rate."""

    type: Literal["constant"] = "constant"


class LinearScheduleConfig(DecayScheduleConfig):
    """Linear decay."""

    type: Literal["linear"] = "linear"


class CosineScheduleConfig(DecayScheduleConfig):
    """Cosine decay."""

    type: Literal["cosine"] = "cosine"
    cycles: float = Field(0.5, gt=0)
    """Periods of the cosine over the run; 0.5 decays once."""


class CosineWithRestartsScheduleConfig(DecayScheduleConfig):
    """Cosine decay that restarts at the peak rate."""

    type: Literal["cosine_with_restarts"] = "cosine_with_restarts"
    cycles: int = Field(1, gt=0)
    """Number of decays."""


class PolynomialScheduleConfig(DecayScheduleConfig):
    """Polynomial decay: a power of the remaining fraction of the run."""

    type: Literal["polynomial"] = "polynomial"
    power: float = Field(1.0, gt=0)
    """Exponent; 1 is linear, a larger exponent decays faster at first."""


class InverseSqrtScheduleConfig(DecayScheduleConfig):
    """Decay with the inverse square root of the time since the warm-up."""

    type: Literal["inverse_sqrt"] = "inverse_sqrt"
    timescale: ScheduleLength | None = None
    """Time scale of the decay: after three time scales the rate is half its peak; the length of the warm-up
    if omitted (10,000 without a warm-up)."""


class WsdScheduleConfig(DecayScheduleConfig):
    """Warm-up, stable, decay: the peak rate, and a decay in the last part of the run."""

    type: Literal["wsd"] = "wsd"
    decay: ScheduleLength = Amount(10, "%")
    """Length of the decay at the end; `%` is of the part after the warm-up."""
    style: Literal["cosine", "linear", "exponential", "minus_sqrt", "constant"] = "cosine"
    """Curve of the decay; `constant` keeps the peak rate to the end."""


class ReduceOnPlateauScheduleConfig(BaseScheduleConfig):
    """Reduction of the rate when an evaluation metric stops improving."""

    type: Literal["reduce_lr_on_plateau"] = "reduce_lr_on_plateau"
    metric: str | None = None
    """Evaluation metric, such as `eval/gsm8k/reward`; the first eval taskset's reward if omitted."""
    mode: Literal["max", "min"] = "max"
    """Direction of improvement: `max` for a metric that should increase, `min` for one that should
    decrease."""
    factor: float = Field(0.1, gt=0, lt=1)
    """Factor of each reduction."""
    patience: int = Field(10, ge=0)
    """Number of consecutive evaluations without improvement that are tolerated; the next one reduces the
    rate."""
    threshold: float = Field(1e-4, ge=0)
    """Minimum improvement that counts."""
    threshold_mode: Literal["rel", "abs"] = "rel"
    """Meaning of `threshold`: `rel` is a fraction of the best value, `abs` a difference from it."""
    cooldown: int = Field(0, ge=0)
    """Number of evaluations after a reduction that are ignored."""
    min_ratio: float = Field(0.0, ge=0, le=1)
    """Minimum learning rate, as a fraction of the peak rate."""


_MetricFreeKinds = (
    ConstantScheduleConfig
    | LinearScheduleConfig
    | CosineScheduleConfig
    | CosineWithRestartsScheduleConfig
    | PolynomialScheduleConfig
    | InverseSqrtScheduleConfig
    | WsdScheduleConfig
)
MetricFreeScheduleConfig = Annotated[_MetricFreeKinds, Field(discriminator="type")]
"""Schedules that depend only on the position in the run."""
ScheduleConfig = Annotated[_MetricFreeKinds | ReduceOnPlateauScheduleConfig, Field(discriminator="type")]
