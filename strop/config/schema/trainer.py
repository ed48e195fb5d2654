"""`trainer`: training on experiences, from the number of steps to the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.batch_selection import (
    BatchSelectionConfig,
    DefaultSelectionConfig,
    WarmupSelectionConfig,
)
from strop.config.schema.elastic import ElasticConfig
from strop.config.schema.optimizer import (
    AdamWConfig,
    OptimizerConfig,
    WeightDecayIncreaseConfig,
    clipping_faults,
    sharding_faults,
)
from strop.config.schema.router_loss import RouterLossConfig
from strop.config.schema.schedule import ConstantScheduleConfig, ScheduleConfig
from strop.config.schema.training_engine import (
    LocalEngineConfig,
    TrainingEngineConfig,
)
from strop.config.units import Amount, Duration, MicroBatchSize, RunLimit


class TrainerConfig(Section):
    """Training on experiences."""

    duration: Duration = Amount(1, "epochs")
    """Length of the run: epochs over the training tasks, steps, or updates."""
    stop_after: RunLimit = None
    """Earlier end of the run, in epochs or steps; learning rate schedules still span `duration`."""
    tasks_per_step: int = Field(64, gt=0)
    """Tasks sampled in one step; each has `algorithm.rollouts_per_task` rollouts."""
    tasks_per_update: int | None = Field(None, gt=0)
    """Tasks whose rollouts make one optimizer update; all tasks of the step if omitted."""
    epochs_per_step: int = Field(1, gt=0)
    """Epochs over the rollouts of one step (PPO's epochs)."""
    shuffle_each_epoch: bool = False
    """Shuffle the order of the step's tasks for each of these epochs."""
    shuffle_seed: int | None = Field(None, ge=0)
    """Seed of these orders; the run's `seed` if omitted."""
    batch_selection: BatchSelectionConfig = DefaultSelectionConfig()
    """Choice of the experiences that a step learns from."""
    microbatch: MicroBatchSize = Amount(16384, "tokens")
    """Size of a micro-batch, in `tokens` or `sequences`; it changes memory, never the gradient. If omitted
    it is half, a quarter, and so on, down to 1024 tokens, where the default would not fit into the machine's memory,
    and on a CPU where activations would take more memory than weights, gradients and optimizer state."""
    skip_zero_advantages: bool = True
    """Leave rollouts whose advantages are all 0 out of the updates' forward and backward passes, where the loss has no
    term but the policy loss; with a KL penalty or an entropy bonus, out of the forward pass for log-probs of the old
    policy, which these do not read. They still count in its denominators, so that the gradient is the same; metrics of
    log-probs are means over the other rollouts."""
    optimizer: Annotated[OptimizerConfig, type_shorthand("adamw")] = AdamWConfig()
    """Optimizer of the policy."""
    weight_decay_increase: WeightDecayIncreaseConfig | None = None
    """Schedule by which the optimizer's weight decay increases; null keeps it constant."""
    schedule: Annotated[ScheduleConfig, type_shorthand("constant")] = ConstantScheduleConfig()
    """Learning rate schedule."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Maximum norm of the gradient; larger gradients are scaled down to it. Null for no limit."""
    router_loss: RouterLossConfig | None = None
    """Losses on the routers of a mixture of experts; null for none."""
    engine: Annotated[TrainingEngineConfig, type_shorthand("local")] = LocalEngineConfig()
    """Training engine, which runs the model's forward and backward passes and the optimizer."""
    elastic: ElasticConfig | None = None
    """Continuation with fewer ranks after the loss of a node; null ends the run, which the same command resumes."""

    @property
    def warmup_steps(self) -> int:
        """Number of the run's first steps that train on demonstrations; sampling starts after them."""
        return (
            int(self.batch_selection.steps.count)
            if isinstance(self.batch_selection, WarmupSelectionConfig)
            else 0
        )

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        per_step, per_update = self.tasks_per_step, self.tasks_per_update
        if per_update is not None and per_step % per_update:
            low = per_step // per_update * per_update
            nearest = [n for n in (low, low + per_update) if n]
            yield (
                f"tasks_per_step ({per_step}) is not a multiple of tasks_per_update ({per_update}); "
                f"the nearest multiples are {' and '.join(map(str, nearest))}"
            )
        yield from clipping_faults(self.optimizer, self.max_grad_norm)
        if not isinstance(self.engine, LocalEngineConfig):
            yield from sharding_faults(self.engine.type, self.optimizer)
        yield from self._elastic_faults()
        increase = self.weight_decay_increase
        if increase is not None and increase.start > self.optimizer.weight_decay:
            yield (
                f"weight_decay_increase.start ({increase.start}) is above its final value, "
                f"optimizer.weight_decay ({self.optimizer.weight_decay}); write a smaller start"
            )

    def _elastic_faults(self) -> Iterator[str]:
        if self.elastic is None:
            return
        if isinstance(self.engine, LocalEngineConfig):
            yield "elastic is set, and engine is local, which has one rank; write engine: {type: fsdp2, ranks: ...}"
        elif self.elastic.min_ranks > self.engine.ranks:
            yield (
                f"elastic.min_ranks ({self.elastic.min_ranks}) is more than engine.ranks ({self.engine.ranks}); "
                "write a smaller number"
            )
