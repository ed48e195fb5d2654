"""An algorithm's loss as data: each rank of a training engine builds the same function from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strop.algorithms import registry
from strop.algorithms.process_rewards import ProcessRewardLoss
from strop.algorithms.schedules import imitation_weight
from strop.config.schema import Run
from strop.config.schema.algorithm import AlgorithmConfig, MixConfig
from strop.config.schema.distillation import DivergenceConfig
from strop.protocols import LossFn


@dataclass(frozen=True, slots=True)
class LossSpec:
    """The loss of one algorithm section."""

    algorithm: AlgorithmConfig
    max_response_tokens: int
    """`data.max_response_tokens`: the response limit, which `seq-mean-token-sum-norm` divides by."""

    @classmethod
    def of(cls, run: Run) -> LossSpec:
        """The loss of a run's algorithm."""
        return cls(run.algorithm, run.data.max_response_tokens)

    def at_step(self, step: int) -> LossSpec:
        """The loss of one trainer step, counted from 1: with a schedule of mix's `mu`, its value in this step."""
        algorithm = self.algorithm
        if not isinstance(algorithm, MixConfig) or algorithm.mu_schedule is None:
            return self
        mu = imitation_weight(step, peak=algorithm.mu, schedule=algorithm.mu_schedule)
        return replace(self, algorithm=algorithm.model_copy(update={"mu": mu, "mu_schedule": None}))

    def build(self) -> LossFn:
        """The loss function."""
        return registry.make_loss_fn(self.algorithm, max_response_tokens=self.max_response_tokens)

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss reads `TokenOutputs.entropy`."""
        return self.algorithm.needs_entropy

    @property
    def needs_divergence(self) -> bool:
        """Whether the loss reads `TokenOutputs.divergence`."""
        return self.algorithm.needs_divergence

    @property
    def teacher_divergence(self) -> DivergenceConfig | None:
        """The divergence that the loss reads as `TokenOutputs.teacher_divergence`; None for none."""
        return self.algorithm.teacher_divergence


@dataclass(frozen=True, slots=True)
class ProcessRewardLossSpec:
    """The loss of a process reward model."""

    beta: float
    needs_entropy: bool = False
    needs_divergence: bool = False
    teacher_divergence: DivergenceConfig | None = None

    def build(self) -> LossFn:
        """The loss function."""
        return ProcessRewardLoss(self.beta)


AnyLossSpec = LossSpec | ProcessRewardLossSpec
"""The loss of an update of a language model."""
