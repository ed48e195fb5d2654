"""Process reward model of PRIME, and its choice of groups: `algorithm.process_reward`, `algorithm.oversampling`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.model import ModelConfig
from strop.config.schema.optimizer import AdamWConfig, OptimizerConfig, clipping_faults
from strop.config.schema.schedule import ConstantScheduleConfig, MetricFreeScheduleConfig


class ProcessRewardConfig(Section):
    """Language model that is trained to tell right from wrong responses, and rewards each token (implicit process
    reward model, arXiv 2412.01981)."""

    model: ModelConfig | None = None
    """Model that the process reward model starts from, which is also its reference; the policy's `model` if omitted."""
    beta: float = Field(0.05, gt=0)
    """Factor between the log-ratio to the reference and the reward."""
    normalize: bool = True
    """Divide the rewards of a step by the largest absolute reward-to-go of its tokens."""
    update_first: bool = True
    """Train the model on the step's rollouts before it rewards them; false rewards them first."""
    tasks_per_update: int | None = Field(None, gt=0)
    """Tasks whose rollouts make one update of the model; the policy's value if omitted."""
    optimizer: Annotated[OptimizerConfig, type_shorthand("adamw")] = AdamWConfig(lr=1e-6)
    """Optimizer of the model."""
    schedule: Annotated[MetricFreeScheduleConfig, type_shorthand("constant")] = ConstantScheduleConfig()
    """Learning rate schedule of the model."""
    max_grad_norm: float | None = Field(10.0, gt=0)
    """Maximum norm of the gradient; larger gradients are scaled down to it. Null for no limit."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        yield from clipping_faults(self.optimizer, self.max_grad_norm)


class OversamplingConfig(Section):
    """More tasks than a step trains on: groups of a medium mean reward are preferred (PRIME, arXiv 2502.01456)."""

    factor: int = Field(4, ge=2)
    """Number of sampled tasks for each task that is trained on."""
    min_mean_reward: float = 0.2
    """Minimum mean reward of a preferred group."""
    max_mean_reward: float = 0.8
    """Maximum mean reward of a preferred group."""
    prefer_complete: bool = True
    """Whether a group with a response that was cut off at a limit is not preferred."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.min_mean_reward > self.max_mean_reward:
            yield (
                f"min_mean_reward ({self.min_mean_reward}) is above max_mean_reward ({self.max_mean_reward}), so that "
                "no group is preferred; write a smaller min_mean_reward"
            )
