"""`algorithm.critic`: the value model of PPO."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from strop.config.schema.base import Section, kind_or
from strop.config.schema.model import Model
from strop.config.schema.optimizer import AdamW, Optimizer, check_clipping
from strop.config.schema.schedule import ConstantSchedule, PositionSchedule
from strop.config.units import MicroBatchSize


class Critic(Section):
    """A model of its own that says what reward a state will still bring, and how it learns."""

    model: Model | None = None
    """What it starts from, with a new head of one value; the policy's own `model` when left out."""
    value_clip: float | None = Field(0.5, gt=0)
    """A value counts as moved at most so far from what it was at the step's start; null for no bound."""
    warmup_steps: int = Field(0, ge=0)
    """In so many steps at the start the critic alone learns."""
    tasks_per_update: int | None = Field(None, gt=0)
    """Tasks whose rollouts make one update of the critic; as for the policy when left out."""
    passes: int | None = Field(None, gt=0)
    """How often it is trained on a step's rollouts; as the policy when left out."""
    microbatch: MicroBatchSize | None = None
    """What goes through it at once, in `tokens` or `sequences`; as for the policy when left out."""
    optimizer: Annotated[Optimizer, kind_or("adamw")] = AdamW(lr=1e-5)
    """What turns its gradients into steps."""
    schedule: Annotated[PositionSchedule, kind_or("constant")] = ConstantSchedule()
    """How its learning rate moves."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Longer gradients are scaled down to this length; null for no bound."""

    @model_validator(mode="after")
    def _optimizer_fits(self) -> Critic:
        check_clipping(self.optimizer, self.max_grad_norm)
        return self
