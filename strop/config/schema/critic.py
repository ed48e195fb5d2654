"""`algorithm.critic`: the value model of PPO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.model import ModelConfig
from strop.config.schema.optimizer import AdamWConfig, OptimizerConfig, clipping_faults
from strop.config.schema.policy_gradient import Aggregation
from strop.config.schema.schedule import ConstantScheduleConfig, MetricFreeScheduleConfig
from strop.config.units import MicroBatchSize

HeadInit = Literal["zero", "normal", "score"]
"""Initial weights of a head of one output: new ones, or those of the head `score` of a reward model."""


class CriticConfig(Section):
    """Value model, a separate model that predicts the return of a state, and its training."""

    model: ModelConfig | None = None
    """Model that the critic starts from, with a head of one output; the policy's `model` if omitted."""
    head: HeadInit = "zero"
    """Initial weights of the head: `zero`, so that the first values are 0; `normal`, a normal distribution with the
    model's `initializer_range` as standard deviation, as in transformers; or `score`, the head of the reward model in
    `model.path`."""
    value_clip: float | None = Field(0.5, gt=0)
    """Maximum change of a value, relative to the start of the step, that the value loss counts; null for no
    limit."""
    aggregation: Aggregation = "token-mean"
    """Aggregation of the value loss over the targets of an update. `token-mean` gives every target the same weight; the
    others weigh sequences as in `algorithm.aggregation`."""
    warmup_steps: int = Field(0, ge=0)
    """Number of first steps in which only the critic is trained."""
    tasks_per_update: int | None = Field(None, gt=0)
    """Tasks whose rollouts make one update of the critic; the policy's value if omitted."""
    epochs_per_step: int | None = Field(None, gt=0)
    """Epochs of the critic over a step's rollouts; the policy's value if omitted."""
    microbatch: MicroBatchSize | None = None
    """Size of a micro-batch, in `tokens` or `sequences`; the policy's value if omitted."""
    optimizer: Annotated[OptimizerConfig, type_shorthand("adamw")] = AdamWConfig(lr=1e-5)
    """Optimizer of the critic."""
    schedule: Annotated[MetricFreeScheduleConfig, type_shorthand("constant")] = ConstantScheduleConfig()
    """Learning rate schedule of the critic."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Maximum norm of the gradient; larger gradients are scaled down to it. Null for no limit."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        yield from clipping_faults(self.optimizer, self.max_grad_norm)
        if self.model is not None and self.model.lora is not None and self.model.lora.adapter is not None:
            yield (
                "model.lora.adapter is of a policy, and the critic's adapter starts new; remove it, or write a model "
                "with the adapter merged as model.path"
            )
