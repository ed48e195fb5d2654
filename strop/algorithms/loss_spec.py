"""An algorithm's loss as data: each rank of a training engine builds the same function from it."""

from __future__ import annotations

from dataclasses import dataclass

from strop.algorithms import registry
from strop.config.schema import Run
from strop.config.schema.algorithm import AlgorithmConfig
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

    def build(self) -> LossFn:
        """The loss function."""
        return registry.make_loss_fn(self.algorithm, max_response_tokens=self.max_response_tokens)

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss reads `TokenOutputs.entropy`."""
        return registry.needs_entropy(self.algorithm)

    @property
    def needs_divergence(self) -> bool:
        """Whether the loss reads `TokenOutputs.divergence`."""
        return registry.needs_divergence(self.algorithm)
