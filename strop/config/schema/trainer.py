"""`trainer`: training on experiences, from the number of steps and the choice of experiences to router losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.optimizer import (
    AdamWConfig,
    ConstantScheduleConfig,
    OptimizerConfig,
    ScheduleConfig,
    WeightDecayIncreaseConfig,
    clipping_faults,
    sharding_faults,
)
from strop.config.schema.training_engine import ElasticConfig, LocalEngineConfig, TrainingEngineConfig
from strop.config.units import Amount, Duration, MicroBatchSize, NonNegativeSteps, RunLimit, Steps


class DefaultSelectionConfig(Section):
    """Groups in the order in which the buffer returns them."""

    type: Literal["default"] = "default"


class WarmupSelectionConfig(Section):
    """Supervised warm-up: the first steps train on demonstrations with the SFT loss; sampling starts after
    them."""

    type: Literal["warmup"] = "warmup"
    steps: Steps
    """Number of first steps that train on demonstrations, with as many updates each as any other step."""
    demonstrations: str | None = None
    """Name of the set in `data.demonstrations`; the only set if omitted."""
    demonstrations_per_update: int | None = Field(None, gt=0)
    """Number of demonstrations per update; the number of rollouts per update if omitted."""


class StalenessSelectionConfig(Section):
    """Groups in the order in which the buffer returns them, without those above a maximum staleness, which
    are dropped."""

    type: Literal["staleness"] = "staleness"
    max_staleness: NonNegativeSteps = Amount(2, "steps")
    """Maximum number of steps between the weights that sampled a group and those that train on it."""


BatchSelectionConfig = Annotated[
    Annotated[
        DefaultSelectionConfig | WarmupSelectionConfig | StalenessSelectionConfig, Field(discriminator="type")
    ],
    type_shorthand("default"),
]


class RouterLossConfig(Section):
    """Losses on the routers of a mixture of experts, added to the algorithm's loss."""

    balance_coef: float = Field(0.0, ge=0)
    """Coefficient of the load-balancing loss (Switch Transformer, arXiv 2101.03961, equations 4 to 6); 0 for none.
    Above 0, each update has an additional forward pass, which measures the load of the experts over the update."""
    balance_over: Literal["layer", "model"] = "layer"
    """Router outputs that one load is computed of: those of each layer, with the sum over layers as the loss, as in
    Megatron; or those of all layers together, as in transformers."""
    z_coef: float = Field(0.0, ge=0)
    """Coefficient of the router z-loss, summed over layers (ST-MoE, arXiv 2202.08906, equation 5); 0 for none."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.balance_coef == self.z_coef == 0:
            yield "balance_coef and z_coef are 0, so there is no loss; write one of them, or remove router_loss"


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
