"""`trainer`: how experiences become new weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from strop.config.schema.base import KindByName, Section, kind_or
from strop.config.units import Amount, Duration, MicroBatchSize, Warmup


class AdamW(Section):
    """Adam with decoupled weight decay (arXiv 1711.05101)."""

    type: Literal["adamw"] = "adamw"
    lr: float = Field(1e-6, ge=0)
    """The schedule's highest learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moment's averages."""
    eps: float = Field(1e-8, gt=0)
    """Added to the second moment's root."""
    weight_decay: float = Field(0.01, ge=0)
    """Share of a weight, times the learning rate, taken off at each update."""


class ScheduleBase(Section):
    """What every schedule has."""

    warmup: Warmup = Amount(0, "steps")
    """The rate climbs linearly from 0 over this part of the run."""
    counts: Literal["steps", "updates"] = "steps"
    """Whether the rate changes once a step or once an update."""


class ConstantSchedule(ScheduleBase):
    """The rate stays."""

    type: Literal["constant"] = "constant"


class LinearSchedule(ScheduleBase):
    """The rate falls linearly to `min_ratio` of its highest value at the end of the run."""

    type: Literal["linear"] = "linear"
    min_ratio: float = Field(0.0, ge=0, le=1)
    """Where it ends, as a share of the highest rate."""


class CosineSchedule(ScheduleBase):
    """The rate falls along a cosine to `min_ratio` of its highest value."""

    type: Literal["cosine"] = "cosine"
    min_ratio: float = Field(0.0, ge=0, le=1)
    """Where it ends, as a share of the highest rate."""
    cycles: float = Field(0.5, gt=0)
    """Waves of the cosine over the run: 0.5 falls once."""


Schedule = Annotated[ConstantSchedule | LinearSchedule | CosineSchedule, Field(discriminator="type")]


class SingleEngine(Section):
    """One process, on the CPU or on one GPU."""

    type: Literal["single"] = "single"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is the GPU where there is one."""


class Trainer(Section):
    """How experiences become new weights."""

    duration: Duration = Amount(1, "epochs")
    """How long the run goes on: epochs over the training tasks, steps, or updates."""
    tasks_per_step: int = Field(64, gt=0)
    """Tasks sampled in one step; each gives `algorithm.rollouts_per_task` rollouts."""
    tasks_per_update: int | None = Field(None, gt=0)
    """Tasks whose rollouts make one optimizer update; all of the step's when left out."""
    passes: int = Field(1, gt=0)
    """How often a step's rollouts are trained on (PPO's epochs)."""
    shuffle_passes: bool = False
    """Draw a new order of the step's tasks for each pass."""
    microbatch: MicroBatchSize = Amount(16384, "tokens")
    """What goes through the model at once, in `tokens` or `sequences`; changes memory, never the gradient."""
    optimizer: Annotated[AdamW, KindByName] = AdamW()
    """What turns gradients into steps."""
    schedule: Annotated[Schedule, kind_or("constant")] = ConstantSchedule()
    """How the learning rate moves."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Longer gradients are scaled down to this length; null for no bound."""
    engine: Annotated[SingleEngine, KindByName] = SingleEngine()
    """What runs the model to learn."""

    @model_validator(mode="after")
    def _updates_divide_steps(self) -> Trainer:
        per_step, per_update = self.tasks_per_step, self.tasks_per_update
        if per_update is not None and per_step % per_update:
            low = per_step // per_update * per_update
            nearest = [n for n in (low, low + per_update) if n]
            raise ValueError(
                f"tasks_per_step ({per_step}) is not a multiple of tasks_per_update ({per_update}); "
                f"nearest that are: {' and '.join(map(str, nearest))}"
            )
        return self
