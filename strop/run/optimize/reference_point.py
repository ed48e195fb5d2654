"""Number that the log-ratios of an update with labeled responses are compared with, computed before the update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from strop.algorithms.reference_point import RunningMean, kl_estimate, log_ratios, mismatched_pairs
from strop.config.schema import Run
from strop.config.schema.preference import BcoConfig, KtoConfig, UnpairedConfig
from strop.errors import DataError
from strop.protocols import TrainingEngine
from strop.run.state.run_state import RunState
from strop.types import Experience, FloatArray


class ReferencePoint(ABC):
    """Computes `GlobalCounts.reference_point`, in nats. All passes are without a gradient, over the whole update, so
    that the result does not depend on micro-batches and ranks."""

    @abstractmethod
    def of_update(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> float:
        """The value for an update on these experiences, given the reference's log-probs [L] of each."""

    @abstractmethod
    def of_evaluation(self, experiences: Sequence[Experience]) -> float:
        """The value for an evaluation on these experiences, which changes no state."""

    def load_state(self, state: RunState) -> None:  # noqa: B027  (only a running mean has a state)
        """Continue from a saved state."""

    def save_state(self, state: RunState) -> RunState:
        """The state with this object's field set to its current value."""
        return state


class MismatchedKl(ReferencePoint):
    """KTO's estimate of the KL divergence from the reference, over mismatched pairs of prompt and response."""

    def __init__(self, engine: TrainingEngine, max_tokens: int) -> None:
        """`max_tokens` is the limit of a sequence, at which a mismatched pair is cut."""
        self._engine = engine
        self._max_tokens = max_tokens

    def of_update(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> float:
        """The estimate over the mismatched pairs of the update."""
        return self.of_evaluation(experiences)

    def of_evaluation(self, experiences: Sequence[Experience]) -> float:
        """The estimate over the mismatched pairs of the taskset. Raises `DataError` for an experience with images."""
        if pictured := next((each.id for each in experiences if each.media), None):
            raise DataError(
                f"The row {pictured} has images, and algorithm kto estimates the KL divergence from prompts with other "
                "rows' responses, for text only. Write algorithm.loss: apo_zero_unpaired, or algorithm bco."
            )
        pairs = mismatched_pairs(experiences, self._max_tokens)
        policy = self._engine.logprobs(pairs)
        return kl_estimate(log_ratios(pairs, policy, self._engine.logprobs(pairs, reference=True)))


class MeanLogRatio(ReferencePoint):
    """BCO's running mean over the responses of all updates, the current one included."""

    def __init__(self, engine: TrainingEngine) -> None:
        self._engine = engine
        self._mean = RunningMean()

    def of_update(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> float:
        """The mean with the responses of the update."""
        ratios = log_ratios(experiences, self._engine.logprobs(experiences), reference)
        self._mean = self._mean.updated(ratios)
        return self._mean.mean

    def of_evaluation(self, experiences: Sequence[Experience]) -> float:
        """The mean so far."""
        return self._mean.mean

    def load_state(self, state: RunState) -> None:
        """Continue from a saved mean."""
        self._mean = state.mean_log_ratio or RunningMean()

    def save_state(self, state: RunState) -> RunState:
        """The state with the mean so far."""
        return replace(state, mean_log_ratio=self._mean)


class NoReferencePoint(ReferencePoint):
    """0, for APO-zero."""

    def of_update(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> float:
        """0"""
        return 0.0

    def of_evaluation(self, experiences: Sequence[Experience]) -> float:
        """0"""
        return 0.0


def make_reference_point(run: Run, engine: TrainingEngine) -> ReferencePoint | None:
    """The reference point of the run's algorithm; None for one without labels."""
    algorithm = run.algorithm
    if not isinstance(algorithm, UnpairedConfig):
        return None
    match algorithm:
        case KtoConfig(estimates_kl=True):
            return MismatchedKl(engine, run.data.max_prompt_tokens + run.data.max_response_tokens)
        case KtoConfig():
            return NoReferencePoint()
        case BcoConfig():
            return MeanLogRatio(engine)
        case _:
            assert_never(algorithm)
