"""Reference points of labeled responses: KTO's estimate of the KL divergence and BCO's running mean. Imports no torch,
because a run's state has the mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from strop.errors import DataError
from strop.protocols import TrainingEngine
from strop.types import Experience, FloatArray


def mismatched_pairs(experiences: Sequence[Experience], max_tokens: int) -> list[Experience]:
    """Each experience's prompt with the response of the experience before it, and the first with that of the last.

    Ethayarajh et al., arXiv 2402.01306, section 4.1, rotated as in TRL 1.16 (trl/trainer/kto_trainer.py). The end above
    `max_tokens` is removed; an experience has fewer tokens than that before its response.
    """
    before = [*experiences[-1:], *experiences[:-1]]
    return [_joined(own, other, max_tokens) for own, other in zip(experiences, before, strict=True)]


def _joined(prompt: Experience, response: Experience, max_tokens: int) -> Experience:
    own, other = prompt.prompt_tokens, response.prompt_tokens
    token_ids = np.concatenate([prompt.token_ids[:own], response.token_ids[other:]])[:max_tokens]
    loss_mask = np.concatenate([prompt.loss_mask[:own], response.loss_mask[other:]])[:max_tokens]
    nothing = np.zeros(len(token_ids), dtype=np.float32)
    return replace(
        prompt,
        id=f"{prompt.id}-mismatched",
        token_ids=token_ids,
        loss_mask=loss_mask,
        sampler_logprobs=nothing,
        policy_logprobs=nothing,
    )


def log_ratios(
    experiences: Sequence[Experience], logprobs: Sequence[FloatArray], reference: Sequence[FloatArray]
) -> list[float]:
    """log(policy / reference) of each response in nats, summed over its targets, from [L] log-probs of both."""
    return [
        float(np.subtract(policy, frozen, dtype=np.float64)[experience.loss_mask].sum())
        for experience, policy, frozen in zip(experiences, logprobs, reference, strict=True)
    ]


def kl_estimate(mismatched_log_ratios: Sequence[float]) -> float:
    """KTO's estimate of KL(policy || reference) in nats: the mean over mismatched pairs, at least 0."""
    return max(0.0, float(np.mean(mismatched_log_ratios)))


@dataclass(frozen=True, slots=True)
class RunningMean:
    """Mean of all values so far."""

    mean: float = 0.0
    count: int = 0

    def updated(self, values: Sequence[float]) -> RunningMean:
        """The mean with further values, each of which counts as much as each of the earlier ones."""
        count = self.count + len(values)
        return RunningMean(self.mean + (float(np.mean(values)) - self.mean) * len(values) / count, count)


class ReferencePoint(ABC):
    """Computes `GlobalCounts.reference_point`, in nats. All passes are without a gradient, over the whole update, so
    that the result does not depend on micro-batches and ranks."""

    state: RunningMean | None = None
    """State that a checkpoint saves; None for a reference point without one."""

    def load_state(self, state: RunningMean | None) -> None:  # noqa: B027  (only a running mean has a state)
        """Continue from a saved state, or start without one."""

    @abstractmethod
    def of_update(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> float:
        """The value for an update on these experiences, given the reference's log-probs [L] of each."""

    @abstractmethod
    def of_evaluation(self, experiences: Sequence[Experience]) -> float:
        """The value for an evaluation on these experiences, which changes no state."""


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
        policy = self._engine.token_values(pairs, "logprobs")
        return kl_estimate(log_ratios(pairs, policy, self._engine.token_values(pairs, "reference_logprobs")))


class MeanLogRatio(ReferencePoint):
    """BCO's running mean over the responses of all updates, the current one included."""

    def __init__(self, engine: TrainingEngine) -> None:
        self._engine = engine
        self.state: RunningMean = RunningMean()

    def of_update(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> float:
        """The mean with the responses of the update."""
        ratios = log_ratios(experiences, self._engine.token_values(experiences, "logprobs"), reference)
        self.state = self.state.updated(ratios)
        return self.state.mean

    def load_state(self, state: RunningMean | None) -> None:
        self.state = state or RunningMean()

    def of_evaluation(self, experiences: Sequence[Experience]) -> float:
        """The mean so far."""
        return self.state.mean


class NoReferencePoint(ReferencePoint):
    """0, for APO-zero."""

    def of_update(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> float:
        """0"""
        return 0.0

    def of_evaluation(self, experiences: Sequence[Experience]) -> float:
        """0"""
        return 0.0
