"""Reference points of labeled responses: KTO's estimate of the KL divergence and BCO's running mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

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
