"""`trainer`: how experiences become new weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from strop.config.schema.base import Section, kind_or
from strop.config.schema.optimizer import AdamW, Optimizer, WeightDecayIncrease, check_clipping, check_sharded
from strop.config.schema.sample import DefaultSample, Sample, WarmUpSample
from strop.config.schema.schedule import ConstantSchedule, Schedule
from strop.config.units import Amount, Duration, MicroBatchSize


class SingleEngine(Section):
    """One process, on the CPU or on one GPU."""

    type: Literal["single"] = "single"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is the GPU where there is one."""

    @property
    def ranks(self) -> int:
        """Itself alone."""
        return 1


class Fsdp2Engine(Section):
    """Several processes, each with a part of every parameter, gradient and optimizer state (FSDP2)."""

    type: Literal["fsdp2"] = "fsdp2"
    ranks: int = Field(2, gt=0)
    """So many processes, the run's own among them; on GPUs each has one of its own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is a GPU for each rank where there are GPUs."""


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
    shuffle_seed: int | None = Field(None, ge=0)
    """Fixes these orders; the run's `seed` when left out."""
    sample: Sample = DefaultSample()
    """What a step learns from."""
    microbatch: MicroBatchSize = Amount(16384, "tokens")
    """What goes through the model at once, in `tokens` or `sequences`; changes memory, never the gradient."""
    optimizer: Annotated[Optimizer, kind_or("adamw")] = AdamW()
    """What turns gradients into steps."""
    weight_decay_increase: WeightDecayIncrease | None = None
    """How the optimizer's weight decay climbs to its value; null for none: it stays."""
    schedule: Annotated[Schedule, kind_or("constant")] = ConstantSchedule()
    """How the learning rate moves."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Longer gradients are scaled down to this length; null for no bound."""
    engine: Annotated[
        Annotated[SingleEngine | Fsdp2Engine, Field(discriminator="type")], kind_or("single")
    ] = SingleEngine()
    """What runs the model to learn."""

    @property
    def warm_up_steps(self) -> int:
        """How many of a run's first steps learn from given answers; rollouts begin after them."""
        return int(self.sample.steps.count) if isinstance(self.sample, WarmUpSample) else 0

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

    @model_validator(mode="after")
    def _optimizer_fits(self) -> Trainer:
        check_clipping(self.optimizer, self.max_grad_norm)
        if isinstance(self.engine, Fsdp2Engine):
            check_sharded(self.optimizer)
        increase = self.weight_decay_increase
        if increase is not None and increase.start > self.optimizer.weight_decay:
            raise ValueError(
                f"weight_decay_increase.start ({increase.start}) is above optimizer.weight_decay "
                f"({self.optimizer.weight_decay}), where it ends"
            )
        return self
