"""KL divergence between policy and reference or teacher: estimators from sampled tokens, and coefficient controllers.

John Schulman, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html). With tokens sampled
from pi and r = ref / pi:

    k1   -log r                 unbiased, high variance, can be negative
    abs  |log r|                biased; a distance, not a divergence
    k2   (log r)^2 / 2          slightly biased, low variance
    k3   (r - 1) - log r        unbiased, low variance, never negative

As a loss, what matters is an estimator's gradient with respect to pi's parameters, not its value. With
grad = grad log pi, per token:

    k1   grad                   0 in expectation: no pull towards the reference
    abs  sign(log pi / ref) grad
    k2   log(pi / ref) grad     in expectation the gradient of KL(pi || ref)
    k3   (1 - ref / pi) grad    in expectation the gradient of KL(ref || pi)

`k1+`, `abs+` and `k3+` have the value of the estimator and the gradient of k2 (straight-through), as in verl.
Multiplied by the ratio w = pi / pi_old with its gradient, k1 and k3 have the gradient of KL(pi || ref) in expectation
over tokens of pi_old (DeepSeek-V3.2, arXiv 2512.02556): w (k3 + 1 - r) grad = w (-log r) grad.

Another estimator, `full`, is the divergence over the whole vocabulary. It needs both models' logits, and is
computed with them in `strop/models/logprobs.py`.

k3 bounds log r to +-20 before the exponential, as verl does. verl also bounds the value of k3 to +-10, and
OpenRLHF that of each estimator; the gradient of a token beyond this bound is 0, so Strop does not bound the value.

On-policy distillation as a reward: K. Lu, "On-Policy Distillation" (Thinking Machines Lab, 2025), where the
advantage of each token is minus its k1 estimate, log q - log p, without a baseline and without a discount. Divergences
from a teacher over the whole vocabulary are in `strop/models/chunked_head.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import assert_never

import torch

from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.distillation import (
    DistillationRewardConfig,
    SampledDivergenceConfig,
    SampledJsdConfig,
)
from strop.config.schema.policy_gradient import K2GradientKl, SampledKl

MAX_EXPONENT = 20.0
"""Bound of a log-ratio whose exponential is used, as in verl. Without it, e^89 overflows float32, and the gradient of
a clipped loss is 0 * infinity."""
MAX_LOG_RATIO = 1e4
"""Bound of a log-ratio that is used as it is. Only infinities and faulty models exceed it."""


def bound_exponent(log_ratio: torch.Tensor) -> torch.Tensor:
    """The log-ratio within +-20. The gradient is 0 outside, and values inside are unchanged."""
    return log_ratio.clamp(-MAX_EXPONENT, MAX_EXPONENT)


def bound_log_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """The log-ratio within +-10,000. The gradient is 0 outside, and values inside are unchanged."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def estimate_kl(
    logprobs: torch.Tensor, ref_logprobs: torch.Tensor, estimator: SampledKl | K2GradientKl
) -> torch.Tensor:
    """KL(policy || reference) per token, both [K]; the tokens were sampled from the policy."""
    log_ratio = bound_log_ratio(ref_logprobs - logprobs)
    match estimator:
        case "k1+":
            return _with_k2_gradient(-log_ratio, log_ratio)
        case "abs+":
            return _with_k2_gradient(log_ratio.abs(), log_ratio)
        case "k3+":
            return _with_k2_gradient(_k3(log_ratio), log_ratio)
        case "k1":
            return -log_ratio
        case "abs":
            return log_ratio.abs()
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return _k3(log_ratio)
        case _:
            assert_never(estimator)


def _k3(log_ratio: torch.Tensor) -> torch.Tensor:
    log_ratio = bound_exponent(log_ratio)
    return torch.expm1(log_ratio) - log_ratio


def _with_k2_gradient(value: torch.Tensor, log_ratio: torch.Tensor) -> torch.Tensor:
    k2 = log_ratio.square() / 2
    return value.detach() + (k2 - k2.detach())


def mean_rollout_kl(divergences: torch.Tensor, tokens: torch.Tensor) -> float:
    """Input of a KL controller: the mean over rollouts of the mean over each rollout's targets, in nats.

    Args:
        divergences: [K] values of all targets, rollout after rollout.
        tokens: [N] number of targets of each rollout.
    """
    rollout = torch.arange(len(tokens), device=tokens.device).repeat_interleave(tokens)
    sums = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
    return float((sums.index_add(0, rollout, divergences.double()) / tokens).mean())


@dataclass(frozen=True, slots=True)
class FixedKlController:
    """A constant coefficient of the KL penalty in the reward."""

    coef: float

    def update(self, kl: float, rollouts: int) -> FixedKlController:
        """The controller itself, unchanged."""
        return self


@dataclass(frozen=True, slots=True)
class AdaptiveKlController:
    """A coefficient of the KL penalty that adapts to the divergence (Ziegler et al., arXiv 1909.08593, section 2.2).

        e = clip(kl / target_kl - 1, -0.2, 0.2)
        coef <- coef (1 + e rollouts / horizon)

    The paper's K_beta of 0.1 is rollouts / horizon here, as in TRL, verl and Trinity-RFT. The only
    state is `coef`.
    """

    coef: float
    target_kl: float
    """Target divergence in nats per token, by the same estimator as `kl`."""
    horizon: int
    """Time constant of the adaptation, in rollouts."""

    def update(self, kl: float, rollouts: int) -> AdaptiveKlController:
        """The controller after `rollouts` rollouts with the divergence `kl`."""
        error = min(max(kl / self.target_kl - 1, -0.2), 0.2)
        return replace(self, coef=self.coef * (1 + error * rollouts / self.horizon))


KlController = FixedKlController | AdaptiveKlController


def make_kl_controller(config: RolloutAlgorithmConfig, coef: float | None = None) -> KlController | None:
    """The controller of the KL penalty in the reward; None without such a penalty.

    `coef` is the coefficient of a resumed run's checkpoint; None starts at the run file's.
    """
    if config.kl_reward is None:
        return None
    start = config.kl_reward.coef if coef is None else coef
    adaptive = config.kl_reward.adaptive
    return (
        FixedKlController(start)
        if adaptive is None
        else AdaptiveKlController(start, adaptive.target_kl, adaptive.horizon)
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
