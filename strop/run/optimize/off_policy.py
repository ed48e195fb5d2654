"""Quantities of an update that depend on the age of its sampler's weights: denominators of the loss, and metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.importance import compute_importance_weights, kept_targets
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.run.optimize.advantage_inputs import gather_targets
from strop.types import Experience, FloatArray, IntArray


def count_kept(
    algorithm: RolloutAlgorithmConfig,
    experiences: Sequence[Experience],
    old_logprobs: Sequence[FloatArray] | None,
) -> int | None:
    """Number of an update's targets that `algorithm.rejection` keeps.

    None without a rejection, and where it compares the current policy with the sampler, so that it is unknown
    before the update.

    Args:
        experiences: those of the update.
        old_logprobs: [L] of each, under the weights at the start of the step.
    """
    if not algorithm.rejection or algorithm.old_policy == "sampler":
        return None
    assert old_logprobs is not None
    trainer, sampler, targets = _compared(experiences, old_logprobs)
    return int(kept_targets(trainer, sampler, targets, algorithm.rejection).sum())


def mean_importance_weight(
    algorithm: RolloutAlgorithmConfig,
    experiences: Sequence[Experience],
    trainer_logprobs: Callable[[], Sequence[FloatArray] | None],
) -> float:
    """Mean importance weight of experiences, by which the weights are normalized; 1 where they are not.

    `trainer_logprobs` returns [L] of each, under the policy whose weights these are.
    """
    correction = algorithm.importance_correction
    if correction is None or not correction.normalize:
        return 1.0
    logprobs = trainer_logprobs()
    assert logprobs is not None
    trainer, sampler, targets = _compared(experiences, logprobs)
    return compute_importance_weights(trainer, sampler, targets, correction).mean(targets, correction)


def importance_weights(
    algorithm: RolloutAlgorithmConfig, experiences: Sequence[Experience], old_logprobs: Sequence[FloatArray]
) -> torch.Tensor | None:
    """[K] importance weights of a step's targets under the old policy, not normalized; None where there are none."""
    correction = algorithm.importance_correction
    if correction is None:
        return None
    trainer, sampler, targets = _compared(experiences, old_logprobs)
    return compute_importance_weights(trainer, sampler, targets, correction).weights


def _compared(
    experiences: Sequence[Experience], trainer: Sequence[FloatArray]
) -> tuple[torch.Tensor, torch.Tensor, TargetTokens]:
    """[K] log-probs of the trainer and of the sampler, and their targets, of all experiences end to end."""
    tokens = torch.tensor([experience.response_tokens for experience in experiences])
    sampler = gather_targets([experience.sampler_logprobs for experience in experiences], experiences)
    return gather_targets(trainer, experiences), sampler, TargetTokens.concatenated(tokens)


def staleness_metrics(experiences: Sequence[Experience], step: int) -> dict[str, float]:
    """Age, in steps, of the weights that sampled each experience, relative to the weights being trained."""
    ages = [step - 1 - min(experience.versions) for experience in experiences]
    tokens = np.concatenate([_target_versions(experience) for experience in experiences])
    mixed = [experience.token_versions is not None for experience in experiences]
    return {
        "staleness/mean": float(np.mean(ages)),
        "staleness/max": float(max(ages)),
        "staleness/token_mean": float(np.mean(step - 1 - tokens)),
        "staleness/mixed_fraction": float(np.mean(mixed)),
    }


def _target_versions(experience: Experience) -> IntArray:
    """[K] Version of the weights that sampled each target."""
    if experience.token_versions is None:
        return np.full(experience.response_tokens, experience.versions[0], dtype=np.int32)
    return experience.token_versions[experience.loss_mask]
