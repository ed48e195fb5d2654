"""Divergence from a teacher at sampled tokens, from log-probs, and the advantages that it gives as a reward.

On-policy distillation as a reward: K. Lu, "On-Policy Distillation" (Thinking Machines Lab, 2025), where the
advantage of each token is minus its k1 estimate, log q - log p, without a baseline and without a discount. Divergences
over the whole vocabulary are in `strop/models/divergences.py`.
"""

from __future__ import annotations

import math

import torch

from strop.algorithms.kl import estimate_kl
from strop.config.schema.distillation import (
    DistillationRewardConfig,
    SampledDivergenceConfig,
    SampledJsdConfig,
)


def sampled_divergence(
    logprobs: torch.Tensor, teacher_logprobs: torch.Tensor, section: SampledDivergenceConfig
) -> torch.Tensor:
    """[K] Divergence at each sampled token, from the log-probs of policy and teacher [K]."""
    if isinstance(section, SampledJsdConfig):
        return _jsd_terms(logprobs, teacher_logprobs, section.beta)
    return estimate_kl(logprobs, teacher_logprobs, section.estimator)


def bound_divergence(divergence: torch.Tensor, bound: float | None) -> torch.Tensor:
    """Values within +-bound; the gradient of a value beyond it is 0. The same values for no bound."""
    return divergence if bound is None else divergence.clamp(-bound, bound)


def distillation_advantages(divergence: torch.Tensor, section: DistillationRewardConfig) -> torch.Tensor:
    """[K] Part of each token's advantage: minus the bounded divergence, times the coefficient."""
    return -section.coef * bound_divergence(divergence, section.max_divergence)


def _jsd_terms(logprobs: torch.Tensor, teacher_logprobs: torch.Tensor, beta: float) -> torch.Tensor:
    """The sampled token's term of GKD's equation 1 (arXiv 2306.13649), with m = beta q + (1 - beta) p:

    beta q (log q - log m) + (1 - beta) p (log p - log m)
    """
    mixture = torch.logaddexp(logprobs + math.log1p(-beta), teacher_logprobs + math.log(beta))
    teacher_term = teacher_logprobs.exp() * (teacher_logprobs - mixture)
    return beta * teacher_term + (1 - beta) * logprobs.exp() * (logprobs - mixture)
