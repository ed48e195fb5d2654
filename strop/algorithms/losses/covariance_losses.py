"""Clip-Cov and KL-Cov, and the selection of their tokens (Cui et al., "The Entropy Mechanism of RL for Reasoning
Language Models", arXiv 2505.22617)."""

from __future__ import annotations

from dataclasses import replace

import torch

from strop.algorithms.losses.loss_terms import PolicyLossTerms
from strop.config.schema.policy_loss import ClipCovLossConfig, KlCovLossConfig


def select_tokens(
    config: ClipCovLossConfig | KlCovLossConfig,
    logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    seed: int,
) -> torch.Tensor:
    """[K] bool: the tokens of one update that the loss treats differently.

    They are chosen by covariance(token) = (log pi - mean of log pi) * (A - mean of A), with means over all K tokens.
    KL-Cov takes the largest, Clip-Cov a random choice between its bounds. verl takes the current log-probs of each
    micro-batch; here they are those of the old policy over the update, so that the choice does not depend on
    micro-batches.

    Args:
        config: the policy loss.
        logprobs: [K] of all targets of the update, by the old policy.
        advantages: [K]
        seed: seed of Clip-Cov's choice.
    """
    covariance = (logprobs - logprobs.mean()) * (advantages - advantages.mean())
    count = max(1, int(config.token_fraction * len(covariance)))
    if isinstance(config, KlCovLossConfig):
        chosen = covariance.topk(min(count, len(covariance))).indices
    else:
        between = (covariance > config.covariance_low) & (covariance < config.covariance_high)
        candidates = between.nonzero().squeeze(1)
        order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
        chosen = candidates[order[:count]]
    return torch.zeros_like(covariance, dtype=torch.bool).index_fill(0, chosen, True)


def clip_cov(clipped: PolicyLossTerms, selected: torch.Tensor) -> PolicyLossTerms:
    """Clip-Cov: the clipped surrogate, with the loss and the gradient 0 of selected tokens."""
    return replace(clipped, loss=torch.where(selected, 0.0, clipped.loss))


def kl_cov(
    log_ratio: torch.Tensor, advantages: torch.Tensor, selected: torch.Tensor, *, kl_coef: float
) -> PolicyLossTerms:
    """KL-Cov, negated: -A * ratio, plus kl_coef * |log ratio| for selected tokens.

    In the first update of a step the ratio is 1 and the penalty has no gradient.
    """
    penalty = torch.where(selected, kl_coef * log_ratio.abs(), 0.0)
    return PolicyLossTerms.unbounded(penalty - advantages * log_ratio.exp())
