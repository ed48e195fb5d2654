"""Divergences between two models' distributions over the vocabulary, and their slopes, by position.

With p the policy, q the teacher, m = beta q + (1 - beta) p, each divergence is a sum over tokens v of f(p_v, q_v):

    reverse_kl  p (log p - log q)                                            KL(p || q); slope p (log p - log q + 1)
    forward_kl  q (log q - log p)                                            KL(q || p); slope -q
    jsd         beta q (log q - log m) + (1 - beta) p (log p - log m)        slope (1 - beta) p (log p - log m)

The jsd is equation 1 of GKD (Agarwal et al., arXiv 2306.13649). A slope is the derivative by log p_v, with the
other log-probs fixed; through the softmax of logits z, the gradient is dD/dz_j = slope_j - p_j sum_v slope_v.

`top_k` restricts the sum to the k most likely tokens. What remains is no divergence of two distributions and may be
negative; it then counts as 0, without a slope, as in verl.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from strop.config.schema.distillation import DivergenceConfig, ForwardKlConfig, JsdConfig, ReverseKlConfig


@dataclass(frozen=True, slots=True)
class Slopes:
    """Derivatives of n divergences by log-probs of the policy."""

    tokens: Tensor | None
    """[n, k] int64 Tokens that were summed over; None for the first tokens of the vocabulary."""
    values: Tensor
    """[n, k] float32"""

    def add_to(self, gradient: Tensor, scale: Tensor) -> None:
        """Add the slopes, times `scale` [n], to a gradient [n, V]."""
        scaled = self.values * scale[:, None]
        if self.tokens is None:
            gradient[:, : scaled.shape[1]] += scaled
        else:
            gradient.scatter_add_(-1, self.tokens, scaled)


def token_divergences(policy: Tensor, teacher: Tensor, section: DivergenceConfig) -> Tensor:
    """[n] Divergences of n positions, from log-probs [n, V] each; differentiable by the policy's.

    Models of one tokenizer may pad their vocabularies to different sizes; the sum is over the tokens of both.
    """
    _, p, q = _summed(policy, teacher, section)
    return _counted(_terms(p, q, section).sum(-1), section)


def divergence_slopes(policy: Tensor, teacher: Tensor, section: DivergenceConfig) -> Slopes:
    """Derivatives of `token_divergences` by the policy's log-probs."""
    tokens, p, q = _summed(policy, teacher, section)
    match section:
        case ReverseKlConfig():
            values = (p - q).add_(1).mul_(p.exp())
        case ForwardKlConfig():
            values = -q.exp()
        case JsdConfig():
            values = (p - _mixture(p, q, section.beta)).mul_(p.exp()).mul_(1 - section.beta)
        case _:
            assert_never(section)
    if section.min_logprob is not None:
        own = policy[:, : p.shape[1]] if tokens is None else policy.gather(-1, tokens)
        values.masked_fill_(own < section.min_logprob, 0.0)
    if section.top_k is not None:
        values.masked_fill_((_terms(p, q, section).sum(-1) < 0)[:, None], 0.0)
    return Slopes(tokens, values)


def _summed(
    policy: Tensor, teacher: Tensor, section: DivergenceConfig
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The tokens that are summed over, and both models' bounded log-probs of them."""
    shared = min(policy.shape[1], teacher.shape[1])
    p, q, tokens = policy[:, :shared], teacher[:, :shared], None
    if section.top_k is not None:
        likely = q if section.top_k_of == "teacher" else p
        tokens = likely.detach().topk(min(section.top_k, shared), dim=-1).indices
        p, q = p.gather(-1, tokens), q.gather(-1, tokens)
    if section.min_logprob is not None:
        p, q = p.clamp_min(section.min_logprob), q.clamp_min(section.min_logprob)
    return tokens, p, q


def _terms(p: Tensor, q: Tensor, section: DivergenceConfig) -> Tensor:
    """The summands, from log-probs."""
    match section:
        case ReverseKlConfig():
            return p.exp() * (p - q)
        case ForwardKlConfig():
            return q.exp() * (q - p)
        case JsdConfig(beta=beta):
            mixture = _mixture(p, q, beta)
            return beta * q.exp() * (q - mixture) + (1 - beta) * p.exp() * (p - mixture)
        case _:
            assert_never(section)


def _mixture(p: Tensor, q: Tensor, beta: float) -> Tensor:
    """Log-probs of beta q + (1 - beta) p."""
    return torch.logaddexp(p + math.log1p(-beta), q + math.log(beta))


def _counted(divergences: Tensor, section: DivergenceConfig) -> Tensor:
    return divergences if section.top_k is None else divergences.clamp_min(0.0)
